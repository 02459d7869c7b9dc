"""What a run with a stepping load is set against: its own logs, and a run of steady load at both of its levels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orchestrator.analysis.evidence import simulates_acceptance
from orchestrator.analysis.setups import used_gpus
from orchestrator.analysis.stepping import Steady, Stepping
from orchestrator.analysis.switching import ResumePenalty, resume_penalty
from orchestrator.analysis.trace import Trace
from orchestrator.errors import DynspecError
from orchestrator.load.point import straddle_bounds
from orchestrator.model.experiment import Experiment, Load, Sweep
from orchestrator.records.begun import begun_experiment
from orchestrator.records.info import is_simulated
from orchestrator.records.points import read_points
from orchestrator.store import FACTS, OUTCOME, RunStore


def stepping_of(
    store: RunStore, experiment: Experiment, logs: Mapping[tuple[str, int], Trace]
) -> Stepping | None:
    """None for other loads. `logs`: of each boot, by arm and number."""
    load = experiment.sweep.load
    if load.kind != "straddle" or load.around is None or load.period_s is None:
        return None
    low, high = straddle_bounds(load.around)
    resumes: dict[str, list[ResumePenalty]] = {}
    for (arm, _), trace in logs.items():
        if experiment.sweep.share_boot:
            break  # the log of a shared boot is of several thresholds
        if (penalty := resume_penalty(trace)) is not None:
            resumes.setdefault(arm, []).append(penalty)
    made_up = frozenset(arm.name for arm in experiment.arms if simulates_acceptance(arm))
    steady = steady_beside(store, experiment, (low, high))
    return Stepping(load.around, low, high, load.period_s, steady, resumes, made_up)


def steady_beside(store: RunStore, experiment: Experiment, levels: tuple[int, int]) -> Steady | None:
    """The latest finished run in the same results folder with the same set-up and valid points of steady load at both
    levels; None without one."""
    for path in sorted(store.folder.parent.glob(f"*/{OUTCOME}"), reverse=True):
        other = RunStore(path.parent)
        if other.run_id == store.run_id:
            continue
        try:
            begun = begun_experiment(other)
            if set(levels) <= set(begun.sweep.concurrency) and _alike(store, experiment, other, begun):
                found = Steady(other.run_id, read_points(other, begun).points)
                if found.tells(*levels):
                    return found
        except DynspecError:
            continue  # an incomplete or older run folder is no reference
    return None


def _alike(store: RunStore, mine: Experiment, other: RunStore, theirs: Experiment) -> bool:
    return (
        theirs.sweep.load.kind == "closed"
        and theirs.server == mine.server
        and theirs.arms == mine.arms
        and _work(theirs.sweep) == _work(mine.sweep)
        and _place(other, theirs) == _place(store, mine)
        and is_simulated(other) == is_simulated(store)
    )


def _work(sweep: Sweep) -> Sweep:
    """The sweep without what may differ: which load, how much of it, how often."""
    return replace(
        sweep,
        concurrency=(),
        load=Load(),
        requests_per_slot=0,
        min_requests=0,
        warmup_requests_per_slot=0,
        repeats=0,
    )


def _place(store: RunStore, experiment: Experiment) -> tuple[Any, ...]:
    facts = store.section(FACTS, "facts")
    tree = facts.get("tree") or {}
    gpus = [(gpu.get("name"), gpu.get("driver")) for gpu in used_gpus(facts, experiment.node.gpus)]
    return facts.get("host"), tree.get("package"), tree.get("version"), gpus
