"""Simulated durations in real time: waits end when they are due, not a wait after whatever came before."""

from __future__ import annotations

import asyncio
import time


class Pacer:
    """Adds up durations from the moment work begins, so that a late wake-up is made good by the next wait.

    `lag_s` grows when the machine cannot keep up: then the server is slower than its parameters say.
    """

    GIVE_UP_S = 0.25

    def __init__(self, speed: float) -> None:
        self.speed = speed
        self.lag_s = 0.0
        self._due = time.perf_counter()

    def restart(self) -> None:
        """Begin from now; called when there was nothing to do."""
        self._due = time.perf_counter()

    async def spend(self, ms: float) -> None:
        self._due += ms / 1000 / self.speed
        left = self._due - time.perf_counter()
        await asyncio.sleep(max(left, 0))
        if left < -self.GIVE_UP_S:
            self.lag_s -= left
            self.restart()
