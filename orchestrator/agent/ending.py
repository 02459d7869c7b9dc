"""Ending processes with proof: TERM, a wait, KILL, and then nothing of them is left or it is named."""

from __future__ import annotations

import signal
import time
from typing import Callable, List, NamedTuple, Set

from . import procs
from .procs import Identity

_POLL_S = 0.05
TERM_SHARE = 0.4  # of the time allowed; the rest belongs to KILL and to the proof


class Ended(NamedTuple):
    stopped: List[int]
    survivors: List[int]
    refused: List[int]  # may not be signalled by this user


def end(
    targets: Callable[[], Set[Identity]],
    timeout_s: float,
    gentle: Callable[[Set[Identity]], bool],
    hurry: Callable[[], bool] = lambda: False,
) -> Ended:
    """Ends what `targets()` names; it is asked again and again, so that processes born meanwhile are met too.

    `gentle` sends the first signal and says whether waiting for its effect makes sense; `hurry` ends that wait early.
    A sent signal proves nothing: only identities that are no longer there count as stopped.
    """
    started = time.monotonic()
    seen = targets()
    refused: Set[int] = set()
    alive = seen
    if seen and gentle(seen):
        while alive and time.monotonic() < started + timeout_s * TERM_SHARE and not hurry():
            time.sleep(_POLL_S)
            alive = targets()
            seen |= alive
    while alive:
        for identity in alive:
            if not kill(identity):
                refused.add(identity[0])
        time.sleep(_POLL_S)
        alive = targets()
        seen |= alive
        if time.monotonic() > started + timeout_s:
            break
    survivors = sorted(pid for pid, _ in alive)
    return Ended(
        sorted({pid for pid, _ in seen} - set(survivors)), survivors, sorted(refused & set(survivors))
    )


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
