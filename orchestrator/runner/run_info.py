"""What a report says beside its numbers, from a run folder: provenance, failed boots, each boot over time."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.analysis.failure import failure_card, replay_command
from orchestrator.analysis.gate import GateResult
from orchestrator.analysis.trace import Trace, boot_trace, read_log
from orchestrator.model.experiment import Experiment, Prompts
from orchestrator.model.result import BootTrace, FailureCard, Outcome, RunInfo
from orchestrator.report.gate_text import gate_lines
from orchestrator.runner.damage import damage
from orchestrator.runner.lockfile import stored_lock
from orchestrator.store import LOCK_FILE, OUTCOME, PLAN, RunStore

SIMULATED_KEY = "simulated"  # the stand-in engine says so in /server_info
_UNKNOWN = "unknown: facts.json is lost"
LOG, PACKED_LOG, GPU_SAMPLES = "server.log", "server.log.gz", "gpu.csv"


def events_of(store: RunStore) -> Iterator[dict[str, Any]]:
    path = store.folder / "events.jsonl"
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # the last line of a killed run may be torn
            if isinstance(event, dict) and _whole(event):
                yield event


def _whole(event: dict[str, Any]) -> bool:
    """A start without its boot, in a damaged file, is of no use to anybody."""
    return "event" in event and (event["event"] != "started" or {"arm", "boot"} <= event.keys())


def boot_order(store: RunStore) -> tuple[tuple[str, int], ...]:
    """(arm, boot) as they were started, from events.jsonl."""
    return tuple((event["arm"], event["boot"]) for event in events_of(store) if event["event"] == "started")


def run_info(
    store: RunStore,
    experiment: Experiment,
    outcome: Outcome | None = None,
    gate: GateResult | None = None,
) -> RunInfo:
    """`outcome`: of a run whose outcome.json is not written yet. `gate`: what its gate said."""
    plan, facts = store.section_left(PLAN, "plan"), store.section_left("facts.json", "facts")
    ended = outcome or _stored_outcome(store)
    first = next(events_of(store), {})
    prompts = experiment.sweep.prompts
    return RunInfo(
        run_id=store.run_id,
        name=experiment.name,
        host=experiment.node.host,
        folder=_shown(store.folder),
        started_utc=str(first.get("t", "")),
        ended_utc=ended.ended_utc if ended else "",
        state=ended.state if ended else "",
        message=ended.message if ended else "",
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
        traces=traces(store),
        gate=tuple(gate_lines(store.run_id, gate)) if gate else (),
        damage=damage(store, ended=outcome is not None),
    )


def is_simulated(store: RunStore) -> bool:
    """Said in several places, so that the loss of one file does not turn a simulated run into a real one."""
    if any(stored.meta.get(SIMULATED_KEY) for stored in store.points()):
        return True
    if "Simulated" in str(store.section_left("facts.json", "facts")):
        return True
    return any(_object(path).get(SIMULATED_KEY) for path in _server_infos(store))


def _object(path: Path) -> dict[str, Any]:
    """Empty for whatever is no JSON object; `damage` names it."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _server_infos(store: RunStore) -> Iterable[Path]:
    return sorted(store.folder.glob("arms/*/boot-*/server_info.json"))


def _shown(folder: Path) -> str:
    """Relative to here where it lies below: a report that is passed on should not name this machine's folders."""
    return str(folder.relative_to(Path.cwd())) if folder.is_relative_to(Path.cwd()) else str(folder)


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
    tree, gpus = facts.get("tree") or {}, facts.get("gpus") or []
    counts: dict[str, int] = {}
    for gpu in gpus:
        name = f"{gpu.get('name')} (driver {gpu.get('driver')})"
        counts[name] = counts.get(name, 0) + 1
    return {
        "model": str(experiment.server.args.get("model-path", "")),
        "GPUs": ", ".join(f"{count} x {name}" for name, count in counts.items()) or _no_gpus(facts),
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


def _no_gpus(facts: Mapping[str, Any]) -> str:
    if not facts:
        return _UNKNOWN
    problem = facts.get("gpu_problem")
    return f"unknown: {problem}" if problem else "none"


def _version_at_run(store: RunStore) -> str:
    """The version that measured, which may not be the one that reports."""
    return str(stored_lock(store).get("dynspec", ""))


# -- what a boot left behind -----------------------------------------------------------------------------------


@contextmanager
def open_log(folder: Path) -> Iterator[Iterator[str] | None]:
    """Lines of a boot's server log, packed or not; None where there is none. Of a damaged pack, what can be read."""
    if (folder / LOG).is_file():
        with (folder / LOG).open(encoding="utf-8", errors="replace") as lines:
            yield lines
    elif (folder / PACKED_LOG).is_file():
        with gzip.open(folder / PACKED_LOG, "rt", encoding="utf-8", errors="replace") as lines:
            yield _readable(lines)
    else:
        yield None


def _readable(lines: Iterable[str]) -> Iterator[str]:
    with suppress(OSError, EOFError, zlib.error):
        yield from lines


def traces(store: RunStore) -> tuple[BootTrace, ...]:
    """Each boot over time, in the order in which the boots ran."""
    found = []
    for arm, boot in dict.fromkeys(boot_order(store)):
        folder = (store.folder / store.boot_path(arm, boot, LOG)).parent
        samples = folder / GPU_SAMPLES
        with open_log(folder) as log:
            gpu = samples.read_text(encoding="utf-8", errors="replace") if samples.is_file() else ""
            found.append(boot_trace(arm, boot, log or (), gpu.splitlines()))
    return tuple(trace for trace in found if trace.running or trace.gpu)


def logged(store: RunStore) -> Iterator[tuple[str, int, Trace]]:
    """(arm, boot, what its server log says), in the order in which the boots ran; only boots that left a log."""
    for arm, boot in dict.fromkeys(boot_order(store)):
        with open_log((store.folder / store.boot_path(arm, boot, LOG)).parent) as log:
            if log is not None:
                yield arm, boot, read_log(log)


@dataclass(frozen=True)
class FailedBoot:
    """A boot that ended otherwise than by a stop. `concurrency` None: not during a point."""

    arm: str
    boot: int
    concurrency: int | None
    exit_code: int | None = None
    signal: int | None = None


def failed_boots(store: RunStore, *, failed: bool) -> tuple[FailedBoot, ...]:
    """`failed`: the run ended in a failure, so the boot that was up then is one of them.

    A boot that a resumed run brought to its end is none.
    """
    found: dict[tuple[str, int], FailedBoot] = {}
    up: FailedBoot | None = None
    for event in events_of(store):
        kind = event["event"]
        if kind == "started":
            up = FailedBoot(event["arm"], event["boot"], None)
            found.pop((up.arm, up.boot), None)
        elif up is None:
            continue
        elif kind in ("point", "point_done"):
            up = FailedBoot(up.arm, up.boot, event["concurrency"] if kind == "point" else None)
        elif kind == "boot_failed":
            ended = FailedBoot(up.arm, up.boot, up.concurrency, event.get("exit_code"), event.get("signal"))
            found[up.arm, up.boot] = ended
            up = None
        elif kind == "stopped":
            up = None
    if up is not None and failed:
        found[up.arm, up.boot] = up
    return tuple(found.values())


def failure_cards(store: RunStore, *, failed: bool) -> tuple[FailureCard, ...]:
    """One card for each failed boot, from its server log; `replay` runs just that point again."""
    cards = []
    for boot in failed_boots(store, failed=failed):
        folder = (store.folder / store.boot_path(boot.arm, boot.boot, LOG)).parent
        experiment = _shown(store.folder / LOCK_FILE)
        with open_log(folder) as log:
            cards.append(
                failure_card(
                    log or (),
                    arm=boot.arm,
                    boot=boot.boot,
                    concurrency=boot.concurrency,
                    exit_code=boot.exit_code,
                    signal=boot.signal,
                    replay=replay_command(experiment, boot.arm, boot.concurrency),
                )
            )
    return tuple(cards)
