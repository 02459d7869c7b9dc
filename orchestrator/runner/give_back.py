"""Giving the node back: one request to the guardian; over a new connection when the old one is gone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.errors import DynspecError, NodeDirty, RemoteError
from orchestrator.remote.node import Node
from orchestrator.runner.events import Events
from orchestrator.runner.restore import end_run, ways_out

# Beyond the limit of the stop itself: files, proof, and the memory of the GPUs.
_MARGIN_S = 30.0


@dataclass(frozen=True)
class GivenBack:
    restored: tuple[str, ...]
    node: Node  # the connection that did it: it may be a new one


def give_back(
    node: Node,
    reconnect: Callable[[], Node],
    *,
    run_id: str,
    command: str,
    stop_s: float,
    reason: str,
    events: Events,
    ended_elsewhere: bool = False,
) -> GivenBack:
    """Stop, restore, verify, unlock. Raises NodeDirty, with the `command` that helps, when it can't be shown.

    `ended_elsewhere`: a person's command gives the node back, so the guardian may have done it all and be gone.
    """
    try:
        reply = node.unwind(stop_s=stop_s, reason=reason, timeout_s=stop_s + _MARGIN_S)
        given = GivenBack(tuple(reply.restored), node)
        for note in reply.notes:
            events.note(note)
    except DynspecError as error:
        if isinstance(error, RemoteError) and error.code == "dirty":
            raise dirty(error, command, node.restore_by_hand) from error
        if not (ended_elsewhere and isinstance(error, RemoteError) and error.code == "lost"):
            events.note(f"{error.message}; giving the node back over a new connection")
        given = _again(node, reconnect, run_id, command)
    events.emit("given_back", restored=list(given.restored))
    return given


def _again(lost: Node, reconnect: Callable[[], Node], run_id: str, command: str) -> GivenBack:
    """What `dynspec restore` would do, for this run alone."""
    lost.close()
    node: Node | None = None
    try:
        node = reconnect()
        return GivenBack(end_run(node, run_id, command), node)
    except NodeDirty:
        raise
    except DynspecError as error:
        raise dirty(error, command, lost.restore_by_hand) from error


def dirty(error: DynspecError, command: str, by_hand: str) -> NodeDirty:
    """A node that answered has said what is left; one that did not may still restore itself.

    `by_hand`: what does the same as `command` with only ssh.
    """
    if isinstance(error, RemoteError) and error.code == "dirty":
        more = ways_out(error, command)
    else:
        more = ("a node that still runs restores itself when the lease (node.lease) ends",)
    return NodeDirty(
        f"the node could not be given back as it was: {error.message}",
        details=(*error.details, *more, f"without dynspec at hand: {by_hand}"),
        restore_command=command,
    )
