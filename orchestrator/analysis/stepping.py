"""What a load that steps across a threshold says of each arm, for `summary.json`. Pure.

Three questions: does it reach the mean of the two steady loads, how does it do against the other arms under the same
steps, and do speculative steps accept less than those of an arm that never switches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.analysis import stats
from orchestrator.analysis.stats import Contrast
from orchestrator.analysis.study import Study
from orchestrator.analysis.switching import ResumePenalty, straddle
from orchestrator.analysis.validity import Finding
from orchestrator.model.experiment import Load
from orchestrator.model.result import ArmSummary, PointResult, PointSummary

SHARE, TRANSITIONS = "share_above", "transitions_per_s"
COMPARED = ("output_tps", "tpot_p50", "e2e_p50")


@dataclass(frozen=True)
class Steady:
    """Valid points of steady load at both levels, with the arms as they are here. `run`: where they were measured."""

    run: str
    points: Sequence[PointResult]

    def rate(self, arm: str, concurrency: int) -> float | None:
        """Mean over boots of the output tokens/s; None where no valid point tells."""
        found = [
            value
            for point in self.points
            if (point.arm, point.concurrency) == (arm, concurrency) and point.valid
            if (value := point.metrics.get("output_tps")) is not None and value > 0
        ]
        return stats.mean(found) if found else None

    def tells(self, *levels: int) -> bool:
        """Whether some arm has a rate at each of the levels."""
        arms = dict.fromkeys(point.arm for point in self.points)
        return any(all(self.rate(arm, level) is not None for level in levels) for arm in arms)


@dataclass(frozen=True)
class Stepping:
    """The stepping load of a run. `low`, `high`: requests in flight on either side of `around`.

    `resumes`: arm -> what each boot's log says. `made_up`: arms whose server makes its accept length up.
    """

    around: int
    low: int
    high: int
    period_s: float
    steady: Steady | None = None
    resumes: Mapping[str, Sequence[ResumePenalty]] = field(default_factory=dict)
    made_up: frozenset[str] = frozenset()


def unstepped(load: Load, span_s: float | None, share_above: float | None) -> Finding | None:
    """Why this was no load that steps. `span_s`: from the first to the last sending; `share_above`: of that time, the
    part with more than `load.around` requests in flight. None for a load that did step, and where nothing was sent."""
    if load.around is None or load.period_s is None or span_s is None:
        return None
    if not share_above:
        return Finding(
            "no_steps", f"the load never stepped: at no time were more than {load.around} in flight"
        )
    if span_s < load.period_s:
        text = f"the load lasted {span_s:.2g} s, less than one period of {load.period_s:g} s; raise requests_per_slot"
        return Finding("no_steps", text)
    return None


def stepping_json(load: Stepping, study: Study, floor: float) -> dict[str, Any]:
    """What holds for the load, and one entry an arm that has a valid point."""
    arms = [
        _arm(load, study, name, point, floor)
        for name, arm in study.folded.items()
        if (point := _valid(arm)) is not None
    ]
    return {
        "around": load.around,
        "low": load.low,
        "high": load.high,
        "period_s": load.period_s,
        "steady_run": load.steady and load.steady.run,
        "arms": arms,
    }


def _valid(arm: ArmSummary) -> PointSummary | None:
    """Every position of such a sweep has the same load; the first valid one speaks for the arm."""
    return next((point for point in arm.points if point.valid), None)


def _arm(load: Stepping, study: Study, name: str, point: PointSummary, floor: float) -> dict[str, Any]:
    told = {
        key: point.metrics[key].value for key in ("output_tps", SHARE, TRANSITIONS) if key in point.metrics
    }
    found: dict[str, Any] = {"arm": name, "index": point.index, **told}
    if steady := _against_steady(load, name, told):
        found["steady"] = steady
    if name in study.parts.dynamic:
        found["against"] = _against_arms(study, name, floor)
        if name not in load.made_up:
            found |= _resumes(load, study, name, point)
    return found


def _against_steady(load: Stepping, name: str, told: Mapping[str, float]) -> dict[str, Any] | None:
    """None where one of the three rates, or the time on each side, is unknown."""
    if load.steady is None or told.get("output_tps", 0) <= 0 or SHARE not in told:
        return None
    low, high = load.steady.rate(name, load.low), load.steady.rate(name, load.high)
    if low is None or high is None:
        return None
    result = straddle(told["output_tps"], low, high, share_high=told[SHARE])
    return {
        "low_tps": low,
        "high_tps": high,
        "expected_tps": result.expected,
        "change": result.change,
        "verdict": result.verdict,
    }


def _against_arms(study: Study, name: str, floor: float) -> list[dict[str, Any]]:
    """Against the baseline and the arm that always speculates, under the same steps."""
    others = [study.parts.baseline, study.parts.static_of.get(name)]
    found = []
    for other in (item for item in others if item is not None):
        entry: dict[str, Any] = {}
        for metric in COMPARED:
            compared = study.compare(name, other, metric, floor)
            if compared is not None and compared.headline is not None:
                entry[metric] = {"verdict": compared.call, **_change(compared.headline)}
        if entry:
            found.append({"arm": other, **entry})
    return found


def _change(head: Contrast) -> dict[str, Any]:
    """As shares: 0.05 = 5 % more. Without the ends of the interval where one boot has none."""
    ends = {"low": head.low, "high": head.high}
    shares = {key: end - 1 for key, end in ends.items() if end is not None}
    return {"change": head.ratio - 1, **shares, "n": min(head.n_a, head.n_b)}


def _resumes(load: Stepping, study: Study, name: str, point: PointSummary) -> dict[str, Any]:
    """By the patch's counters over the whole point, and by the log's lines around each resume."""
    found: dict[str, Any] = {}
    static = study.parts.static_of.get(name)
    other = _valid(study.folded[static]) if static in study.folded and static is not None else None
    mine, theirs = (item and item.metrics.get("accept_length") for item in (point, other))
    # Without the count of transitions the length may take plain steps for verify steps that accept nothing.
    if mine and theirs and theirs.value > 0 and point.metrics.get(TRANSITIONS) is not None:
        share = mine.value / theirs.value - 1
        found["accept"] = {"length": mine.value, "against": static, "theirs": theirs.value, "change": share}
    seen = load.resumes.get(name) or ()
    if seen:
        total = sum(item.resumes for item in seen)
        first = sum(item.first * item.resumes for item in seen) / total
        before = sum(item.before * item.resumes for item in seen) / total
        found["resume"] = {"resumes": total, "first": first, "before": before, "change": first / before - 1}
    return found
