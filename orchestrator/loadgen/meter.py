"""The generator's own lateness and CPU time: what a sceptic asks first."""

from __future__ import annotations

import asyncio
import time
from array import array
from typing import Any, Optional, Sequence

_TICK_S = 0.01


def nearest_rank(ordered: Sequence[int], share: float) -> Optional[int]:
    """The smallest value that at least `share` of all values do not exceed; None without values."""
    if not ordered:
        return None
    rank = -(-len(ordered) * round(share * 10000) // 10000)
    return ordered[max(rank, 1) - 1]


def spread(values: Sequence[int]) -> "dict[str, Any]":
    """n, mean and nearest-rank percentiles, in the unit of the values; None where there is no value."""
    ordered = sorted(values)
    mean = sum(ordered) / len(ordered) if ordered else None
    shares = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {"n": len(ordered), "mean": mean, **{k: nearest_rank(ordered, s) for k, s in shares.items()}}


def histogram(values: Sequence[int]) -> "dict[str, int]":
    """How many values lie below each power of two: {"1024": 17, "2048": 3, ...}, in the unit of the values."""
    counts: "dict[int, int]" = {}
    for value in values:
        bound = 1 << max(value, 0).bit_length()
        counts[bound] = counts.get(bound, 0) + 1
    return {str(bound): counts[bound] for bound in sorted(counts)}


class LagMeter:
    """Asks the event loop for a call every 10 ms and notes how late each comes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: Optional[asyncio.TimerHandle] = None
        self._due_ns = 0
        self._began = (0, 0.0)
        self.lags_ns = array("q")
        self.wall_ns = 0
        self.cpu_s = 0.0

    def start(self) -> None:
        self._began = (time.perf_counter_ns(), time.process_time())
        self._arm()

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
            self.wall_ns += time.perf_counter_ns() - self._began[0]
            self.cpu_s += time.process_time() - self._began[1]

    def _arm(self) -> None:
        # From now on, not from the last due time: lateness is sampled, not paced, and must not pile up.
        self._due_ns = time.perf_counter_ns() + int(_TICK_S * 1e9)
        self._handle = self._loop.call_later(_TICK_S, self._tick)

    def _tick(self) -> None:
        self.lags_ns.append(max(0, time.perf_counter_ns() - self._due_ns))
        self._arm()

    def report(self) -> "dict[str, Any]":
        wall_s = self.wall_ns / 1e9
        return {
            "lag_ns": {**spread(self.lags_ns), "histogram": histogram(self.lags_ns)},
            "wall_s": wall_s,
            "cpu_s": self.cpu_s,
            "cpu_share": self.cpu_s / wall_s if wall_s else None,
        }
