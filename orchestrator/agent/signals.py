"""Signals as something to wait for: a descriptor becomes readable with each, so that the main loop wakes at once."""

from __future__ import annotations

import contextlib
import os
import signal


class SignalWatch:
    """From its making on, TERM, INT and HUP are noted in `asked_to_end`, and the end of a child is no surprise."""

    def __init__(self) -> None:
        self.asked_to_end = False
        self.descriptor, wake_write = os.pipe()
        for descriptor in (self.descriptor, wake_write):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(signum, self._on_signal)

    def _on_signal(self, signum: int, frame: object) -> None:
        # Handlers nest when hundreds of children end at once: nothing may block or fail in here.
        self.asked_to_end = self.asked_to_end or signum != signal.SIGCHLD

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.descriptor, 4096)
