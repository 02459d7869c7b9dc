"""Giving the node back: one request to the guardian; over a new connection when the old one is gone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.errors import (
    ConnectionFailed,
    ConnectionLost,
    DynspecError,
    NodeBusy,
    NodeDirty,
    RemoteError,
)
from orchestrator.remote.node import Node
from orchestrator.runner.events import Events
from orchestrator.runner.restore import restore_node


@dataclass(frozen=True)
class GivenBack:
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
        given = GivenBack(tuple(reply.restored), node)
    except (ConnectionLost, RemoteError) as error:
        if isinstance(error, RemoteError) and error.code == "dirty":
            raise dirty(host, error) from error
        events.note(f"{error.message}; connecting again to give the node back")
        given = _again(node, reconnect, run_id, host)
    events.emit("given_back", restored=list(given.restored))
    return given


def _again(lost: Node, reconnect: Callable[[], Node], run_id: str, host: str) -> GivenBack:
    """What `dynspec restore` would do, for this run: its guardian may live, be dead, or have done it all already."""
    lost.close()
    try:
        node = reconnect()
        ended = restore_node(node, host, force=True, only_run=run_id)
    except (ConnectionFailed, ConnectionLost, NodeBusy) as error:
        raise dirty(host, error) from error
    return GivenBack(tuple(path for run in ended for path in run["restored"]), node)


def dirty(host: str, error: DynspecError) -> NodeDirty:
    return NodeDirty(
        f"the node could not be given back as it was: {error.message}",
        details=(*error.details, "where its guardian still lives, it restores by itself when the lease ends"),
        restore_command=f"dynspec restore {host}",
    )
