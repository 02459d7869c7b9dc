"""Does the simulated engine predict a real run? Fitted on half of its points, it is run at all of them and compared.

    python tests/bench/simulator.py [--speed 0.25]      about four minutes; exit 1 beyond 15%

The engine runs behind SSH as in `dynspec demo`, slowed down so that waiting for a core does not count as GPU time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from orchestrator.cli.files import load
from orchestrator.demo.command import demo_node
from orchestrator.demo.engine.timing import Timing
from orchestrator.demo.fit import Measured, fit, read_points
from orchestrator.demo.node import NodeOptions
from orchestrator.runner.options import RunOptions
from orchestrator.runner.session import run_experiment

ROOT = Path(__file__).resolve().parents[2]
REAL = ROOT / "results" / "examples" / "h200-timing-0.5.11"
EXPERIMENT = Path(__file__).with_name("simulator.yaml")
ARMS = ("none", "static")
FITTED = (1, 4, 16, 64)
BAR = 0.15


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--speed", type=float, default=0.25, help="simulated seconds a second (0.25)")
    speed = parser.parse_args().speed
    measured = {arm: {point.concurrency: point for point in read_points(REAL, arm)} for arm in ARMS}
    halves = [[point for c, point in measured[arm].items() if c in FITTED] for arm in ARMS]
    with tempfile.TemporaryDirectory() as folder:
        timing = Path(folder) / "timing.json"
        timing.write_text(json.dumps(fit(*halves, Timing.load()).parameters))
        simulated = simulate(Path(folder), timing, speed)
    return report(measured, simulated, speed)


def simulate(folder: Path, timing: Path, speed: float) -> dict[str, Any]:
    """`summary.json` of a run of both arms against the engine with these figures."""
    engine = {
        "DYNSPEC_DEMO_SPEED": f"{speed:g}",
        "DYNSPEC_DEMO_TIMING": str(timing),
        "DYNSPEC_DEMO_LOAD_S": "0.5",
    }
    with demo_node(speed=speed, options=NodeOptions(engine_env=engine)) as running:
        checked = load(EXPERIMENT, [f"{key}={value}" for key, value in running.overrides.items()])
        options = RunOptions(results=folder / "results")
        finished = run_experiment(
            checked, options, base=EXPERIMENT.parent, environ=os.environ, listeners=(say,)
        )
    if finished.store is None:
        raise SystemExit(finished.outcome.message)
    summary: dict[str, Any] = json.loads((finished.store.folder / "summary.json").read_text())
    return summary


def say(event: Any) -> None:
    if event["event"] in ("point", "outcome"):
        print(event.get("text") or event, file=sys.stderr, flush=True)


def report(measured: dict[str, dict[int, Measured]], simulated: dict[str, Any], speed: float) -> int:
    print("arm      conc            real tok/s  simulated   diff")
    worst = 0.0
    for arm in ARMS:
        for point in simulated["arms"][arm]["points"]:
            concurrency = point["concurrency"]
            real = measured[arm][concurrency].output_tps
            ours = point["metrics"]["output_tps"]["value"] / speed
            worst = max(worst, abs(ours / real - 1))
            words = "" if concurrency in FITTED else "held out"
            doubts = "" if point["valid"] else str(point["reasons"])
            print(
                f"{arm:8} {concurrency:4}  {words:8} {real:10.0f} {ours:10.0f} {ours / real - 1:+8.1%}  {doubts}"
            )
    print(f"largest difference {worst:.1%}, bar {BAR:.0%}")
    return int(worst > BAR)


if __name__ == "__main__":
    sys.exit(main())
