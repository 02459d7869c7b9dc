"""Points of all boots -> `summary.json` as a dict (schema 1). Pure: records and clocks are somebody else's.

A point of one boot that is not valid is shown and left out of the numbers; a point with no valid boot at all shows its
numbers under `valid: false`, and nothing is claimed from it. Absent metrics are absent, never 0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from orchestrator.analysis import stats
from orchestrator.analysis.crossover import Crossover
from orchestrator.analysis.equality import Outputs, equality
from orchestrator.analysis.roles import roles, roles_of_names
from orchestrator.analysis.stats import Contrast
from orchestrator.analysis.stepping import Stepping, stepping_json
from orchestrator.analysis.study import Study, ThresholdCost
from orchestrator.analysis.switching import Part
from orchestrator.analysis.tune import Tuned, is_tune, tuned
from orchestrator.analysis.verdict import Comparison, noise_floor
from orchestrator.model.experiment import Arm
from orchestrator.model.result import ArmSummary, Interval, PointResult, PointSummary

SCHEMA = 1
HEADLINE = "output_tps"
LATENCY = "tpot_p50"


def summarise(
    points: Sequence[PointResult],
    *,
    arms: Sequence[Arm] = (),
    boot_order: Sequence[tuple[str, int]] = (),
    shared: Sequence[Collection[str]] = (),
    metric: str = HEADLINE,
    arm_notes: Mapping[str, Sequence[str]] | None = None,
    outputs: Mapping[str, Sequence[Outputs]] | None = None,
    stepping: Stepping | None = None,
    retracted: Mapping[tuple[str, int], int] | None = None,
    asked: Collection[int] = (),
) -> dict[str, Any]:
    """Fold `points` into the summary.

    `arms`: the experiment's, in its order; without them names decide. `boot_order`: (arm, boot) as they ran, for the
    drift check. `shared`: groups of arms that were measured in the same boots. `outputs`:
    per arm the digests of each boot (`equality.digest_of`). `stepping`: of a load that steps across a threshold.
    `retracted`: requests that the server of a boot took back for lack of KV memory, where its log was read.
    `asked`: concurrencies of the sweep; some may have no point at all in a run that was cut short.
    """
    names = [arm.name for arm in arms] or list(dict.fromkeys(point.arm for point in points))
    parts = roles(arms) if arms else roles_of_names(names)
    folded = {name: fold_arm(name, points, (arm_notes or {}).get(name, ())) for name in names}
    study = Study(folded, parts, boot_order, shared, asked)
    twins = [study.compare(a, b, metric) for a, b in parts.twins]
    floor = noise_floor([item for item in twins if item])
    verdicts = [study.compare(a, b, metric, floor) for a, b in parts.pairs]
    advice = study.recommendation(metric, arms, floor)
    threshold = _tuned(points, arms, metric)
    return {
        "schema": SCHEMA,
        "metric": metric,
        "asked": sorted(set(asked) | {point.concurrency for point in points}),
        "arms": {name: _arm_json(folded[name]) for name in names},
        "roles": asdict(parts),
        "verdicts": [_verdict_json(item, folded[item.arm]) for item in verdicts if item],
        "twins": [_verdict_json(item, folded[item.arm]) for item in twins if item],
        "noise_floor": floor - 1,
        "crossover": [_crossover_json(item) for item in study.crossovers((HEADLINE, LATENCY), floor)],
        "costs": [] if stepping else [_cost_json(item) for item in study.costs(metric, floor)],
        "equality": _equality_json(outputs or {}, parts.baseline),
        "straddle": stepping and stepping_json(stepping, study, floor),
        "kv_retractions": [
            {"arm": arm, "boot": boot, "requests": count}
            for (arm, boot), count in (retracted or {}).items()
            if count
        ],
        "recommendation": advice and asdict(advice),
        "tune": threshold and asdict(threshold.recommendation),
        **({"tune_changes": _tune_changes_json(threshold)} if threshold else {}),
    }


def _tuned(points: Sequence[PointResult], arms: Sequence[Arm], metric: str) -> Tuned | None:
    """What `dynspec tune` answers; None for the arms of any other run."""
    if not is_tune(arms):
        return None
    return tuned(points, arms[0], metric)


def _tune_changes_json(found: Tuned) -> list[dict[str, Any]]:
    """Always speculating against always plain, at each concurrency that has a valid pair."""
    return [
        {"concurrency": level, "verdict": found.call_at(level), **contrast_json(change)}
        for level, change in found.evidence.changes.items()
    ]


def unclaimable(summary: Mapping[str, Any]) -> tuple[str, ...]:
    """Why nothing can be claimed from what was measured (exit 6); empty where something can.

    Every arm needs a valid point, and every pair that is to be compared a point that is valid on both sides. One boot
    an arm is no fault here: the report gives estimates then, and no verdict.
    """
    reasons = []
    for name, arm in summary["arms"].items():
        if not any(point["valid"] for point in arm["points"]):
            reasons.append(f"{name} has no valid point{_named([arm])}")
    for verdict in summary["verdicts"]:
        if "change" not in verdict:
            pair = f"{verdict['arm']} and {verdict['against']}"
            reasons.append(f"{pair} have no {_lacking(summary, verdict)}{_causes(summary, verdict)}")
    return tuple(reasons)


def _lacking(summary: Mapping[str, Any], verdict: Mapping[str, Any]) -> str:
    """What a pair without a headline does not have: boots without all their points are in none."""
    common = set.intersection(
        *(
            {point["concurrency"] for point in summary["arms"][name]["points"] if point["valid"]}
            for name in (verdict["arm"], verdict["against"])
        )
    )
    if not common:
        return "valid point in common"
    some = ", ".join(map(str, sorted(common)))
    return f"boot in common that has all its points, only points at concurrency {some}"


def _causes(summary: Mapping[str, Any], verdict: Mapping[str, Any]) -> str:
    return _named([summary["arms"][name] for name in (verdict["arm"], verdict["against"])])


def _named(arms: Sequence[Mapping[str, Any]]) -> str:
    """The findings that made points of these arms invalid, in parentheses; empty where there are none."""
    points = [point for arm in arms for point in arm["points"]]
    causes = dict.fromkeys(reason.split(":")[0] for point in points for reason in point["reasons"])
    return f" ({', '.join(causes)})" if causes else ""


def fold_arm(name: str, points: Sequence[PointResult], notes: Sequence[str] = ()) -> ArmSummary:
    """One arm over its boots, by position in the sweep."""
    own = [point for point in points if point.arm == name]
    by_index: dict[int, list[PointResult]] = {}
    for point in sorted(own, key=lambda item: (item.index, item.boot)):
        by_index.setdefault(point.index, []).append(point)
    folded = tuple(_fold_point(boots) for boots in by_index.values())
    return ArmSummary(name, len({point.boot for point in own}), folded, tuple(notes))


def _fold_point(boots: Sequence[PointResult]) -> PointSummary:
    good = [point for point in boots if point.valid]
    return PointSummary(
        boots[0].index,
        boots[0].concurrency,
        bool(good),
        _by_boot(boots, [point.reasons for point in boots]),
        _intervals(good or boots),
        sum(point.ok for point in boots),
        sum(point.failed for point in boots),
        sum(point.attempted for point in boots),
        tuple(boots),
        _by_boot(boots, [point.notes for point in boots]),
    )


def _by_boot(boots: Sequence[PointResult], texts: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Each text once; the boots are named where not all of them have it."""
    seen: dict[str, list[int]] = {}
    for point, own in zip(boots, texts, strict=True):
        for text in own:
            seen.setdefault(text, []).append(point.boot)
    return tuple(
        text if len(numbers) == len(boots) else f"{text} (boot {', '.join(map(str, numbers))})"
        for text, numbers in seen.items()
    )


def _intervals(boots: Sequence[PointResult]) -> dict[str, Interval]:
    names = dict.fromkeys(name for point in boots for name in point.metrics)
    samples = {
        name: [value for point in boots if (value := point.metrics.get(name)) is not None] for name in names
    }
    return {name: stats.interval(values) for name, values in samples.items() if values}


def _arm_json(arm: ArmSummary) -> dict[str, Any]:
    return {
        "boots": arm.boots,
        "notes": list(arm.notes),
        "points": [_point_json(point) for point in arm.points],
    }


def _point_json(point: PointSummary) -> dict[str, Any]:
    return {
        "index": point.index,
        "concurrency": point.concurrency,
        "valid": point.valid,
        "reasons": list(point.reasons),
        "notes": list(point.notes),
        "ok": point.ok,
        "failed": point.failed,
        "attempted": point.attempted,
        "metrics": {name: asdict(item) for name, item in point.metrics.items()},
        "boots": [_boot_json(boot) for boot in point.boots],
    }


def _boot_json(boot: PointResult) -> dict[str, Any]:
    return {
        "boot": boot.boot,
        "valid": boot.valid,
        "reasons": list(boot.reasons),
        "ok": boot.ok,
        "failed": boot.failed,
        "attempted": boot.attempted,
        "warmup_requests": boot.warmup_requests,
        "bodies_sha256": boot.bodies_sha256,
        **boot.extra,
        "metrics": {name: value for name, value in boot.metrics.items() if value is not None},
    }


def contrast_json(item: Contrast | None) -> dict[str, Any]:
    """`change`, `low`, `high` as shares: 0.05 = 5 % more. Absent what is not known."""
    if item is None:
        return {}
    shares = {
        "change": item.ratio - 1,
        "low": _minus_one(item.low),
        "high": _minus_one(item.high),
        "p": item.p,
    }
    return {key: value for key, value in shares.items() if value is not None} | {"n": min(item.n_a, item.n_b)}


def _minus_one(value: float | None) -> float | None:
    return None if value is None else value - 1


def _verdict_json(item: Comparison, arm: ArmSummary) -> dict[str, Any]:
    concurrency = {point.index: point.concurrency for point in arm.points}
    return {
        "arm": item.arm,
        "against": item.against,
        "metric": item.metric,
        "verdict": item.call,
        **contrast_json(item.headline),
        "method": item.method,
        "points_in_headline": [concurrency[index] for index in item.headline_points],
        "points": [
            {
                "index": point.index,
                "concurrency": concurrency[point.index],
                "verdict": point.call,
                **contrast_json(point.contrast),
                "p_holm": point.p_holm,
            }
            for point in item.points
        ],
        "power": _power_json(item),
        "drift": None if item.drift is None else {**asdict(item.drift), "seen": item.drift.seen},
        "notes": list(item.notes),
    }


def _power_json(item: Comparison) -> dict[str, Any]:
    boots = item.headline and min(item.headline.n_a, item.headline.n_b)
    more = None if item.boots_needed is None else max(0, item.boots_needed - (boots or 0))
    return {
        "effect": stats.EFFECT - 1,
        "wanted": stats.POWER,
        "at_boots": boots,
        "power": item.power,
        "more_boots": more,
        "detectable": None if item.detectable is None else item.detectable - 1,
        "boot_sd": item.sd,
    }


def _equality_json(outputs: Mapping[str, Sequence[Outputs]], baseline: str | None) -> list[dict[str, Any]]:
    if baseline is None or not outputs.get(baseline):
        return []
    arms = [arm for arm, boots in outputs.items() if arm != baseline and boots]
    return [asdict(equality(arm, outputs[arm], outputs[baseline])) for arm in arms]


def _cost_json(item: ThresholdCost) -> dict[str, Any]:
    above, up_to = _part_json(item.above), _part_json(item.up_to)
    return {"arm": item.arm, "threshold": item.threshold, "above": above, "up_to": up_to}


def _part_json(part: Part | None) -> dict[str, Any] | None:
    if part is None:
        return None
    called = {"verdict": part.comparison.call} if part.comparison else {}
    change = contrast_json(part.comparison.headline) if part.comparison else {}
    return {"against": part.against, "at": list(part.at), **called, **change}


def _crossover_json(item: Crossover) -> dict[str, Any]:
    return {
        "arm": item.arm,
        "against": item.against,
        "metric": item.metric,
        "kind": item.kind,
        "crossings": [asdict(crossing) for crossing in item.crossings],
        "across_switch": [asdict(turn) for turn in item.across_switch],
        "off_at": list(item.off_at),
        "better_at": list(item.better_at),
        "worse_at": list(item.worse_at),
        "unclear_at": list(item.unclear_at),
        "uncounted_at": list(item.uncounted_at),
        "changes": [{"concurrency": c, **contrast_json(change)} for c, change in item.changes.items()],
    }
