"""summary.json of a run folder, computed anew from its records."""

from __future__ import annotations

from typing import Any

from orchestrator.analysis.summary import summarise
from orchestrator.model.experiment import Experiment
from orchestrator.runner.points import measured_arms, read_points
from orchestrator.runner.run_info import logged
from orchestrator.runner.served import measuring_order, shared_arms
from orchestrator.runner.stepping import stepping_of
from orchestrator.store import PLAN, RunStore

Summary = dict[str, Any]


def make_summary(store: RunStore, experiment: Experiment) -> Summary:
    """summary.json as a value, from every finished point."""
    read = read_points(store, experiment)
    plan = store.section_left(PLAN, "plan")
    planned = [arm for boot in plan.get("boots") or () for arm in (boot["arm"], *(boot.get("shares") or ()))]
    logs = {(arm, boot): trace for arm, boot, trace in logged(store)}
    return summarise(
        read.points,
        arms=measured_arms(experiment, read.points, planned),
        boot_order=measuring_order(store),
        shared=shared_arms(read.points),
        arm_notes=read.arm_notes,
        outputs=read.outputs,
        stepping=stepping_of(store, experiment, logs),
        retracted={boot: trace.retracted for boot, trace in logs.items()},
    )
