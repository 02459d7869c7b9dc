"""Offers one batch of requests: sends when pacing says so, waits for every response, keeps what happened."""

from __future__ import annotations

import asyncio
from time import perf_counter_ns
from typing import Callable, Optional, Sequence

from .connection import Connection
from .exchange import Exchange
from .pacing import allowed_in_flight, due_times_s, is_over, next_step_s
from .pool import NOT_OPENED, Pool
from .spec import Load


class Limits:
    """How long a response may be silent, and how long a request may take."""

    def __init__(self, idle_s: float, request_s: float) -> None:
        self.idle_s = idle_s
        self.request_s = request_s

    @property
    def look_every_s(self) -> float:
        return min(0.25, self.idle_s / 4, self.request_s / 4)

    def broken_by(self, exchange: Exchange, now_ns: int) -> Optional[str]:
        """The reason to give up on an exchange, or None."""
        if exchange.sent_ns is None:
            return None
        if now_ns - exchange.last_sign_ns > self.idle_s * 1e9:
            return f"idle: nothing came for {self.idle_s:g} s"
        if now_ns - exchange.sent_ns > self.request_s * 1e9:
            return f"timeout: not finished within {self.request_s:g} s"
        return None


class Feeder:
    """One phase of load. `run` returns when every request sent has ended."""

    def __init__(
        self,
        pool: Pool,
        phase: str,
        requests: Sequence[bytes],
        load: Load,
        concurrency: Optional[int],
        limits: Limits,
        keep: Callable[[Exchange], None],
    ) -> None:
        self._pool = pool
        self.phase = phase
        self._requests = requests
        self._load = load
        self._concurrency = concurrency
        self._limits = limits
        self._keep = keep
        self._loop = asyncio.get_running_loop()
        self._over: "asyncio.Future[None]" = self._loop.create_future()
        self._active: "dict[Exchange, Optional[Connection]]" = {}
        self._opening: "set[asyncio.Task[None]]" = set()
        self._timers: "dict[str, asyncio.TimerHandle]" = {}
        self._due_ns: "list[int]" = []
        self._next = 0
        self._stopped: Optional[str] = None
        self.began_ns = 0
        self.peak_in_flight = 0

    @property
    def in_flight(self) -> int:
        return len(self._active)

    @property
    def unsent(self) -> int:
        return len(self._requests) - self._next

    async def run(self) -> None:
        self.began_ns = perf_counter_ns()
        if self._load.kind == "open":
            times_s = due_times_s(self._load, len(self._requests))
            self._due_ns = [self.began_ns + int(time_s * 1e9) for time_s in times_s]
        self._watch()
        self._pump()
        self._settle()
        await self._over
        for timer in self._timers.values():
            timer.cancel()

    def stop(self, reason: str) -> None:
        """Send no more, and end what is under way as failed for `reason`."""
        self._stopped = reason
        for exchange, connection in list(self._active.items()):
            if connection is None:
                self._ended_unsent(exchange, reason)
            else:
                connection.fail(reason)
        self._settle()

    def _pump(self) -> None:
        """Send every request that may go now, and set the timer for the next one that may not yet."""
        while self._stopped is None and self._next < len(self._requests):
            now_ns = perf_counter_ns()
            elapsed_s = (now_ns - self.began_ns) / 1e9
            if is_over(self._load, elapsed_s):
                return
            wait_s = self._wait_s(now_ns, elapsed_s)
            if wait_s is not None:
                if wait_s > 0:
                    self._after("pump", wait_s, self._pump)
                return
            due_ns = self._due_ns[self._next] if self._due_ns else now_ns
            self._launch(due_ns)

    def _wait_s(self, now_ns: int, elapsed_s: float) -> Optional[float]:
        """None: send now. Positive: look again after that. Zero: a response must end first."""
        allowed = allowed_in_flight(self._load, self._concurrency, elapsed_s)
        if allowed is not None and self.in_flight >= allowed:
            step_s = next_step_s(self._load, elapsed_s)
            return 0.0 if step_s is None else max(step_s - elapsed_s, 1e-6)
        if self._due_ns and self._due_ns[self._next] > now_ns:
            return (self._due_ns[self._next] - now_ns) / 1e9
        return None

    def _launch(self, due_ns: int) -> None:
        exchange = Exchange(self.phase, self._next, due_ns)
        request = self._requests[self._next]
        self._next += 1
        connection = self._pool.take()
        self._active[exchange] = connection
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
        if connection is not None:
            connection.send(request, exchange, self._done)
            return
        task = self._loop.create_task(self._open_and_send(request, exchange))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open_and_send(self, request: bytes, exchange: Exchange) -> None:
        try:
            connection = await self._pool.open()
        except NOT_OPENED as error:
            if exchange in self._active:
                self._ended_unsent(exchange, f"connect: {error or 'timed out'}")
            return
        if exchange not in self._active:  # stopped meanwhile
            connection.close()
            return
        self._active[exchange] = connection
        connection.send(request, exchange, self._done)

    def _ended_unsent(self, exchange: Exchange, reason: str) -> None:
        exchange.failure = reason
        exchange.end_ns = perf_counter_ns()
        self._done(None, exchange)

    def _done(self, connection: Optional[Connection], exchange: Exchange) -> None:
        del self._active[exchange]
        if connection is not None:
            self._pool.give(connection)
        self._pump()
        self._keep(exchange)
        self._settle()

    def _settle(self) -> None:
        """End the run when nothing is in flight and nothing more will be sent."""
        if self._active or self._over.done():
            return
        elapsed_s = (perf_counter_ns() - self.began_ns) / 1e9
        if self._stopped or self._next == len(self._requests) or is_over(self._load, elapsed_s):
            self._over.set_result(None)

    def _watch(self) -> None:
        """Look at every exchange under way: is it within its limits?"""
        now_ns = perf_counter_ns()
        for exchange, connection in list(self._active.items()):
            reason = self._limits.broken_by(exchange, now_ns)
            if reason is not None and connection is not None:
                connection.fail(reason)
        self._settle()
        self._after("watch", self._limits.look_every_s, self._watch)

    def _after(self, name: str, wait_s: float, call: Callable[[], None]) -> None:
        if name in self._timers:
            self._timers[name].cancel()
        self._timers[name] = self._loop.call_later(wait_s, call)
