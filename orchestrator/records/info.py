"""What a report says beside its numbers, from a run folder: provenance, failed boots, each boot over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from orchestrator.analysis.gate import GateResult
from orchestrator.analysis.setups import used_gpus
from orchestrator.command import node_command
from orchestrator.model.experiment import Experiment, Gpus, Prompts
from orchestrator.model.result import Outcome, RunInfo
from orchestrator.records.boots import failure_cards, traces
from orchestrator.records.damage import damage
from orchestrator.records.events import events_of
from orchestrator.records.lockfile import stored_lock
from orchestrator.records.planned import plan_left
from orchestrator.records.unfinished import unfinished
from orchestrator.report.gate_text import gate_lines
from orchestrator.report.text import listed
from orchestrator.store import FACTS, OUTCOME, SERVER_INFO, RunStore, from_here, json_object

SIMULATED_KEY = "simulated"  # the stand-in engine says so in /server_info
_UNKNOWN = "unknown: facts.json is lost"


def run_info(
    store: RunStore,
    experiment: Experiment,
    outcome: Outcome | None = None,
    gate: GateResult | None = None,
) -> RunInfo:
    """`outcome`: of a run whose outcome.json is not written yet. `gate`: what its gate said."""
    plan, facts = plan_left(store), store.section_left(FACTS, "facts")
    ended = outcome or _stored_outcome(store)
    first = next(events_of(store), {})
    prompts = experiment.sweep.prompts
    return RunInfo(
        run_id=store.run_id,
        name=experiment.name,
        host=experiment.node.host,
        restore=node_command("restore", experiment.node),
        folder=str(from_here(store.folder)),
        started_utc=str(first.get("t", "")),
        ended_utc=ended.ended_utc if ended else "",
        state=ended.state if ended else "",
        message=_why(store, ended) if ended else "",
        simulated=is_simulated(store),
        load_from=experiment.sweep.load_from,
        load=experiment.sweep.load.kind,
        prompts=_prompts(prompts),
        prompts_random=prompts.source == "input_ids" and prompts.path is None,
        workers=_workers(plan),
        unsupported={arm: str(why) for arm, why in (plan.get("unsupported") or {}).items()},
        provenance=_provenance(store, facts, experiment, plan),
        warnings=tuple(plan.get("warnings") or ()),
        failures=failure_cards(store, failed=ended is not None and ended.state in ("failed", "dirty")),
        traces=traces(store, experiment.node.gpus),
        gate=tuple(gate_lines(store.run_id, gate)) if gate else (),
        damage=damage(store, ended=outcome is not None),
        unfinished=unfinished(store, ended),
    )


def _why(store: RunStore, ended: Outcome) -> str:
    """What ended the run. The outcome of one that left its node dirty tells of the node; an event tells of the run."""
    if ended.state != "dirty":
        return ended.message
    why = ""
    for event in events_of(store):
        if event["event"] in ("planned", "failed"):  # an earlier part of a resumed run failed for itself
            why = str(event.get("text", ""))
    return why


def is_simulated(store: RunStore) -> bool:
    """Said in several places, so that the loss of one file does not turn a simulated run into a real one."""
    if any(stored.meta.get(SIMULATED_KEY) for stored in store.points()):
        return True
    if "Simulated" in str(store.section_left(FACTS, "facts")):
        return True
    return any(json_object(path).get(SIMULATED_KEY) for path in _server_infos(store))


def _server_infos(store: RunStore) -> Iterable[Path]:
    return sorted(store.folder.glob(f"arms/*/boot-*/{SERVER_INFO}"))


def _stored_outcome(store: RunStore) -> Outcome | None:
    if not store.finished:
        return None
    found = store.section_left(OUTCOME, "outcome")
    fields = ("exit_code", "state", "message", "node_restored", "started_utc", "ended_utc")
    return Outcome(*(found[field] for field in fields)) if found.keys() >= set(fields) else None


def _prompts(prompts: Prompts) -> str:
    if prompts.source == "builtin":
        return ", ".join((prompts.source, *prompts.kinds))
    return f"{prompts.source}, {Path(prompts.path).name if prompts.path else 'generated'}"


def _workers(plan: Mapping[str, Any]) -> dict[str, str]:
    paths: Mapping[str, Mapping[str, str]] = plan.get("worker_paths") or {}
    return {arm: f"{path['worker']}: {path['why']}" for arm, path in paths.items()}


def _provenance(
    store: RunStore, facts: Mapping[str, Any], experiment: Experiment, plan: Mapping[str, Any]
) -> dict[str, str]:
    tree = facts.get("tree") or {}
    return {
        "model": str(experiment.server.args.get("model-path", "")),
        "GPUs": _gpus(facts, experiment.node.gpus),
        "tree": f"{tree.get('package')} {tree.get('version')} at {tree.get('path')}" if tree else _UNKNOWN,
        "interpreter": f"{tree.get('python')} ({tree.get('python_version')})" if tree else _UNKNOWN,
        "kernel": f"{facts.get('kernel', '')} on {facts.get('host', '')}" if facts else _UNKNOWN,
        **_arm_provenance(plan, experiment),
        "dynspec": _version_at_run(store),
    }


def _arm_provenance(plan: Mapping[str, Any], experiment: Experiment) -> dict[str, str]:
    """Per arm its patches, and how it was served where that is not how it was written."""
    stored = {arm["name"]: arm["patches"] for arm in plan.get("arms") or ()}
    patches = {arm.name: stored.get(arm.name, arm.patches) for arm in experiment.arms}
    modes: Mapping[str, str] = plan.get("modes") or {}
    return {
        **{f"patches of {arm}": ", ".join(names) for arm, names in patches.items() if names},
        **{f"mode of {arm}": mode for arm, mode in modes.items()},
    }


def _gpus(facts: Mapping[str, Any], gpus: Gpus) -> str:
    """Those that the servers had; of a node with more, which ones."""
    there, used = facts.get("gpus") or [], used_gpus(facts, gpus)
    counts = Counter(f"{gpu.get('name')} (driver {gpu.get('driver')})" for gpu in used)
    if not counts:
        return _no_gpus(facts)
    words = ", ".join(f"{count} x {name}" for name, count in counts.items())
    if len(used) == len(there):
        return words
    which = f"GPU{'' if len(used) == 1 else 's'} {listed([gpu.get('index') for gpu in used])}"
    return f"{words}: {which} of the node's {len(there)}"


def _no_gpus(facts: Mapping[str, Any]) -> str:
    if not facts:
        return _UNKNOWN
    problem = facts.get("gpu_problem")
    return f"unknown: {problem}" if problem else "none"


def _version_at_run(store: RunStore) -> str:
    """The version that measured, which may not be the one that reports."""
    return str(stored_lock(store).get("dynspec", ""))
