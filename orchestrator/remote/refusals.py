"""What an error code of the node means for the command that met it."""

from __future__ import annotations

from orchestrator.command import node_command
from orchestrator.errors import DoesNotFit, DynspecError, NodeBusy, RemoteError
from orchestrator.model.experiment import Node
from orchestrator.model.facts import LockFact
from orchestrator.remote.decoding import decode

_MISFITS = frozenset({"mismatch", "changed", "not_writable", "no_space"})


def before_acting(error: RemoteError, choice: Node) -> DynspecError:
    """The refusal for an error that came while nothing was touched yet; other errors are returned as they are."""
    if error.code in _MISFITS:
        return DoesNotFit(error.message, details=error.details, help=error.help)
    if error.code != "busy":
        return error
    if "holders" in error.data:
        return NodeBusy(
            f"{choice.host}: {error.message}", help="wait for them, or set node.free to wait, listed or all"
        )
    what_helps = f"{node_command('status', choice)}; or wait with --lock-wait 10m"
    return NodeBusy(f"{choice.host} is busy: {_holder(error)}", help=what_helps)


def _holder(error: RemoteError) -> str:
    if "run_id" not in error.data:
        return error.message
    lock = decode(LockFact, error.data, "guard")
    doing = f", {lock.phase}" if lock.phase else ""
    return f"run {lock.run_id} of {lock.user} ({lock.controller}) holds it since {lock.since_utc}, {lock.state}{doing}"
