"""SIGINT, SIGTERM and SIGHUP as one exception, once; while the node is given back, further signals are only noted.

A second Ctrl-C is the natural reflex of a person who sees nothing happen. It must not skip the restore, so it
never raises: it is counted, and answered with a line on standard error.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from orchestrator.errors import Interrupted

WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_REPLY = b"dynspec: still giving the node back; please wait\n"
_HELD_REPLY = b"dynspec: waiting for the node's answer; then it is given back\n"


class SignalGate:
    """`first` is the signal that ended the run, or None. Use `watching_signals` to make one."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.repeats = 0
        self._raises = True
        self._reply = _REPLY

    def handle(self, signum: int, _frame: FrameType | None) -> None:
        if self.first is not None:
            self.repeats += 1
            _say(self._reply)
            return
        self.first = signum
        if self._raises:
            raise Interrupted(signum)
        _say(self._reply)

    def disarm(self) -> None:
        """From now on signals are remembered, never raised: the unwind has begun."""
        self._raises = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """For what must not be cut in two: a signal that comes inside is raised when it is over."""
        self._raises, self._reply = False, _HELD_REPLY
        try:
            yield
        finally:
            self._raises, self._reply = True, _REPLY
        if self.first is not None:
            raise Interrupted(self.first)


@contextmanager
def watching_signals() -> Iterator[SignalGate]:
    """Installs the gate for the main thread and puts the old handlers back after a run that no signal ended.

    One that a signal ended has said its exit code, and the next signal of the same impatient hand must not change it:
    an ignored signal stays ignored while the interpreter shuts down, any other handler gives way to the default one.
    A signal that was ignored when we came (nohup, a background job of a script) stays ignored.
    """
    gate = SignalGate()
    if threading.current_thread() is not threading.main_thread():
        yield gate
        return
    wanted = [number for number in WATCHED if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, gate.handle) for number in wanted}
    try:
        yield gate
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if gate.first is None else signal.SIG_IGN)


def _say(text: bytes) -> None:
    """Past every buffer: the handler may have interrupted a print, and a nested one is an error."""
    with contextlib.suppress(OSError):
        os.write(2, text)
