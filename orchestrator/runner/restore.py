"""`dynspec stop` and `dynspec restore`: end whatever dynspec run is on the node and put its files back."""

from __future__ import annotations

from typing import Any

from orchestrator.errors import NodeBusy, NodeDirty, RemoteError
from orchestrator.remote.node import Node
from orchestrator.remote.refusals import before_acting

_STOP_S = 30.0


def restore_node(node: Node, host: str, *, force: bool, only_run: str | None = None) -> list[dict[str, Any]]:
    """One entry a run that was ended. Raises NodeBusy for a live holder without `force`, NodeDirty for a rest.

    `only_run` leaves the node alone unless that run's journal is still open.
    """
    status = node.status()
    done: list[dict[str, Any]] = []
    if only_run is not None and only_run not in {journal.run_id for journal in status.journals}:
        return done  # its guardian has put everything back and gone
    if status.lock is not None:
        done.append(_end_held(node, host, status.lock.run_id, force=force))
    elif status.journals:
        done += _recover(node, host)
    return done


def _end_held(node: Node, host: str, run_id: str, *, force: bool) -> dict[str, Any]:
    try:
        node.attach(run_id, force=force)
        reply = node.unwind(stop_s=_STOP_S, reason="asked by restore")
    except RemoteError as error:
        raise _refusal(error, host) from error
    return {"run_id": run_id, "restored": list(reply.restored), "stopped": reply.stopped}


def _recover(node: Node, host: str) -> list[dict[str, Any]]:
    """No guardian lives: a new one takes the lock, puts every dead run back, and leaves."""
    from orchestrator.runner.loop import holder_name
    from orchestrator.store import new_run_id

    try:
        reply = node.guard(
            run_id=new_run_id("restore"),
            holder=holder_name(),
            workdir="~/.dynspec/work",
            lease_s=60.0,
            stop_s=_STOP_S,
        )
        node.unwind(stop_s=_STOP_S, reason="restored")
    except RemoteError as error:
        raise _refusal(error, host) from error
    return [
        {"run_id": item.run_id, "restored": list(item.restored), "stopped": list(item.stopped)}
        for item in reply.recovered
    ]


def _refusal(error: RemoteError, host: str) -> Exception:
    if error.code == "dirty":
        return NodeDirty(
            f"{host} could not be restored: {error.message}",
            details=error.details,
            restore_command=f"dynspec restore {host}",
        )
    refusal = before_acting(error, host)
    if isinstance(refusal, NodeBusy):
        refusal.help = "a live run holds the node; --force ends it"
    return refusal
