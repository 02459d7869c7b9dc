"""SIGINT, SIGTERM and SIGHUP as one exception, once; while the node is given back, further signals are only noted.

A second Ctrl-C is the natural reflex of a person who sees nothing happen. It must not skip the restore, so it
never raises: it is counted, and the caller says that the node is still being given back.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from orchestrator.errors import Interrupted

WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SignalGate:
    """`first` is the signal that ended the run, or None. Use `watching_signals` to make one."""

    def __init__(self, on_repeat: Callable[[int], None]) -> None:
        self.first: int | None = None
        self.repeats = 0
        self._armed = True
        self._on_repeat = on_repeat

    def handle(self, signum: int, _frame: FrameType | None) -> None:
        if self.first is None:
            self.first = signum
            if self._armed:
                raise Interrupted(signum)
        else:
            self.repeats += 1
            self._on_repeat(signum)

    def disarm(self) -> None:
        """From now on signals are remembered, never raised: the unwind has begun."""
        self._armed = False


@contextmanager
def watching_signals(on_repeat: Callable[[int], None]) -> Iterator[SignalGate]:
    """Installs the gate for the main thread and puts the old handlers back afterwards."""
    gate = SignalGate(on_repeat)
    if threading.current_thread() is not threading.main_thread():
        yield gate
        return
    before = {number: signal.signal(number, gate.handle) for number in WATCHED}
    try:
        yield gate
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
