"""One arm against another: headline, single points, drift, and what the number of boots could have shown.

The headline is the mean over points of the log values, so that each point weighs the same whatever its size. Single
points are corrected with Holm's method over the points of this comparison. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

from orchestrator.analysis import stats
from orchestrator.analysis.stats import Call, Contrast, Drift

BootValues = Mapping[
    int, Mapping[int, float]
]  # boot -> position in the sweep -> value (> 0), valid points only

LOWER_IS_BETTER = ("ttft", "tpot", "e2e", "chunk_gap", "client_lag", "client_event_cpu")


def higher_is_better(metric: str) -> bool:
    """Latencies want to be low, everything else (rates, accept length) high."""
    return not metric.startswith(LOWER_IS_BETTER)


@dataclass(frozen=True)
class Side:
    """One arm's values and when its boots ran. `order`: boot -> place in the run; {}: unknown.

    `asked`: what its boots were to measure, valid or not; None: the same as the other side's.
    """

    name: str
    values: BootValues
    order: Mapping[int, float] = field(default_factory=dict)
    asked: frozenset[int] | None = None


@dataclass(frozen=True)
class PointVerdict:
    index: int
    contrast: Contrast
    p_holm: float | None
    call: Call


@dataclass(frozen=True)
class Comparison:
    """`arm` against `against` in `metric`. `headline` is None where the arms share no valid point."""

    arm: str
    against: str
    metric: str
    headline: Contrast | None
    call: Call
    points: tuple[PointVerdict, ...]
    headline_points: tuple[int, ...]
    method: str  # "welch", "paired" or "detrended"
    drift: Drift | None
    sd: float | None  # of boot means, on logs, pooled
    boots: int  # of the arm that has fewer, in the headline
    notes: tuple[str, ...] = ()

    @cached_property
    def power(self) -> float | None:
        """Chance to see stats.EFFECT with the boots at hand."""
        return stats.power(self.sd, self.boots) if self.sd else None

    @cached_property
    def boots_needed(self) -> int | None:
        """Of an arm, for stats.EFFECT at stats.POWER; None: unknown or more than MOST_BOOTS."""
        return stats.boots_needed(self.sd) if self.sd else None

    @cached_property
    def detectable(self) -> float | None:
        """The smallest ratio that these boots find with stats.POWER."""
        return stats.detectable(self.sd, self.boots) if self.sd else None


def compare(
    metric: str, arm: Side, against: Side, *, shared_boots: bool = False, floor: float = 1.0
) -> Comparison:
    """Compare two arms.

    `shared_boots`: both were measured in the same boots, so the contrast is within boots. `floor`: a ratio by which
    identical arms were seen to differ (`noise_floor`); nothing up to it is called.
    """
    a, b, notes = _balanced(arm, against)
    indices = _common(a, b)
    logs_a, logs_b = _headline_logs(a, indices), _headline_logs(b, indices)
    trend = None if shared_boots else _trend(arm, against, logs_a, logs_b)
    method = "paired" if shared_boots else "detrended" if trend is not None and trend.seen else "welch"
    headline = contrast(method, arm, against, logs_a, logs_b) if indices else None
    judge = partial(stats.call, higher_is_better=higher_is_better(metric), floor=floor)
    return Comparison(
        arm.name,
        against.name,
        metric,
        headline,
        judge(headline.ratio, headline.p) if headline else "inconclusive",
        _points(method, arm, against, judge),
        tuple(indices),
        method,
        trend,
        stats.pooled_sd(list(logs_a.values()), list(logs_b.values())) if indices else None,
        min(len(logs_a), len(logs_b)) if indices else 0,
        (*notes, *_why_none(headline)),
    )


def noise_floor(twins: Sequence[Comparison]) -> float:
    """The ratio up to which no difference between arms is believed, from comparisons of identical arms; 1.0: none.

    Boot-to-boot noise is in every test already. A floor arises only where identical arms are told apart: then
    something beside the settings moves the numbers, and what it can move is the far end of that interval.
    """
    ends = [
        abs(math.log(end))
        for twin in twins
        if twin.call != "inconclusive" and twin.headline is not None
        for end in (twin.headline.low, twin.headline.high)
        if end is not None
    ]
    return math.exp(max(ends, default=0.0))


def _why_none(headline: Contrast | None) -> tuple[str, ...]:
    if headline is None:
        return ("no point is valid in all boots that are left",)
    return (headline.why_no_test,) if headline.why_no_test else ()


def _balanced(arm: Side, against: Side) -> tuple[BootValues, BootValues, tuple[str, ...]]:
    """Leave out boots that lack half of the points or more: they would take too many points out of the headline.

    What only one side was asked for counts for neither: nobody lost it.
    """
    wanted = {index for side in (arm, against) for points in side.values.values() for index in points}
    for side in (arm, against):
        wanted &= wanted if side.asked is None else side.asked
    notes: list[str] = []
    kept: list[BootValues] = []
    for side in (arm, against):
        has = {boot: len(wanted & points.keys()) for boot, points in side.values.items()}
        kept.append({boot: side.values[boot] for boot, count in has.items() if 2 * count > len(wanted)})
        notes += [
            f"{side.name} boot {boot} has {count} of {len(wanted)} valid points: not in the headline"
            for boot, count in sorted(has.items())
            if wanted and 2 * count <= len(wanted)
        ]
    return kept[0], kept[1], tuple(notes)


def _common(a: BootValues, b: BootValues) -> list[int]:
    """Positions that are valid in every boot of both sides: the same work on both sides."""
    boots = [*a.values(), *b.values()]
    if not a or not b:
        return []
    return sorted(set.intersection(*(set(points) for points in boots)))


def _headline_logs(values: BootValues, indices: Sequence[int]) -> dict[int, float]:
    if not indices:
        return {}
    return {
        boot: stats.mean([math.log(points[index]) for index in indices])
        for boot, points in sorted(values.items())
    }


def _trend(
    arm: Side, against: Side, logs_a: Mapping[int, float], logs_b: Mapping[int, float]
) -> Drift | None:
    """Drift over the order in which the boots ran; None where the order is not known for all."""
    if not all(boot in arm.order for boot in logs_a) or not all(boot in against.order for boot in logs_b):
        return None
    rows = [("a", arm.order[boot], value) for boot, value in logs_a.items()]
    rows += [("b", against.order[boot], value) for boot, value in logs_b.items()]
    return stats.drift(rows)


def contrast(
    method: str, arm: Side, against: Side, logs_a: Mapping[int, float], logs_b: Mapping[int, float]
) -> Contrast:
    """Arm / against by the comparison's method. `logs_a`, `logs_b`: boot -> log value."""
    if method == "paired":
        both = sorted(set(logs_a) & set(logs_b))
        return stats.paired([logs_a[boot] for boot in both], [logs_b[boot] for boot in both])
    if method == "detrended":
        return stats.detrended(
            {arm.order[boot]: value for boot, value in logs_a.items()},
            {against.order[boot]: value for boot, value in logs_b.items()},
        )
    return stats.welch(list(logs_a.values()), list(logs_b.values()))


def _points(
    method: str, arm: Side, against: Side, judge: Callable[[float, float | None], Call]
) -> tuple[PointVerdict, ...]:
    """Every position that any boot of both sides has, with Holm's correction over them."""
    found: list[tuple[int, Contrast]] = []
    for index in sorted({i for points in arm.values.values() for i in points}):
        logs = [
            {boot: math.log(points[index]) for boot, points in sorted(side.values.items()) if index in points}
            for side in (arm, against)
        ]
        if method == "paired":
            both = set(logs[0]) & set(logs[1])
            logs = [{boot: side[boot] for boot in sorted(both)} for side in logs]
        if logs[0] and logs[1]:
            found.append((index, contrast(method, arm, against, logs[0], logs[1])))
    adjusted = stats.holm([item.p for _, item in found])
    return tuple(
        PointVerdict(index, item, p, judge(item.ratio, p))
        for (index, item), p in zip(found, adjusted, strict=True)
    )
