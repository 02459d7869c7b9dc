"""An arm against the better of some others at each concurrency: the bar of a patch that is to cost nothing anywhere.

    PYTHONPATH=. python tests/gpu/against_best.py ARM OTHER,OTHER RUN_FOLDER...

Prints, for each concurrency, which other arm is the better one, ARM's output tokens/s over its (1.02 is 2% more), and
the 95% interval; then the geometric mean over all concurrencies. Which arm is better is decided by the same boots, so
the ratio is a little too low where two others are alike. Of several runs, each a node and a time of its own, ARM is set
against the arms of its own run, and the logs of the ratios are averaged, each weighing as many boots of ARM as it has.
Intervals: Welch's t on logs of boots, with Satterthwaite's degrees of freedom over all groups of boots. A boot without
a point that others have is left out. ValueError where a run lacks an arm.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.analysis.compare import side
from orchestrator.analysis.stats import Contrast, contrast, mean, variance

Logs = dict[int, list[float]]
"""Concurrency -> log of tokens/s, one value a boot."""


@dataclass(frozen=True)
class Row:
    """`ratio` of the arm to `best`; one concurrency, or their mean where `concurrency` is None."""

    concurrency: int | None
    best: str
    ratio: Contrast


def boots_of(run: Path, arm: str) -> Logs:
    """From summary.json: valid boots that have every point of the arm."""
    summary = json.loads((run / "summary.json").read_text())
    if arm not in summary["arms"]:
        raise ValueError(f"{run} has no arm {arm}, but {', '.join(summary['arms'])}")
    boots = side(summary, arm, "output_tps").values.values()
    levels = {level for speeds in boots for level in speeds}
    whole = [speeds for speeds in boots if speeds.keys() == levels]
    if not whole:
        raise ValueError(f"{run}: no boot of {arm} has all points")
    return {level: [math.log(speeds[level]) for speeds in whole] for level in sorted(levels)}


def against_best(arm: str, others: Sequence[str], runs: Sequence[Path]) -> list[Row]:
    """A row for each concurrency, and the mean last. All runs must have the same concurrencies."""
    mine = [boots_of(run, arm) for run in runs]
    theirs = {name: [boots_of(run, name) for run in runs] for name in others}
    levels = sorted(mine[0])
    if any(
        sorted(logs) != levels for logs in [*mine, *(logs for group in theirs.values() for logs in group)]
    ):
        raise ValueError("the runs and arms have not all the same concurrencies")
    best = {
        level: min(others, key=lambda name: _pooled(mine, {name: theirs[name]}, {level: name}).ratio)
        for level in levels
    }
    rows = [Row(level, best[level], _pooled(mine, theirs, {level: best[level]})) for level in levels]
    return [*rows, Row(None, "", _pooled(mine, theirs, best))]


def _pooled(mine: Sequence[Logs], theirs: dict[str, list[Logs]], best: dict[int, str]) -> Contrast:
    """Mean over the concurrencies in `best`: each boot gives one value, so that its points may go together."""
    sizes = [len(next(iter(logs.values()))) for logs in mine]
    total, difference, groups = sum(sizes), 0.0, []
    others = 0
    for run, (logs, size) in enumerate(zip(mine, sizes, strict=True)):
        weight = size / total
        sides = [(1, _shares(logs, list(best), len(best)))]
        for name in set(best.values()):
            at = [level for level, owner in best.items() if owner == name]
            sides.append((-1, _shares(theirs[name][run], at, len(best))))
        others += max(len(values) for sign, values in sides if sign < 0)
        for sign, values in sides:
            difference += sign * weight * mean(values)
            if len(values) < 2:
                raise ValueError("one boot of an arm says nothing about spread")
            groups.append((weight**2 * variance(values) / len(values), len(values) - 1))
    error2 = sum(part for part, _ in groups)
    if not error2:
        raise ValueError("boots that are alike to the last digit are no independent measurements")
    df = error2**2 / sum(part**2 / free for part, free in groups)
    return contrast(difference, math.sqrt(error2), df, (total, others))


def _shares(logs: Logs, levels: Sequence[int], of: int) -> list[float]:
    """What each boot adds to a mean over `of` concurrencies by those in `levels`."""
    return [sum(values) / of for values in zip(*(logs[level] for level in levels), strict=True)]


def main(arm: str, others: str, *folders: str) -> int:
    rows = against_best(arm, others.split(","), [Path(folder) for folder in folders])
    for row in rows:
        found = row.ratio
        what = (
            f"{row.concurrency:4d} {row.best:<12}"
            if row.concurrency is not None
            else f"mean of {len(rows) - 1:<9}"
        )
        print(
            f"{what} {found.ratio:.3f}   {found.low:.3f} to {found.high:.3f}   boots {found.n_a} and {found.n_b}"
        )
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
