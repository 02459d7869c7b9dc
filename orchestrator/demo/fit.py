"""Parameters of the simulated clock from measured points, and the throughput that they predict.

A closed loop of equal requests runs in rounds: one prefill of all prompts, then decode steps until the outputs are
full. So a step takes (time of a round - its prefill) / its steps, and the throughput follows back from it.

    python -m orchestrator.demo.fit RUN_FOLDER --plain baseline --speculative eagle3 > timing.json
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.demo.engine.timing import DraftShape, Timing
from orchestrator.errors import UsageError


@dataclass(frozen=True)
class Measured:
    """One point of a closed loop. Tokens are means per request; `accept_length` is 1 without speculation."""

    concurrency: int
    output_tps: float
    output_tokens: float
    prompt_tokens: float
    accept_length: float = 1.0

    @property
    def round_ms(self) -> float:
        return self.concurrency * self.output_tokens / self.output_tps * 1000

    @property
    def steps(self) -> float:
        """Decode steps of a round; the first token comes from the prefill."""
        return (self.output_tokens - 1) / self.accept_length


def step_ms(point: Measured, timing: Timing) -> float:
    """Time of one decode step at that point, the prefill taken from `timing`."""
    return (point.round_ms - timing.prefill_ms(round(point.concurrency * point.prompt_tokens))) / point.steps


def predicted_tps(point: Measured, timing: Timing, shape: DraftShape | None = None) -> float:
    """Throughput at the point's concurrency, lengths and accept length. `shape` None: without speculation."""
    batch = point.concurrency
    step = timing.plain_ms(batch) if shape is None else timing.speculative_ms(batch, shape)
    whole_ms = timing.prefill_ms(round(batch * point.prompt_tokens)) + point.steps * step
    return batch * point.output_tokens / whole_ms * 1000


def fit(
    plain: Sequence[Measured],
    speculative: Sequence[Measured],
    timing: Timing,
    *,
    draft: tuple[int, int] = (3, 4),
    source: str = "",
) -> Timing:
    """`timing` with the step times of these points. `draft`: steps and draft tokens that they were measured with."""
    parameters: dict[str, Any] = copy.deepcopy(dict(timing.parameters))
    for mode, points in (("plain", plain), ("speculative", speculative)):
        if points:
            ordered = sorted(points, key=lambda point: point.concurrency)
            parameters["step_ms"][mode] = {
                "source": source,
                "points": [[point.concurrency, round(step_ms(point, timing), 3)] for point in ordered],
            }
    parameters["reference_draft"] = {"source": source, "steps": draft[0], "draft_tokens": draft[1]}
    return Timing(parameters)


def read_points(folder: Path, arm: str) -> list[Measured]:
    """The valid points of one arm of a run folder."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    if arm not in summary["arms"]:
        raise UsageError(f"{folder}: no arm {arm}; there are {', '.join(summary['arms'])}")
    points = []
    for point in summary["arms"][arm]["points"]:
        metrics = {name: entry["value"] for name, entry in point["metrics"].items() if entry}
        tokens = _tokens(folder / "arms" / arm, point["index"])
        if metrics.get("output_tps") and tokens is not None:
            accept = metrics.get("accept_length") or 1.0
            points.append(Measured(point["concurrency"], metrics["output_tps"], *tokens, accept))
    return points


def _tokens(folder: Path, index: int) -> tuple[float, float] | None:
    """Mean output and prompt tokens of a request, from the first boot that has this point."""
    for file in sorted(folder.glob(f"boot-*/point-{index:02d}-*.meta.json")):
        load = json.loads(file.read_text(encoding="utf-8"))["load"]["summary"]
        count = load["phases"]["load"]["ok"]
        if count:
            return load["tokens"]["output"] / count, load["tokens"]["prompt"] / count
    return None


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m orchestrator.demo.fit", description=__doc__)
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("--plain", required=True, help="the arm without speculation")
    parser.add_argument("--speculative", required=True, help="the arm that always speculates")
    parser.add_argument("--steps", type=int, default=3, help="draft steps of the speculating arm (3)")
    parser.add_argument("--draft-tokens", type=int, default=4, help="its draft tokens (4)")
    chosen = parser.parse_args(words)
    plain, speculative = (read_points(chosen.run, arm) for arm in (chosen.plain, chosen.speculative))
    draft = (chosen.steps, chosen.draft_tokens)
    fitted = fit(plain, speculative, Timing.load(), draft=draft, source=f"run {chosen.run.name}")
    json.dump(fitted.parameters, sys.stdout, indent=2)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
