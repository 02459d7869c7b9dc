"""Run against run: the same arm in two runs, on the points that both measured. Pure.

Boots of different runs are independent, so the contrast is Welch's on logs of boot means, as inside a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.analysis.crossover import by_concurrency
from orchestrator.analysis.setups import Difference, Setup, differences
from orchestrator.analysis.verdict import Comparison, Side, compare
from orchestrator.errors import NothingToClaim

Summary = Mapping[str, Any]


@dataclass(frozen=True)
class RunComparison:
    """`arms`: of run A against run B. `unlike`: set-up differences, the blocking ones first."""

    metric: str
    arms: tuple[Comparison, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    unlike: tuple[Difference, ...]


def compare_runs(
    a: Summary,
    b: Summary,
    setups: tuple[Setup, Setup] | None,
    *,
    metric: str = "output_tps",
    same_place: bool = False,
) -> RunComparison:
    """Every arm that both runs have. Without `setups` nothing is known of likeness: the caller must say so."""
    common = [name for name in a["arms"] if name in b["arms"]]
    unlike = differences(*setups, common, same_place=same_place) if setups else ()
    return RunComparison(
        metric,
        tuple(_compared(a, b, name, metric) for name in common),
        tuple(name for name in a["arms"] if name not in b["arms"]),
        tuple(name for name in b["arms"] if name not in a["arms"]),
        unlike,
    )


def _compared(a: Summary, b: Summary, arm: str, metric: str) -> Comparison:
    """An arm that one run left to do has no invalid points to be blamed for it."""
    found = compare(metric, side(a, arm, metric), side(b, arm, metric))
    lacking = [name for name, run in (("A", a), ("B", b)) if not run["arms"][arm]["points"]]
    return replace(found, notes=(f"not measured in {' and '.join(lacking)}",)) if lacking else found


def require_like(found: RunComparison) -> None:
    """Raises NothingToClaim (exit 6) where the runs did unequal work."""
    blocking = [str(item) for item in found.unlike if item.blocks]
    if blocking:
        raise NothingToClaim(
            "the runs are not alike, so their numbers are not compared",
            details=tuple(blocking),
            help="compare runs of the same work, or look at the two reports side by side",
        )


def require_something(found: RunComparison) -> None:
    """Raises NothingToClaim (exit 6) where no arm has a point that counts in both runs."""
    if not any(item.headline for item in found.arms):
        raise NothingToClaim(
            "nothing is compared: no arm has a point that counts in both runs",
            help="the report of each run says for each point what speaks against it",
        ).after_answer()


def side(summary: Summary, arm: str, metric: str) -> Side:
    """An arm's valid values per boot, by concurrency, from `summary.json`."""
    values: dict[int, dict[int, float]] = {}
    levels: dict[int, int] = {}
    for point in summary["arms"][arm]["points"]:
        levels[point["index"]] = point["concurrency"]
        for boot in point["boots"]:
            value = boot["metrics"].get(metric)
            if boot["valid"] and value is not None and value > 0:
                values.setdefault(boot["boot"], {})[point["index"]] = value
    return Side(arm, by_concurrency(values, levels), asked=frozenset(summary["asked"]))


def pooled(sides: Sequence[Side]) -> Side:
    """Boots of several runs as one side; boots are numbered anew.

    Asked is what any of the runs asked: one short sweep among many must not narrow what is compared, its boots go.
    """
    boots = [points for item in sides for points in item.values.values()]
    known = [item.asked for item in sides if item.asked is not None]
    asked = frozenset[int]().union(*known) if len(known) == len(sides) else None
    return Side(sides[0].name, dict(enumerate(boots, 1)), asked=asked)
