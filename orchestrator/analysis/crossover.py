"""Where along concurrency an arm stops (or starts) being better than another, with an interval. Pure.

Between measured points each boot's log value is taken as linear in log concurrency. The interval of a crossing is the
set of concurrencies at which the two arms are not told apart at 95 % (the test turned round, as in Fieller's theorem),
between the last point that is surely better and the next that is surely worse. "Surely" is Holm-corrected over points.
Where a boot lacks a level in between, the interval is those two points and nothing finer (see `_bracketed`). Where an
arm switches speculation by itself in between there is no line at all: only the two points are told (`AcrossSwitch`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

from orchestrator.analysis import stats
from orchestrator.analysis.own_switch import STAYS, OwnSwitch
from orchestrator.analysis.stats import Contrast
from orchestrator.analysis.verdict import Comparison, PointVerdict, Side, compare, contrast, higher_is_better

GRID = 32  # steps between two measured points when looking for an edge
BISECTIONS = 30

Kind = Literal["never", "always", "partly", "crosses", "switches", "noise", "untested", "nothing"]
Turn = Literal["worse", "better"]


@dataclass(frozen=True)
class Crossing:
    """`turns`: what becomes of the arm's advantage as concurrency grows past here."""

    concurrency: float
    low: float | None
    high: float | None
    turns: Turn


@dataclass(frozen=True)
class AcrossSwitch:
    """The arm turns between two measured concurrencies between which it switches by itself; where, nothing tells.
    `seen`: it speculates at one of them alone. Otherwise it may have switched, by settings that are not known."""

    low: int
    high: int
    turns: Turn
    seen: bool


@dataclass(frozen=True)
class Crossover:
    """Plain answers: `never` better, `always` better (nowhere shown worse), `partly` (the same of half of the asked
    concurrencies or fewer, as the others do not count), `crosses`, inside the `noise` everywhere, `untested` (one
    boot: estimates without a claim), `nothing` to compare. `switches`: told apart, by an arm that switches speculation
    by itself, so that not every difference is of speculation (`off_at`) and not every turn a crossing."""

    arm: str
    against: str
    metric: str
    kind: Kind
    crossings: tuple[Crossing, ...]
    better_at: tuple[int, ...]
    worse_at: tuple[int, ...]
    unclear_at: tuple[int, ...]
    changes: Mapping[int, Contrast]  # concurrency -> ratio arm / against
    uncounted_at: tuple[int, ...] = ()  # asked, without a value that counts on both sides
    across_switch: tuple[AcrossSwitch, ...] = ()
    off_at: tuple[int, ...] = ()  # of `changes`, where neither side speculates


def crossover(
    metric: str,
    arm: Side,
    against: Side,
    *,
    offset: float = 1.0,
    shared_boots: bool = False,
    floor: float = 1.0,
    asked: Collection[int] = (),
    switch: OwnSwitch = STAYS,
    against_speculates: bool = False,
) -> Crossover:
    """`Side.values` are keyed by concurrency here (see `by_concurrency`).

    `asked`: concurrencies that were to be measured; the answer is of all of them, or it says which.
    `switch`: where the arm leaves off speculation by itself; `against_speculates`: the other one speculates at all.
    `offset`: compare with `against` times this, as for a plain step that costs more than the baseline's.
    """
    moved = Side(against.name, _scaled(against.values, offset), against.order)
    comparison = compare(metric, arm, moved, shared_boots=shared_boots, floor=floor)
    if not comparison.points:
        return Crossover(arm.name, against.name, metric, "nothing", (), (), (), (), {}, tuple(sorted(asked)))
    pair = _Pair(metric, arm, moved, comparison)
    off = frozenset() if against_speculates else switch.off_at & pair.changes.keys()
    # With plain steps on both sides it is no gain or loss of speculation that turns.
    told = [(low, high, turns) for low, high, turns in pair.turns() if not {low, high} <= off]
    crossings = tuple(pair.cross(*turn) for turn in told if not switch.inside(*turn[:2]))
    across = tuple(
        AcrossSwitch(*turn, seen=switch.seen(*turn[:2])) for turn in told if switch.inside(*turn[:2])
    )
    uncounted = tuple(sorted(set(asked) - set(pair.changes)))
    return Crossover(
        arm.name,
        against.name,
        metric,
        _kind(
            pair, bool(crossings), by_itself=bool(across or off), mostly=len(pair.changes) > len(uncounted)
        ),
        crossings,
        pair.at("better"),
        pair.at("worse"),
        pair.at("inconclusive"),
        pair.changes,
        uncounted,
        across,
        tuple(sorted(off)),
    )


@dataclass(frozen=True)
class _Pair:
    """The two sides, compared at each concurrency (a point's `index` here)."""

    metric: str
    arm: Side
    against: Side
    comparison: Comparison

    @cached_property
    def changes(self) -> dict[int, Contrast]:
        return {point.index: point.contrast for point in self.comparison.points}

    @property
    def tested(self) -> bool:
        return any(change.tested for change in self.changes.values())

    def at(self, call: str) -> tuple[int, ...]:
        return tuple(point.index for point in self.comparison.points if point.call == call)

    def turns(self) -> Iterator[tuple[int, int, Turn]]:
        """Between which two concurrencies the arm turns: surely, or by the estimates alone where nothing is tested."""
        return _sure_turns(self.comparison.points) if self.tested else _signs_turn(self.metric, self.changes)

    def cross(self, low: int, high: int, turns: Turn) -> Crossing:
        """Where in between, as finely as the boots tell."""
        if not self.tested:
            return _estimate(self.metric, low, high, self.changes)
        if _same_boots(low, high, self.arm, self.against):
            gain = _interpolated(self.metric, self.comparison.method, self.arm, self.against)
            return _crossing(low, high, turns, gain)
        return _bracketed(self.metric, low, high, self.changes)


def by_concurrency(
    values: Mapping[int, Mapping[int, float]], concurrency: Mapping[int, int]
) -> dict[int, dict[int, float]]:
    """Boot -> concurrency -> value; positions of the sweep with the same concurrency become their geometric mean."""
    folded: dict[int, dict[int, float]] = {}
    for boot, points in values.items():
        logs: dict[int, list[float]] = {}
        for index, value in points.items():
            logs.setdefault(concurrency[index], []).append(math.log(value))
        folded[boot] = {c: math.exp(stats.mean(items)) for c, items in sorted(logs.items())}
    return folded


def _scaled(values: Mapping[int, Mapping[int, float]], factor: float) -> dict[int, dict[int, float]]:
    return {boot: {c: value * factor for c, value in points.items()} for boot, points in values.items()}


def _kind(pair: _Pair, crossed: bool, *, by_itself: bool, mostly: bool) -> Kind:
    """`by_itself`: not every difference is of speculation. `mostly`: of more than half of the asked concurrencies."""
    better, worse = pair.at("better"), pair.at("worse")
    if not pair.tested:
        return "untested"
    if by_itself and (better or worse):
        return "switches"
    if crossed:
        return "crosses"
    if not mostly and (better or worse):
        return "partly"
    if better:
        return "always"
    return "never" if worse else "noise"


Gain = Callable[[float], tuple[float, float | None]]  # concurrency -> (log gain, above 0 is better; p)


def _interpolated(metric: str, method: str, arm: Side, against: Side) -> Gain:
    """The contrast at any concurrency inside the measured range."""
    sign = 1 if higher_is_better(metric) else -1

    def at(concurrency: float) -> tuple[float, float | None]:
        a, b = (_values_at(side, concurrency) for side in (arm, against))
        if method == "paired":
            both = sorted(set(a) & set(b))
            a, b = {boot: a[boot] for boot in both}, {boot: b[boot] for boot in both}
        if not a or not b:
            return 0.0, None
        here = contrast(method, arm, against, a, b)
        return sign * math.log(here.ratio), here.p

    return at


def _values_at(side: Side, concurrency: float) -> dict[int, float]:
    """Log value per boot, linear in log concurrency; boots that lack a neighbour are left out."""
    known = sorted({c for points in side.values.values() for c in points})
    low = max(c for c in known if c <= concurrency)
    high = min(c for c in known if c >= concurrency)
    share = 0.0 if low == high else math.log(concurrency / low) / math.log(high / low)
    return {
        boot: (1 - share) * math.log(points[low]) + share * math.log(points[high])
        for boot, points in sorted(side.values.items())
        if low in points and high in points
    }


def _same_boots(low: int, high: int, *sides: Side) -> bool:
    """Whether each side has the same boots at all of its levels from `low` to `high`."""
    for side in sides:
        inside = [{c for c in points if low <= c <= high} for points in side.values.values()]
        if any(levels and levels != set().union(*inside) for levels in inside):
            return False
    return True


def _bracketed(metric: str, low: int, high: int, changes: Mapping[int, Contrast]) -> Crossing:
    """Between two sure points where boots lack a level: no curve over boots is whole there.

    Boots come and go at the levels, so a mean over those that reach a concurrency jumps beside a level, and a jump
    would pass for a crossing. The estimate joins the levels' own contrasts, each from all of its boots, and is
    continuous. The interval is what the tests at both ends carry by themselves: left of it the arm is surely on one
    side, right of it on the other.
    """
    inside = {c: change for c, change in changes.items() if low <= c <= high}
    first = _estimate(metric, *next(_signs_turn(metric, inside))[:2], changes)
    return Crossing(first.concurrency, float(low), float(high), first.turns)


def _crossing(low: int, high: int, turns: Turn, gain: Gain) -> Crossing:
    """Between two measured concurrencies with opposite sure calls."""
    sign = 1 if turns == "worse" else -1

    def leaves(c: float) -> bool:  # no longer surely on the left's side
        here, p = gain(c)
        return p is None or p >= stats.ALPHA or sign * here <= 0

    def arrives(c: float) -> bool:  # seen from the right: no longer surely on the right's side
        here, p = gain(c)
        return p is None or p >= stats.ALPHA or sign * here >= 0

    def crossed(c: float) -> bool:
        return sign * gain(c)[0] <= 0

    a, b = float(low), float(high)
    return Crossing(_first(crossed, a, b), _first(leaves, a, b), _first(arrives, b, a), turns)


def _first(test: Callable[[float], bool], start: float, end: float) -> float:
    """First concurrency on the way from start to end at which `test` is true: a log grid, then bisection."""
    steps: list[float] = [start * (end / start) ** (step / GRID) for step in range(GRID + 1)]
    before = start
    for here in steps:
        if test(here):
            break
        before = here
    else:
        return end
    for _ in range(BISECTIONS if before != here else 0):
        middle = math.sqrt(before * here)
        before, here = (before, middle) if test(middle) else (middle, here)
    return here


def _sure_turns(points: tuple[PointVerdict, ...]) -> Iterator[tuple[int, int, Turn]]:
    """Neighbours among the points with a sure call whose calls differ (`index` is the concurrency here)."""
    sure = [point for point in points if point.call != "inconclusive"]
    for left, right in pairwise(sure):
        if left.call != right.call:
            yield left.index, right.index, "worse" if left.call == "better" else "better"


def _signs_turn(metric: str, changes: Mapping[int, Contrast]) -> Iterator[tuple[int, int, Turn]]:
    """Sign changes of the estimates alone. A level that is exactly even takes no side."""
    sides = [(c, _gain(metric, change) > 0) for c, change in sorted(changes.items()) if change.ratio != 1]
    for (low, left), (high, right) in pairwise(sides):
        if left != right:
            yield low, high, "worse" if left else "better"


def _estimate(metric: str, low: int, high: int, changes: Mapping[int, Contrast]) -> Crossing:
    """Where the line between two estimates of opposite sign crosses, without an interval."""
    left, right = _gain(metric, changes[low]), _gain(metric, changes[high])
    at = low * math.exp(math.log(high / low) * left / (left - right))
    return Crossing(at, None, None, "worse" if left > 0 else "better")


def _gain(metric: str, change: Contrast) -> float:
    """Log gain: above 0 is better."""
    return math.log(change.ratio) if higher_is_better(metric) else -math.log(change.ratio)
