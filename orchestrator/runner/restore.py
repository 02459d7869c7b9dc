"""`dynspec stop` and `dynspec restore`: end whatever dynspec run is on the node and put its files back."""

from __future__ import annotations

import shlex
from typing import Any

from orchestrator.command import node_command
from orchestrator.errors import NodeBusy, NodeDirty, RemoteError
from orchestrator.model.experiment import Node as NodeChoice
from orchestrator.remote.node import Node
from orchestrator.remote.refusals import before_acting

_STOP_S = 30.0
_WENT = frozenset({"lost", "not_found"})


def restore_node(
    node: Node, command: str, *, force: bool = False, keep_foreign: bool = False, by: str = ""
) -> list[dict[str, Any]]:
    """One entry a run that was ended: {run_id, restored, stopped, kept, patched}. `command`: what a person types to try
    again; `by`: who ends a live run, for its controller.

    Raises NodeBusy for a live holder without `force`, NodeDirty for a rest.
    """
    try:
        done = node.recover("restore", force=force, keep_foreign=keep_foreign, by=by)
    except RemoteError as error:
        raise _refusal(error, node.label, command) from error
    return [
        {
            "run_id": run.run_id,
            "restored": list(run.restored),
            "stopped": list(run.stopped),
            "kept": list(run.kept),
            "patched": list(run.patched),
        }
        for run in done.recovered
    ]


def end_run(node: Node, run_id: str, command: str) -> tuple[str, ...]:
    """Give the node back for one run, over a connection that is not the run's own; returns the files put back.

    Its guardian may live, be dead, or have done it all already; whoever else holds the node by now is left alone.
    """
    while True:
        status = node.status()
        if status.lock is not None and status.lock.run_id == run_id:
            try:
                node.attach(run_id, force=True)
                return tuple(node.unwind(stop_s=_STOP_S, reason="the controller came back").restored)
            except RemoteError as error:
                if error.code not in _WENT:
                    raise _refusal(error, node.label, command) from error
                continue  # it ended between the two questions: look again
        if run_id not in {journal.run_id for journal in status.journals}:
            return ()
        done = restore_node(node, command)
        return tuple(path for run in done if run["run_id"] == run_id for path in run["restored"])


def restore_command(choice: NodeChoice) -> str:
    """The command that gives this node back, from any folder."""
    return node_command("restore", choice)


def ways_out(error: RemoteError, command: str) -> tuple[str, ...]:
    """For each file that somebody else changed, the two things that a person may do about it."""
    found = error.data.get("files")
    foreign = [
        item
        for item in (found if isinstance(found, list) else ())
        if isinstance(item, dict) and item.get("kind") == "foreign"
    ]
    lines = [
        f"to have the original back, on the node: {shlex.join(['cp', str(item['original']), str(item['path'])])}, then "
        "the command below"
        for item in foreign
        if item.get("original")
    ]
    return (*lines, f"to keep what is there now: {command} --keep-foreign") if foreign else ()


def _refusal(error: RemoteError, host: str, command: str) -> Exception:
    if error.code == "dirty":
        return NodeDirty(
            f"{host} could not be restored: {error.message}",
            details=(*error.details, *ways_out(error, command)),
            restore_command=command,
        )
    refusal = before_acting(error, NodeChoice(host, ""))
    if isinstance(refusal, NodeBusy):
        refusal.help = "a live run holds the node; --force ends it"
    return refusal
