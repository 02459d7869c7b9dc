"""Parameters of the simulated clock from measured points, and the throughput that they predict.

A closed loop of equal requests runs in rounds: the prompts are prefilled, then all decode in step until the outputs are
full. The time per output token tells the decode step; what is left of a round is its prefill. A round has two prefills:
the first request to arrive goes alone, the others have gathered behind it.

    python -m orchestrator.demo.fit RUN --plain none --speculative static --idle TAX_RUN always-plain > timing.json
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from orchestrator.demo.engine.timing import DraftShape, Timing
from orchestrator.errors import UsageError


@dataclass(frozen=True)
class Measured:
    """One point of a closed loop. Tokens are means per request, `tpot_s` the mean time per output token.

    `accept_length` is 1 without speculation.
    """

    concurrency: int
    output_tps: float
    tpot_s: float
    output_tokens: float
    prompt_tokens: float
    accept_length: float = 1.0

    @property
    def step_ms(self) -> float:
        """One decode step."""
        return self.tpot_s * self.accept_length * 1000

    @property
    def prefill_ms(self) -> float:
        """All prefills of a round; the first token of an answer comes from there."""
        round_ms = self.concurrency * self.output_tokens / self.output_tps * 1000
        return round_ms - (self.output_tokens - 1) * self.tpot_s * 1000

    @property
    def prefills(self) -> int:
        return min(self.concurrency, 2)


def predicted_tps(point: Measured, timing: Timing, shape: DraftShape | None = None) -> float:
    """Throughput at the point's concurrency, lengths and accept length. `shape` None: without speculation."""
    batch = point.concurrency
    step_ms = timing.plain_ms(batch) if shape is None else timing.speculative_ms(batch, shape)
    tokens = round(batch * point.prompt_tokens)
    whole_ms = (point.prefills - 1) * timing.prefill_ms(0) + timing.prefill_ms(tokens)
    whole_ms += (point.output_tokens - 1) / point.accept_length * step_ms
    return batch * point.output_tokens / whole_ms * 1000


def fit(
    plain: Sequence[Measured],
    speculative: Sequence[Measured],
    timing: Timing,
    *,
    draft: tuple[int, int] = (3, 4),
    source: str = "",
) -> Timing:
    """`timing` with the figures of these points. `draft`: steps and draft tokens that they were measured with."""
    parameters: dict[str, Any] = copy.deepcopy(dict(timing.parameters))
    for mode, points in (("plain", plain), ("speculative", speculative)):
        if points:
            parameters["step_ms"][mode] = {
                "source": source,
                "points": sorted([point.concurrency, round(point.step_ms, 3)] for point in points),
            }
    if speculative:
        parameters["reference_draft"] = {"source": source, "steps": draft[0], "draft_tokens": draft[1]}
    launch_ms, token_us = fit_prefill([*plain, *speculative])
    parameters["prefill_ms"] = {"source": source, "value": round(launch_ms, 2)}
    parameters["prefill_token_us"] = {"source": source, "value": round(token_us, 2)}
    return Timing(parameters)


def fit_idle(plain: Sequence[Measured], idle: Sequence[Measured], timing: Timing, source: str = "") -> Timing:
    """`timing` with what speculation costs a server that could and never does (`idle`), beside one that cannot.

    Both of one run: the mean over the concurrencies that they share. UsageError where they share none.
    """
    by_load = {point.concurrency: point.step_ms for point in plain}
    ratios = [point.step_ms / by_load[point.concurrency] for point in idle if point.concurrency in by_load]
    if not ratios:
        raise UsageError("the arm that never speculates and the one without speculation share no valid point")
    factor = {"source": source, "value": round(mean(ratios), 3)}
    return Timing({**timing.parameters, "fallback_factor": factor})


def fit_prefill(points: Sequence[Measured]) -> tuple[float, float]:
    """Launch cost of a prefill in ms and cost of a prompt token in us: least squares, neither below 0."""
    counts = [float(point.prefills) for point in points]
    tokens = [point.concurrency * point.prompt_tokens for point in points]
    wholes = [point.prefill_ms for point in points]
    square_counts, square_tokens, mixed = _dot(counts, counts), _dot(tokens, tokens), _dot(counts, tokens)
    determinant = square_counts * square_tokens - mixed**2
    if determinant <= 0:  # one size of prefill only: nothing tells launches and tokens apart
        return max(_dot(counts, wholes) / square_counts, 0.0), 0.0
    launch = (_dot(counts, wholes) * square_tokens - _dot(tokens, wholes) * mixed) / determinant
    token = (_dot(tokens, wholes) * square_counts - _dot(counts, wholes) * mixed) / determinant
    if launch < 0:
        launch, token = 0.0, _dot(tokens, wholes) / square_tokens
    elif token < 0:
        launch, token = _dot(counts, wholes) / square_counts, 0.0
    return max(launch, 0.0), max(token, 0.0) * 1000


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def read_points(folder: Path, arm: str) -> list[Measured]:
    """The valid points of one arm of a run folder."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    if arm not in summary["arms"]:
        raise UsageError(f"{folder}: no arm {arm}; there are {', '.join(summary['arms'])}")
    points = []
    for point in summary["arms"][arm]["points"]:
        metrics = {name: entry["value"] for name, entry in point["metrics"].items() if entry}
        tokens = _tokens(folder / "arms" / arm, point["index"])
        if point["valid"] and metrics.get("output_tps") and metrics.get("tpot") and tokens is not None:
            accept = metrics.get("accept_length") or 1.0
            speeds = metrics["output_tps"], metrics["tpot"]
            points.append(Measured(point["concurrency"], *speeds, *tokens, accept))
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
    parser.add_argument(
        "--idle",
        nargs=2,
        metavar=("RUN", "ARM"),
        help="a run with the arm without speculation and one that could speculate and never does",
    )
    parser.add_argument("--steps", type=int, default=3, help="draft steps of the speculating arm (3)")
    parser.add_argument("--draft-tokens", type=int, default=4, help="its draft tokens (4)")
    parser.add_argument("--source", help="what the figures come from, for the file; else the name of the run")
    chosen = parser.parse_args(words)
    plain, speculative = (read_points(chosen.run, arm) for arm in (chosen.plain, chosen.speculative))
    fitted = fit(
        plain,
        speculative,
        Timing.load(),
        draft=(chosen.steps, chosen.draft_tokens),
        source=chosen.source or f"run {chosen.run.name}",
    )
    if chosen.idle:
        run, arm = Path(chosen.idle[0]), chosen.idle[1]
        fitted = fit_idle(read_points(run, chosen.plain), read_points(run, arm), fitted, f"run {run.name}")
    json.dump(fitted.parameters, sys.stdout, indent=2)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
