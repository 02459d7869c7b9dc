"""One measurement: warm up, offer the load, stop early when asked."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from time import perf_counter_ns
from typing import Any, Optional, Sequence

from .exchange import LOAD, WARMUP, Exchange
from .feeder import Feeder, Limits
from .meter import LagMeter
from .pool import Pool
from .rawstore import RawStore
from .reading import Reading
from .spec import Load, Spec

_PROGRESS_S = 1.0


class Measurement:
    """Runs the phases of one spec. Afterwards `store` holds every exchange, unparsed but for the warm-up's."""

    def __init__(self, spec: Spec, store: RawStore) -> None:
        self.spec = spec
        self.store = store
        self.meter: Optional[LagMeter] = None
        self.interrupted = False
        self.stopped: Optional[str] = None
        self.readings: "list[Reading]" = []  # of the warm-up
        self.peak_in_flight = 0
        self.unsent = 0
        self.connections_opened = 0
        self.wall_start_utc = ""
        self.began_ns = 0
        self._feeder: Optional[Feeder] = None
        self._opening: "Optional[asyncio.Task[None]]" = None
        self._seen = {"done": 0, "failed": 0}
        self._tokens: Optional[int] = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, self._interrupt)
        self.wall_start_utc = _now_utc()
        self.began_ns = perf_counter_ns()
        self.meter = LagMeter(loop)
        pool = Pool(self.spec.host, self.spec.port, self.spec.connect_timeout_s)
        progress = loop.create_task(self._progress())
        try:
            await self._phases(pool)
        finally:
            progress.cancel()
            pool.close()
            self.connections_opened = pool.opened

    async def _phases(self, pool: Pool) -> None:
        spec = self.spec
        if spec.warmup:
            load = Load("closed") if spec.load.kind == "straddle" else spec.load
            concurrency = spec.load.high if spec.load.kind == "straddle" else spec.concurrency
            await self._phase(pool, WARMUP, spec.warmup, load, concurrency)
            self._judge_warmup()
        if spec.requests and not self.interrupted and self.stopped is None:
            await self._phase(pool, LOAD, spec.requests, spec.load, spec.concurrency)

    async def _phase(
        self, pool: Pool, phase: str, bodies: Sequence[bytes], load: Load, concurrency: Optional[int]
    ) -> None:
        limits = Limits(self.spec.idle_timeout_s, self.spec.request_timeout_s)
        requests = _requests(self.spec, bodies)
        await self._open_ahead(pool, min(self.spec.most_in_flight, len(requests)))
        self._seen = {"done": 0, "failed": 0}
        self._tokens = None
        feeder = self._feeder = Feeder(pool, phase, requests, load, concurrency, limits, self._keep)
        assert self.meter is not None
        if phase == LOAD:
            self.wall_start_utc = _now_utc()
            self.meter.start()
        try:
            if not self.interrupted:
                await feeder.run()
        finally:
            self.meter.stop()
        if phase == LOAD:
            self.peak_in_flight = feeder.peak_in_flight
            self.unsent = feeder.unsent

    async def _open_ahead(self, pool: Pool, count: int) -> None:
        self._opening = asyncio.get_running_loop().create_task(pool.open_ahead(count))
        await asyncio.wait(
            [self._opening]
        )  # returns on an interrupt too, where awaiting the task would raise

    def _judge_warmup(self) -> None:
        self.readings = [Reading(e, self.store.raw_of(e), self.spec.endpoint) for e in self.store.exchanges]
        self.store.exchanges.clear()
        failed = [reading.error for reading in self.readings if not reading.ok]
        if failed and not self.interrupted:
            self.stopped = (
                f"warm-up failed: {len(failed)} of {len(self.readings)} requests, first: {failed[0]}"
            )

    def _keep(self, exchange: Exchange) -> None:
        self._seen["done"] += 1
        self._seen["failed"] += exchange.looks_failed()
        tokens = exchange.tail_tokens()
        if tokens is not None:
            self._tokens = (self._tokens or 0) + tokens
        self.store.keep(exchange)

    def _interrupt(self) -> None:
        self.interrupted = True
        if self._opening is not None:
            self._opening.cancel()
        if self._feeder is not None:
            self._feeder.stop("interrupted")

    async def _progress(self) -> None:
        """One line a second, at whole seconds of elapsed time."""
        for second in range(1, sys.maxsize):
            due_ns = self.began_ns + int(second * _PROGRESS_S * 1e9)
            await asyncio.sleep(max(0.0, (due_ns - perf_counter_ns()) / 1e9))
            if not say(self._state()):
                return

    def _state(self) -> "dict[str, Any]":
        feeder = self._feeder
        return {
            "phase": feeder.phase if feeder else None,
            **self._seen,
            "in_flight": feeder.in_flight if feeder else 0,
            "output_tokens": self._tokens,
            "elapsed_s": round((perf_counter_ns() - self.began_ns) / 1e9, 3),
        }


def say(message: "dict[str, Any]") -> bool:
    """One JSON line on standard output; false when nobody reads it any more."""
    try:
        sys.stdout.write(json.dumps(message, separators=(",", ":")) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        return False
    return True


def _requests(spec: Spec, bodies: Sequence[bytes]) -> "list[bytes]":
    """Whole requests, encoded before the load begins."""
    host = f"[{spec.host}]" if ":" in spec.host else spec.host
    bearer = f"Authorization: Bearer {spec.api_key}\r\n" if spec.api_key else ""
    head = (
        f"POST {spec.endpoint} HTTP/1.1\r\nHost: {host}:{spec.port}\r\n{bearer}"
        "Content-Type: application/json\r\nAccept: text/event-stream\r\nContent-Length: "
    )
    return [f"{head}{len(body)}\r\n\r\n".encode() + body for body in bodies]


def _now_utc() -> str:
    """To the millisecond, since GPU samples are found by it and loads may be shorter than a second."""
    now = time.time()
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1000):03d}Z"
