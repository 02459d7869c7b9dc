"""What switching speculation off and on costs: disabled tax, resume penalty, behaviour around the threshold. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from orchestrator.analysis import stats
from orchestrator.analysis.trace import Trace
from orchestrator.analysis.verdict import Comparison, Side, compare

Wanted = Callable[[int], bool]


@dataclass(frozen=True)
class Part:
    """One side of the threshold, against the arm that it should equal there. `at`: measured concurrencies."""

    against: str
    at: tuple[int, ...]
    comparison: Comparison | None  # None: no point there


def above_threshold(
    metric: str, dynamic: Side, baseline: Side, threshold: int, *, floor: float = 1.0
) -> Part:
    """Speculation off: the disabled tax is 1 - ratio to a server that never speculated. Sides keyed by concurrency."""
    return _part(metric, dynamic, baseline, lambda c: c > threshold, floor)


def up_to_threshold(metric: str, dynamic: Side, static: Side, threshold: int, *, floor: float = 1.0) -> Part:
    """Speculation on: what the ability to switch costs against the arm that always speculates."""
    return _part(metric, dynamic, static, lambda c: c <= threshold, floor)


def _part(metric: str, arm: Side, against: Side, wanted: Wanted, floor: float) -> Part:
    left, right = _only(arm, wanted), _only(against, wanted)
    at = sorted({c for points in left.values.values() for c in points})
    if not left.values or not right.values:
        return Part(against.name, tuple(at), None)
    return Part(against.name, tuple(at), compare(metric, left, right, floor=floor))


def _only(side: Side, wanted: Wanted) -> Side:
    kept = {boot: {c: v for c, v in points.items() if wanted(c)} for boot, points in side.values.items()}
    return Side(side.name, {boot: points for boot, points in kept.items() if points}, side.order)


@dataclass(frozen=True)
class ResumePenalty:
    """Accept length in the first log line after speculation came back, against the last line before it went off.

    As fine as the lines are: a server logs one in `decode_log_interval` steps. A line that a switch lies in counts
    plain steps as verify steps that accept nothing, so it is left out; what a resume costs within its first line is
    not seen.
    """

    resumes: int  # those with a line on both sides
    first: float
    before: float
    share: float  # first / before - 1; below 0 is a penalty


def resume_penalty(trace: Trace) -> ResumePenalty | None:
    """None where speculation never came back, or where no resume has a line of settled speculation on both sides."""
    stretches: dict[int, list[float]] = {}  # by the switches before it
    previous = 0
    for sample in trace.samples:
        whole = sample.switches == previous
        previous = sample.switches
        if whole and sample.accept_length and _speculating(trace, sample.switches):
            stretches.setdefault(sample.switches, []).append(sample.accept_length)
    pairs = []
    for place, lengths in stretches.items():
        earlier = [key for key in stretches if key < place]
        if earlier:  # the first stretch of a log follows a start, not a resume
            pairs.append((lengths[0], stretches[max(earlier)][-1]))
    if not pairs:
        return None
    first, before = (stats.mean(side) for side in zip(*pairs, strict=True))
    return ResumePenalty(len(pairs), first, before, first / before - 1)


def _speculating(trace: Trace, switches: int) -> bool:
    if not trace.switches:
        return True
    return trace.switches[switches - 1].speculating if switches else not trace.switches[0].speculating


@dataclass(frozen=True)
class Straddle:
    """Load that steps around the threshold, against steady load on both sides of it."""

    expected: float  # rate if switching cost nothing: the mean of both levels by the time spent on each
    measured: float
    change: float  # measured / expected - 1
    verdict: Literal["collapse", "cost", "fine"]


def straddle(
    measured: float,
    low: float,
    high: float,
    *,
    share_high: float = 0.5,
) -> Straddle:
    """Rates (tokens/s) under the stepping load and under steady load at its low and high level.

    `share_high`: share of the time on the high level. `collapse`: below even the slower of the two levels. `cost`:
    more than 3 % below the mean of both.
    """
    if min(measured, low, high) <= 0:
        raise ValueError("rates must be above 0")
    if not 0 <= share_high <= 1:
        raise ValueError("share_high must lie between 0 and 1")
    expected = share_high * high + (1 - share_high) * low
    change = measured / expected - 1
    verdict: Literal["collapse", "cost", "fine"] = "fine"
    if measured < min(low, high):
        verdict = "collapse"
    elif math.log(measured / expected) < -math.log(stats.EFFECT):
        verdict = "cost"
    return Straddle(expected, measured, change, verdict)
