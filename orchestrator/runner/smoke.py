"""The smoke check of one patch set: in an overlay copy that no live server sees, before any model load.

Three levels, each reported by name: touched files compile under the serving interpreter; no new undefined names
(checked where the patch set is built); the touched modules import in the interpreter, environment and folder that
will serve, and the file that loaded is the patched one. Where a heavy dependency is absent the import level is
*not possible on this node*, by name: never passed.
"""

from __future__ import annotations

from orchestrator.errors import DoesNotFit
from orchestrator.model.experiment import Experiment
from orchestrator.model.facts import Facts
from orchestrator.model.plan import PatchSet
from orchestrator.remote.node import Node
from orchestrator.remote.replies import ImportResult
from orchestrator.remote.replies import Smoke as SmokeReply
from orchestrator.runner.events import Events
from orchestrator.runner.options import public_env


def smoke_patch_set(
    node: Node, experiment: Experiment, facts: Facts, patch_set: PatchSet, run_id: str, events: Events
) -> None:
    """Raises DoesNotFit, with the traceback, when the patched tree would not serve."""
    assert facts.tree is not None
    reply = node.smoke(
        workdir=experiment.node.workdir,
        run_id=run_id,
        python=experiment.node.python,
        cwd=experiment.node.cwd,
        env=public_env(experiment.server.env),
        package=facts.tree.package,
        package_path=facts.tree.path,
        files={edit.path: None if edit.after is None else edit.after.encode() for edit in patch_set.edits},
        modules=patch_set.modules,
        timeout_s=experiment.limits.smoke_s,
    )
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
    return (compiled, *(_import_line(item) for item in reply.imports))


def _import_line(item: ImportResult) -> str:
    if item.state == "loaded":
        return f"{item.module}: imported, from {item.file}"
    if item.state == "not_possible":
        return f"{item.module}: import not possible on this node: {item.missing} is not installed"
    return f"{item.module}: import failed: {item.error}"


def problems_of(reply: SmokeReply, patch_set: PatchSet) -> tuple[str, ...]:
    """What makes the tree unfit: a file that does not compile, an import that fails, the wrong file loaded."""
    found = [f"{item.path}: does not compile: {item.error}" for item in reply.compile if not item.ok]
    wanted = {edit.after_sha256 for edit in patch_set.edits}
    for item in reply.imports:
        if item.state == "failed":
            found.append(f"{item.module}: {item.error}")
        elif item.state == "loaded" and wanted and item.sha256 not in wanted:
            found.append(f"{item.module}: loaded from {item.file}, which is not the patched file")
    return tuple(found)
