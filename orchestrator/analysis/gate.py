"""The gate: did a run get worse than its reference by more than is allowed, beyond the noise? Pure.

One reference run: Welch on boots. From `ROLLING` reference runs on, runs themselves vary and that spread is known: the
new run is also set against the spread of run means, and the wider of the two intervals counts.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from orchestrator.analysis import stats
from orchestrator.analysis.compare import Summary, pooled, side
from orchestrator.analysis.setups import Difference
from orchestrator.analysis.stats import Contrast
from orchestrator.analysis.verdict import Side, compare, higher_is_better
from orchestrator.errors import DynspecError, NothingToClaim, Regression
from orchestrator.model.experiment import Gate

ROLLING = 4
State = Literal["pass", "regression", "inconclusive"]


@dataclass(frozen=True)
class ArmGate:
    """`drop`: share by which the metric got worse (below 0: better), with its 95 % interval."""

    arm: str
    state: State
    drop: float | None
    low: float | None
    high: float | None
    why: str
    more_boots: int | None = None


@dataclass(frozen=True)
class GateResult:
    state: State
    metric: str
    max_drop: float
    references: tuple[str, ...]
    arms: tuple[ArmGate, ...]
    unlike: tuple[Difference, ...]

    def error(self) -> DynspecError | None:
        """What a command raises: Regression (5), NothingToClaim (6), None when it passed."""
        details = tuple(f"{item.arm}: {item.why}" for item in self.arms if item.state == self.state)
        against = ", ".join(self.references) or "nothing"
        if self.state == "regression":
            return Regression(f"gate: {self.metric} got worse than in {against}", details=details)
        if self.state == "inconclusive":
            blocking = tuple(str(item) for item in self.unlike if item.blocks)
            return NothingToClaim(f"gate: nothing can be said against {against}", details=blocking or details)
        return None


def gate(
    new: Summary,
    references: Mapping[str, Summary],
    rule: Gate,
    unlike: Sequence[Difference] = (),
) -> GateResult:
    """`references`: run id -> summary, of the same host. `unlike`: from `setups.differences(..., same_place=True)`."""
    names = tuple(references)
    if not references or any(item.blocks for item in unlike):
        return GateResult("inconclusive", rule.metric, rule.max_drop, names, (), tuple(unlike))
    wanted = [arm for arm in new["arms"] if all(arm in run["arms"] for run in references.values())]
    lost = sorted({arm for run in references.values() for arm in run["arms"]} - set(new["arms"]))
    contrasts = {arm: _contrast(new, list(references.values()), arm, rule.metric) for arm in wanted}
    adjusted = stats.holm([item.p if item else None for item, _ in contrasts.values()])
    arms = [
        _without_lost_points(_judge(arm, item, sd, p, rule), _lost_points(new, references.values(), arm))
        for (arm, (item, sd)), p in zip(contrasts.items(), adjusted, strict=True)
    ]
    arms += [ArmGate(arm, "inconclusive", None, None, None, "this run did not measure it") for arm in lost]
    return GateResult(_overall(arms), rule.metric, rule.max_drop, names, tuple(arms), tuple(unlike))


def _overall(arms: Sequence[ArmGate]) -> State:
    states = {item.state for item in arms}
    if "regression" in states:
        return "regression"
    return "pass" if states == {"pass"} else "inconclusive"


def _lost_points(new: Summary, references: Collection[Summary], arm: str) -> list[int]:
    """Concurrencies that this run was to measure and has no valid point of, where every reference has one."""
    tried = dict.fromkeys(new["asked"], False)
    for point in new["arms"][arm]["points"]:
        tried[point["concurrency"]] |= any(boot["valid"] for boot in point["boots"])
    known = [
        {
            point["concurrency"]
            for point in run["arms"][arm]["points"]
            if any(b["valid"] for b in point["boots"])
        }
        for run in references
    ]
    return [c for c, valid in sorted(tried.items()) if not valid and all(c in run for run in known)]


def _without_lost_points(item: ArmGate, lost: Sequence[int]) -> ArmGate:
    """What broke at one load must not pass because the other loads did not."""
    if item.state != "pass" or not lost:
        return item
    where = ", ".join(map(str, lost))
    why = f"{item.why}, but no valid point at concurrency {where}, where the reference has one"
    return replace(item, state="inconclusive", why=why)


def _contrast(
    new: Summary, references: Sequence[Summary], arm: str, metric: str
) -> tuple[Contrast | None, float | None]:
    """New / reference over the common points, and the boot-to-boot spread."""
    mine, theirs = side(new, arm, metric), [side(run, arm, metric) for run in references]
    found = compare(metric, mine, pooled(theirs))
    if found.headline is None or len(references) < ROLLING:
        return found.headline, found.sd
    return _wider(found.headline, _against_runs(mine, theirs, found.headline_points)), found.sd


def _against_runs(mine: Side, theirs: Sequence[Side], points: Sequence[int]) -> Contrast | None:
    """The new run as one more draw from the spread of run means (a prediction interval)."""
    means = [_run_mean(run, points) for run in theirs]
    known = [mean for mean in means if mean is not None]
    own = _run_mean(mine, points)
    if own is None or len(known) < ROLLING:
        return None
    error = math.sqrt(stats.variance(known) * (1 + 1 / len(known)))
    return (
        stats.contrast(own - stats.mean(known), error, len(known) - 1, (1, len(known))) if error > 0 else None
    )


def _run_mean(run: Side, points: Sequence[int]) -> float | None:
    full = [boot for boot in run.values.values() if all(point in boot for point in points)]
    logs = [math.log(boot[point]) for boot in full for point in points]
    return stats.mean(logs) if logs else None


def _wider(a: Contrast, b: Contrast | None) -> Contrast:
    if b is None or a.p is None or b.p is None or b.p <= a.p:
        return a
    return Contrast(a.ratio, _moved(b.low, b, a), _moved(b.high, b, a), b.p, a.n_a, a.n_b, b.df)


def _moved(end: float | None, of: Contrast, to: Contrast) -> float | None:
    """An end of `of`'s interval, around `to`'s estimate: means over boots and over runs differ a little."""
    return None if end is None else end / of.ratio * to.ratio


def _judge(arm: str, item: Contrast | None, sd: float | None, p: float | None, rule: Gate) -> ArmGate:
    if item is None:
        return ArmGate(arm, "inconclusive", None, None, None, "no point is valid in both runs")
    drop, low, high = _as_drop(item, rule.metric)
    if p is None or low is None or high is None:
        return ArmGate(arm, "inconclusive", drop, None, None, item.why_no_test)
    allowed = f"allowed {rule.max_drop:.1%}"
    size = f"{_worse(drop)} ({_worse(low)} to {_worse(high)}), {allowed}"
    if p < stats.ALPHA and drop > rule.max_drop:
        return ArmGate(arm, "regression", drop, low, high, size)
    if high <= rule.max_drop:
        return ArmGate(arm, "pass", drop, low, high, size)
    needed = stats.boots_needed(sd, 1 + rule.max_drop) if sd else None
    more = None if needed is None else max(1, needed - min(item.n_a, item.n_b))
    hint = f"; {more} more boots an arm would show it" if more else ""
    return ArmGate(
        arm, "inconclusive", drop, low, high, f"{size}: more than that is not excluded{hint}", more
    )


def _worse(share: float) -> str:
    return f"{abs(share):.1%} {'worse' if share > 0 else 'better'}"


def _as_drop(item: Contrast, metric: str) -> tuple[float, float | None, float | None]:
    """A rate that falls and a latency that rises are both a drop above 0."""
    if higher_is_better(metric):
        return 1 - item.ratio, _minus(1, item.high), _minus(1, item.low)
    low, high = _minus(1, item.low), _minus(1, item.high)
    return item.ratio - 1, None if low is None else -low, None if high is None else -high


def _minus(one: float, ratio: float | None) -> float | None:
    return None if ratio is None else one - ratio


def gate_of_json(value: Mapping[str, Any]) -> GateResult:
    """What `gate_json` wrote."""
    return GateResult(
        value["state"],
        value["metric"],
        value["max_drop"],
        tuple(value["references"]),
        tuple(ArmGate(**item) for item in value["arms"]),
        tuple(Difference(**item) for item in value["unlike"]),
    )


def gate_json(result: GateResult) -> dict[str, Any]:
    """For `--json` and the run folder."""
    return {
        "schema": 1,
        "state": result.state,
        "metric": result.metric,
        "max_drop": result.max_drop,
        "references": list(result.references),
        "arms": [vars(item) for item in result.arms],
        "unlike": [vars(item) for item in result.unlike],
    }
