"""A Plan as plain lines: what is there, what would be stopped, changed and started, and what undoes each step."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from orchestrator.model.experiment import EnvValue, SecretRef
from orchestrator.model.facts import Facts, ProcessFact
from orchestrator.model.plan import (
    Edit,
    Effect,
    FreeGpus,
    Launch,
    PatchSet,
    Plan,
    RestoreFiles,
    StartServer,
    StopServer,
    Unlock,
)
from orchestrator.path_lists import few
from orchestrator.plan.gpus import describe, holders, may_stop


def render_plan(plan: Plan, facts: Facts) -> list[str]:
    """Lines for a terminal or a log. Secrets are not in a plan, so none can be in here."""
    return [
        *_node(facts),
        "",
        *_arms(plan),
        "",
        *_stops(plan, facts),
        *_changes(plan),
        *_starts(plan),
        "",
        *_steps(plan),
        "",
        *_closing(plan),
    ]


def _node(facts: Facts) -> Iterator[str]:
    yield f"node     {facts.host} as {facts.user}, {facts.cpu_count} CPUs, {facts.disk_free_mib} MiB free for the run"
    if facts.tree is not None:
        tree = facts.tree
        kind = ", editable" if tree.editable else ""
        yield f"tree     {tree.package} {tree.version or '(no version)'}{kind} at {tree.path}"
        if tree.pristine is not None and tree.pristine.checked:
            yield f"         {tree.pristine.words()}"
        yield f"python   {tree.python} ({tree.python_version})"
    names: dict[str, int] = {}
    for gpu in facts.gpus:
        names[gpu.name] = names.get(gpu.name, 0) + 1
    yield "GPUs     " + (
        ", ".join(f"{count} x {name}" for name, count in names.items()) or "none that can be seen"
    )


def _arms(plan: Plan) -> Iterator[str]:
    launches = {step.do.arm: step.do.launch for step in plan.steps if isinstance(step.do, StartServer)}
    for name, path in plan.worker_paths.items():
        yield f"arm      {name}: worker {path.worker}, since {path.why}"
        if name in launches:
            yield f"         {_command(launches[name])}"
    for name, why in plan.unsupported.items():
        yield f"arm      {name}: left out, since {why}"


def _command(launch: Launch) -> str:
    """As a shell would show it. References to secrets stay names."""
    env = [f"{key}={_shown(value)}" for key, value in launch.env.items()]
    return " ".join([*env, shlex.join(launch.argv)])


def _shown(value: EnvValue) -> str:
    return f"${{{value.from_env}}}" if isinstance(value, SecretRef) else shlex.quote(value)


def _stops(plan: Plan, facts: Facts) -> Iterator[str]:
    frees = [step.do for step in plan.steps if isinstance(step.do, FreeGpus)]
    found = []
    if frees:
        free = frees[0]
        found = list(holders(facts, free.gpus, free.policy, free.rules).stop)
        served = [] if plan.patch_mode == "overlay" else _served(facts, free)
        found += [item for item in served if item.pid not in {other.pid for other in found}]
    if not found:
        yield "stops    nothing that runs now"
    for process in found:
        yield f"stops    {describe(process)} (for good: it is not started again)"


def _served(facts: Facts, free: FreeGpus) -> list[ProcessFact]:
    """Processes on the tree to patch that may be stopped."""
    return [item for item in facts.tree_processes if may_stop(item, free.policy, free.rules)]


def _changes(plan: Plan) -> Iterator[str]:
    if plan.patch_mode == "overlay" and any(item.edits for item in plan.patch_sets):
        yield from _overlay_changes(plan)
        return
    if not any(item.edits for item in plan.patch_sets):
        yield "changes  no file"
        return
    yield "patches  in place: files of the installed package are changed, and put back at the end"
    for item in plan.patch_sets:
        yield from _grouped(item, "put back at the end")


def _overlay_changes(plan: Plan) -> Iterator[str]:
    yield "patches  overlay: a copy of the package serves all arms; installed files are only read"
    for item in plan.patch_sets:
        yield from _grouped(item, "removed at the end", "the copy")


def _grouped(item: PatchSet, ending: str, root: str = "") -> Iterator[str]:
    """Files by what happens to them, below the folder that they have in common; `root`: of files not there yet."""
    groups: dict[tuple[str, str], list[str]] = {}
    for edit in item.edits:
        folder = root or edit.absolute.removesuffix(edit.path).rstrip("/")
        groups.setdefault((_verb(edit), folder), []).append(edit.path)
    for (verb, folder), paths in groups.items():
        if len(paths) == 1:
            one = f"{paths[0]} of {root}" if root else f"{folder}/{paths[0]}"
            yield f"{verb:<8} {one} for {item.name} ({ending})"
            continue
        yield f"{verb:<8} {len(paths)} files below {folder} for {item.name} ({ending}):"
        yield f"         {few(paths, where='all with --json')}"


def _verb(edit: Edit) -> str:
    if edit.before_sha256 is None:
        return "adds"
    return "removes" if edit.after_sha256 is None else "changes"


def _starts(plan: Plan) -> Iterator[str]:
    starts = [step.do for step in plan.steps if isinstance(step.do, StartServer)]
    if not starts:
        yield "starts   nothing"
        return
    ports = ", ".join(map(str, sorted({start.launch.port for start in starts})))
    order = ", ".join(f"{boot.arm} #{boot.boot}" for boot in plan.boots)
    yield f"starts   {len(starts)} servers on port {ports}, one after the other: {order}"


def _steps(plan: Plan) -> Iterator[str]:
    digits = len(str(len(plan.steps)))
    width = max(len(step.phase) for step in plan.steps)
    for number, step in enumerate(plan.steps, start=1):
        undo = f"  [undo: {undo_words(step.undo)}]" if step.undo is not None else ""
        yield f"{number:>{digits}}  {step.phase.ljust(width)}  {step.text}{undo}"


def undo_words(effect: Effect) -> str:
    """The undo of a step in a few words. Only some effects are ever an undo."""
    match effect:
        case Unlock():
            return "unlock"
        case RestoreFiles(overlay):
            return "remove the overlay" if overlay else "put the files back"
        case StopServer():
            return "stop the server"
        case _:
            return type(effect).__name__


def _closing(plan: Plan) -> Iterator[str]:
    for text in plan.warnings:
        yield f"note     {text}"
    if plan.gpu_minutes is None:
        yield f"GPU time unknown: {plan.gpu_minutes_why}"
    else:
        yield f"GPU time about {plan.gpu_minutes:.0f} minutes: {plan.gpu_minutes_why}"
