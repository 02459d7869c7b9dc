"""Giving the node back: one request to the guardian; over a new connection when the old one is gone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.errors import ConnectionFailed, ConnectionLost, DynspecError, NodeDirty, RemoteError
from orchestrator.remote.node import Node
from orchestrator.remote.replies import Unwound
from orchestrator.runner.events import Events


@dataclass(frozen=True)
class GivenBack:
    stopped: bool
    restored: tuple[str, ...]
    node: Node  # the connection that did it: it may be a new one


def give_back(
    node: Node,
    reconnect: Callable[[], Node],
    *,
    run_id: str,
    host: str,
    stop_s: float,
    reason: str,
    events: Events,
) -> GivenBack:
    """Stop, restore, verify, unlock. Raises NodeDirty with the command that helps when it can't be shown to be done."""
    try:
        reply = node.unwind(stop_s=stop_s, reason=reason)
    except (ConnectionLost, RemoteError) as error:
        if isinstance(error, RemoteError) and error.code == "dirty":
            raise dirty(host, error) from error
        events.note(f"the connection to the node is gone ({error.message}); connecting again to give it back")
        node, reply = _again(node, reconnect, run_id, host, stop_s, reason)
    events.emit("given_back", stopped=reply.stopped, restored=list(reply.restored), verified=reply.verified)
    return GivenBack(reply.stopped, tuple(reply.restored), node)


def _again(
    lost: Node, reconnect: Callable[[], Node], run_id: str, host: str, stop_s: float, reason: str
) -> tuple[Node, Unwound]:
    lost.close()
    try:
        node = reconnect()
        node.attach(
            run_id, force=True
        )  # the lost channel may not have been noticed there yet; the run is ours
        return node, node.unwind(stop_s=stop_s, reason=reason)
    except (ConnectionFailed, ConnectionLost, RemoteError) as error:
        raise dirty(host, error) from error


def dirty(host: str, error: DynspecError) -> NodeDirty:
    return NodeDirty(
        f"the node could not be given back as it was: {error.message}",
        details=(*error.details, "its guardian goes on trying until the lease ends"),
        restore_command=f"dynspec restore {host}",
    )
