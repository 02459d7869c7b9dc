"""The smoke check of one patch set: in an overlay copy that no live server sees, before any model load.

Four levels, each reported by name: touched files compile under the serving interpreter; no new undefined names
(checked where the patch set is built); the touched modules import in the interpreter, environment and folder that
will serve, and the file that loaded is the patched one; that tree's own `ServerArgs` takes the arms' arguments. Where
a heavy dependency is absent the last two are *not possible on this node*, by name: never passed.
"""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.errors import DoesNotFit
from orchestrator.model.experiment import Experiment
from orchestrator.model.facts import Facts
from orchestrator.model.plan import PatchSet
from orchestrator.remote.node import Node
from orchestrator.remote.replies import ImportResult
from orchestrator.remote.replies import Smoke as SmokeReply
from orchestrator.runner.arguments import (
    SourceReading,
    argument_lines,
    ask_smoke,
    checked_arms,
    fault_lines,
    faults_in,
)
from orchestrator.runner.events import Events


def smoke_patch_set(
    node: Node,
    experiment: Experiment,
    facts: Facts,
    patch_set: PatchSet,
    run_id: str,
    events: Events,
    arms: Iterable[str] | None = None,
) -> None:
    """Raises DoesNotFit, with the traceback, when the patched tree would not serve.

    `arms`: names of those whose arguments count (None: all).
    """
    assert facts.tree is not None
    names = [arm.name for arm in experiment.arms] if arms is None else arms
    checked = checked_arms(experiment, names, patch_set)
    reply = ask_smoke(node, experiment, facts.tree, patch_set, checked, run_id)
    events.emit(
        "smoke",
        patch_set=patch_set.name,
        lines=list(describe(reply)),
        warnings=list(reply.warnings),
        not_possible=[item.module for item in reply.imports if item.state == "not_possible"],
    )
    problems = problems_of(reply, patch_set)
    if problems:
        raise DoesNotFit(f"smoke check of {patch_set.name} failed", details=problems)


def describe(reply: SmokeReply) -> tuple[str, ...]:
    """One line a level for people; what could not be checked is said, never counted as passed."""
    compiled = f"compiled {sum(item.ok for item in reply.compile)} of {len(reply.compile)} files"
    return (
        *((compiled,) if reply.compile else ()),
        *(_import_line(item) for item in reply.imports),
        *argument_lines(reply.arguments),
    )


def _import_line(item: ImportResult) -> str:
    if item.state == "loaded":
        return f"{item.module}: imported, from {item.file}"
    if item.state == "not_possible":
        return f"{item.module}: import not possible on this node: {item.missing} is not installed"
    return f"{item.module}: import failed: {item.error}"


def problems_of(reply: SmokeReply, patch_set: PatchSet) -> tuple[str, ...]:
    """What makes the tree unfit: files that do not compile or import, the wrong file loaded, refused arguments."""
    found = [f"{item.path}: does not compile: {item.error}" for item in reply.compile if not item.ok]
    wanted = {edit.after_sha256 for edit in patch_set.edits}
    for item in reply.imports:
        if item.state == "failed":
            found.append(f"{item.module}: {item.error}")
        elif item.state == "loaded" and wanted and item.sha256 not in wanted:
            found.append(f"{item.module}: loaded from {item.file}, which is not the patched file")
    return (*found, *fault_lines(faults_in(reply.arguments, SourceReading({}))))
