"""summary.json of a run folder, computed anew from its records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.analysis.native_acted import natively_plain
from orchestrator.analysis.queueing import Load, with_queueing
from orchestrator.analysis.summary import summarise
from orchestrator.analysis.trace import Trace
from orchestrator.model.experiment import Experiment
from orchestrator.model.speculation import threshold
from orchestrator.native_adaptive import CONFIG_FLAG
from orchestrator.records.boots import logged
from orchestrator.records.events import measuring_order
from orchestrator.records.planned import plan_left
from orchestrator.records.points import measured_arms, read_points
from orchestrator.records.restarts import first_starts
from orchestrator.records.served import home_of, planned_arms, served_arms, shared_arms
from orchestrator.records.spans import load_span
from orchestrator.records.stepping import stepping_of
from orchestrator.store import RunStore

Summary = dict[str, Any]


def make_summary(store: RunStore, experiment: Experiment) -> Summary:
    """summary.json as a value, from every finished point."""
    read = read_points(store, experiment)
    plan = plan_left(store)
    logs = {(arm, boot): trace for arm, boot, trace in logged(store)}
    points = natively_plain(read.points, _native_thresholds(plan, experiment), logs)
    if experiment.sweep.load.kind == "closed":
        points = with_queueing(points, _loads(store, logs))
    return summarise(
        points,
        arms=measured_arms(experiment, read.points, planned_arms(plan)),
        boot_order=measuring_order(store),
        shared=shared_arms(read.points),
        arm_notes=read.arm_notes,
        outputs=read.outputs,
        stepping=stepping_of(store, experiment, logs),
        retracted={boot: trace.retracted for boot, trace in logs.items()},
        asked=experiment.sweep.concurrency if experiment.sweep.load.kind == "closed" else (),
    )


def _native_thresholds(plan: Mapping[str, Any], experiment: Experiment) -> dict[str, int]:
    """Arm -> threshold of those whose release has it without a patch; none where the load is not steady."""
    if experiment.sweep.load.kind != "closed":
        return {}
    native = {arm.name for arm in served_arms(plan, experiment) if CONFIG_FLAG in arm.args}
    found = {arm.name: threshold(arm) for arm in experiment.arms if arm.name in native}
    return {name: value for name, value in found.items() if value is not None}


def _loads(store: RunStore, logs: Mapping[tuple[str, int], Trace]) -> dict[tuple[str, int, int], Load]:
    """When each point was measured, with the log of its boot; without those that do not tell."""
    began = first_starts(store)
    found = {}
    for stored in store.points():
        home = home_of(stored.meta, stored.arm, stored.boot)
        trace, started = logs.get((home.arm, home.boot)), began.get((home.arm, home.boot))
        span = load_span(stored.meta)
        if trace is not None and started is not None and span is not None:
            found[stored.arm, stored.boot, stored.index] = Load(*span, started, trace)
    return found
