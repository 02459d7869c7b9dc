"""summary.json of a run folder, computed anew from its records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.analysis.native_acted import natively_plain
from orchestrator.analysis.summary import summarise
from orchestrator.model.experiment import Experiment
from orchestrator.model.speculation import threshold
from orchestrator.native_adaptive import CONFIG_FLAG
from orchestrator.runner.points import measured_arms, read_points
from orchestrator.runner.run_info import logged
from orchestrator.runner.served import measuring_order, served_arms, shared_arms
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
        natively_plain(read.points, _native_thresholds(plan, experiment), logs),
        arms=measured_arms(experiment, read.points, planned),
        boot_order=measuring_order(store),
        shared=shared_arms(read.points),
        arm_notes=read.arm_notes,
        outputs=read.outputs,
        stepping=stepping_of(store, experiment, logs),
        retracted={boot: trace.retracted for boot, trace in logs.items()},
    )


def _native_thresholds(plan: Mapping[str, Any], experiment: Experiment) -> dict[str, int]:
    """Arm -> threshold of those whose release has it without a patch; none where the load is not steady."""
    if experiment.sweep.load.kind != "closed":
        return {}
    native = {arm.name for arm in served_arms(plan, experiment) if CONFIG_FLAG in arm.args}
    found = {arm.name: threshold(arm) for arm in experiment.arms if arm.name in native}
    return {name: value for name, value in found.items() if value is not None}
