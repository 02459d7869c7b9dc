"""Ending processes with proof: TERM, a wait, KILL, and then nothing of them is left or it is named."""

from __future__ import annotations

import signal
import time
from typing import Callable, List, NamedTuple, Optional, Set

from . import procs
from .procs import Identity

_POLL_S = 0.05
_TERM_SHARE = 0.4  # of the time allowed; the rest belongs to KILL and to the proof
_LEFTOVER_GRACE_S = 0.5  # what a leader left behind when it ended gets this long to follow


class Ended(NamedTuple):
    stopped: List[int]
    survivors: List[int]
    refused: List[int]  # may not be signalled by this user


def end(
    targets: Callable[[], Set[Identity]],
    timeout_s: float,
    gentle: Callable[[Set[Identity]], None],
    leader: Optional[Identity] = None,
    hurry: Callable[[], bool] = lambda: False,
) -> Ended:
    """Ends what `targets()` names; it is asked again and again, so that processes born meanwhile are met too.

    `gentle` sends the first signal. Its effect is waited for, but not long once the `leader` is gone, and no more
    once `hurry` says so.
    A sent signal proves nothing: only identities that are no longer there count as stopped.
    """
    started = time.monotonic()
    alive = targets()
    seen = set(alive)
    refused: Set[int] = set()
    if alive:
        gentle(alive)
        alive = _wait(targets, seen, started + timeout_s * _TERM_SHARE, leader, hurry)
    while alive:
        refused.update(identity[0] for identity in alive if not kill(identity))
        time.sleep(_POLL_S)
        alive = targets()
        seen |= alive
        if time.monotonic() > started + timeout_s:
            break
    survivors = sorted(pid for pid, _ in alive)
    return Ended(
        sorted({pid for pid, _ in seen} - set(survivors)), survivors, sorted(refused & set(survivors))
    )


def _wait(
    targets: Callable[[], Set[Identity]],
    seen: Set[Identity],
    until: float,
    leader: Optional[Identity],
    hurry: Callable[[], bool],
) -> Set[Identity]:
    """What is still alive at the end of the wait; everything met on the way is added to `seen`."""
    while True:
        alive = targets()
        seen |= alive
        now = time.monotonic()
        if leader is not None and leader not in alive:
            until, leader = min(until, now + _LEFTOVER_GRACE_S), None
        if not alive or now >= until or hurry():
            return alive
        time.sleep(_POLL_S)


def kill(identity: Identity) -> bool:
    return _signal(identity, signal.SIGKILL)


def terminate(identity: Identity) -> bool:
    return _signal(identity, signal.SIGTERM)


def _signal(identity: Identity, signum: int) -> bool:
    try:
        procs.send(identity, signum)
    except PermissionError:
        return False
    return True
