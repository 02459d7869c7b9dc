"""When the next request may go: pure functions of the time since the load began."""

from __future__ import annotations

import random
from typing import Optional

from .spec import Load


def due_times_s(load: Load, count: int) -> "list[float]":
    """Open load: seconds from the start of the load to each request's due time."""
    if load.arrival == "constant":
        return [position / load.rate_per_s for position in range(count)]
    source = random.Random(load.seed)
    due, times = 0.0, []
    for _ in range(count):
        times.append(due)
        due += source.expovariate(load.rate_per_s)
    return times


def allowed_in_flight(load: Load, concurrency: Optional[int], elapsed_s: float) -> Optional[int]:
    """Requests that may be in flight now; None is no limit."""
    if load.kind != "straddle":
        return concurrency
    return load.low if elapsed_s % load.period_s < load.period_s / 2 else load.high


def next_step_s(load: Load, elapsed_s: float) -> Optional[float]:
    """Straddle: the time of the next step between low and high, strictly later than `elapsed_s`."""
    if load.kind != "straddle":
        return None
    half_s = load.period_s / 2
    return (int(elapsed_s / half_s + 1e-9) + 1) * half_s


def is_over(load: Load, elapsed_s: float) -> bool:
    """True when no new request may be sent."""
    return load.duration_s is not None and elapsed_s >= load.duration_s
