"""Did the server run the requests that were sent to it, or did they wait in its queue? By its own log. Pure.

The client sees the asked concurrency in flight either way. A `Decode batch` line tells how many ran in that step, so a
point during which no line comes near the asked concurrency measured a queue: KV memory was short, or prefill behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC

from orchestrator.analysis.trace import ZONE_S, Trace
from orchestrator.analysis.validity import Finding, judged
from orchestrator.model.result import PointResult

LEAST_LINES = 5  # fewer are no picture of a point
SHARE = 0.9  # of the asked concurrency: the batch is not whole while a request is replaced by the next
EDGE_S = 1.0  # stamps are whole seconds


@dataclass(frozen=True)
class Load:
    """When a point was measured, and when the server began whose log `trace` is; UTC seconds, of one machine's clock
    or two that agree to a few minutes."""

    begin_utc_s: float
    end_utc_s: float
    started_utc_s: float
    trace: Trace


def with_queueing(
    points: Sequence[PointResult], loads: Mapping[tuple[str, int, int], Load]
) -> tuple[PointResult, ...]:
    """The points, noted where the server ran fewer requests than asked. `loads`: by arm, boot and index."""
    found = []
    for point in points:
        load = loads.get((point.arm, point.boot, point.index))
        running = running_during(load) if load else ()
        few = len(running) >= LEAST_LINES and max(running) < SHARE * point.concurrency
        found.append(judged(point, [_finding(max(running), point.concurrency)]) if few else point)
    return tuple(found)


def running_during(load: Load) -> tuple[int, ...]:
    """Requests in the logged decode steps of a load. Empty where ranks have batches of their own, or nothing is known.

    The log has the node's wall clock without a zone; zones differ by whole quarters of an hour.
    """
    if load.trace.start is None or "DP" in load.trace.rank:
        return ()
    start_s = load.trace.start.replace(tzinfo=UTC).timestamp()
    start_s -= round((start_s - load.started_utc_s) / ZONE_S) * ZONE_S
    begin, end = load.begin_utc_s + EDGE_S, load.end_utc_s - EDGE_S
    return tuple(sample.running for sample in load.trace.samples if begin <= start_s + sample.t_s <= end)


def _finding(most: int, asked: int) -> Finding:
    text = f"by its log the server ran at most {most} requests at once, {asked} were sent: the others waited there"
    return Finding("server_queued", text, fatal=False)
