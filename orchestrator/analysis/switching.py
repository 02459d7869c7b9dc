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
    """Accept length right after speculation comes back, against that of settled speculation.

    As fine as the samples are: a server logs one line in `decode_log_interval` steps.
    """

    resumes: int
    first: float  # mean accept length of the samples within `settle_s` of a resume
    settled: float
    share: float  # first / settled - 1; below 0 is a penalty


def resume_penalty(trace: Trace, settle_s: float = 2.0) -> ResumePenalty | None:
    """None where speculation never came back, or where either kind of sample is missing."""
    resumes = [switch.t_s for switch in trace.switches if switch.speculating]
    # The first "on" of a log may be the start; only one that follows an "off" is a resume.
    off = [switch.t_s for switch in trace.switches if not switch.speculating]
    resumes = [t for t in resumes if off and t > off[0]]
    first: list[float] = []
    settled: list[float] = []
    for sample in trace.samples:
        if sample.accept_length is None or not trace.speculating_at(sample.t_s):
            continue
        since = [sample.t_s - t for t in resumes if t <= sample.t_s]
        (first if since and min(since) <= settle_s else settled).append(sample.accept_length)
    if not resumes or not first or not settled:
        return None
    return ResumePenalty(
        len(resumes), stats.mean(first), stats.mean(settled), stats.mean(first) / stats.mean(settled) - 1
    )


@dataclass(frozen=True)
class Straddle:
    """Load that steps around the threshold, against steady load on both sides of it."""

    switches_per_s: float | None
    expected: float  # rate if switching cost nothing: half of the time on each level
    measured: float
    change: float  # measured / expected - 1
    verdict: Literal["collapse", "cost", "fine"]


def straddle(
    measured: float, low: float, high: float, switches: int | None = None, duration_s: float | None = None
) -> Straddle:
    """Rates (tokens/s) under the stepping load and under steady load at its low and high level.

    `collapse`: below even the slower of the two levels. `cost`: more than 3 % below the mean of both.
    """
    if min(measured, low, high) <= 0:
        raise ValueError("rates must be above 0")
    expected = (low + high) / 2
    change = measured / expected - 1
    rate = switches / duration_s if switches is not None and duration_s else None
    verdict: Literal["collapse", "cost", "fine"] = "fine"
    if measured < min(low, high):
        verdict = "collapse"
    elif math.log(measured / expected) < -math.log(stats.EFFECT):
        verdict = "cost"
    return Straddle(rate, expected, measured, change, verdict)
