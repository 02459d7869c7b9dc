"""How long the node may stay without a word from its controller."""

from __future__ import annotations

import threading
import time
from typing import Callable


def boot_clock() -> float:
    """Goes on while the machine is suspended, and never jumps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Lease:
    def __init__(self, length_s: float, clock: Callable[[], float] = boot_clock) -> None:
        self.length_s = length_s
        self._clock = clock
        self._lock = threading.Lock()
        self._ends = clock() + length_s

    def renew(self) -> None:
        with self._lock:
            self._ends = self._clock() + self.length_s

    def left_s(self) -> float:
        with self._lock:
            return self._ends - self._clock()

    @property
    def over(self) -> bool:
        return self.left_s() <= 0
