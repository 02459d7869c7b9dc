"""Was the node slower in one boot of an arm than in another? The load generator that runs on it is a witness. Pure.

It does the same work on the same stream in every boot. Where its processor time for that rises, the processors were
slower or shared (neighbours of a virtual machine, a lower clock), and the server's own work on them took longer too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.analysis.validity import Finding, Limits, judged
from orchestrator.model.result import PointResult

EVENT_CPU = "client_event_cpu"  # s; the name among a point's metrics
_SPEED = "output_tps"
_MOST = 1 << 53  # beyond it a damaged file speaks


@dataclass(frozen=True)
class ClientWork:
    """What the load generator did during one load, and the processor time of its process within it."""

    cpu_s: float
    chunks: int
    ticks: int  # calls of its own 10 ms clock

    @property
    def chunk_us(self) -> float:
        return self.cpu_s / self.chunks * 1e6

    @property
    def event_us(self) -> float:
        """A tick costs what a chunk does or more, and a server that is slow for a reason of its own has more of them a
        chunk: with one request in flight they are half of the time. So they count as work, or they accuse the node."""
        return self.cpu_s / (self.chunks + self.ticks) * 1e6


def client_work(summary: Mapping[str, Any], ok: int) -> ClientWork | None:
    """From the load generator's summary; `ok`: good requests of the load, each of which has one chunk more than gaps.

    None where a figure is missing or cannot be one.
    """
    client = summary.get("client") or {}
    cpu_s = _number(client.get("cpu_s"))
    gaps = _number((summary.get("chunk_gap_ns") or {}).get("n"))
    ticks = _number((client.get("lag_ns") or {}).get("n"))
    if cpu_s is None or gaps is None or ticks is None:
        return None
    return ClientWork(cpu_s, int(gaps) + ok, int(ticks))


def event_cpu_s(work: ClientWork | None, limits: Limits | None = None) -> float | None:
    """Processor time a chunk or tick; None where there were too few of them to say."""
    return work.event_us / 1e6 if work is not None and _is_enough(work, limits or Limits()) else None


def times_slower(theirs: Mapping[str, float], mine: Mapping[str, float]) -> float | None:
    """How many times the processor time an event is in `mine`, over the places that both have; None without any."""
    ratios = [math.log(mine[place] / theirs[place]) for place in theirs if place in mine]
    return math.exp(sum(ratios) / len(ratios)) if ratios else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if 0 <= value < _MOST else None


def across_boots(
    points: Sequence[PointResult], works: Sequence[ClientWork | None], limits: Limits | None = None
) -> list[PointResult]:
    """The points, with a note on each that is slower than another boot of its arm while the node was slower too.

    `works`: of each point; None where it says nothing of the node, as from another machine.
    """
    used = limits or Limits()
    told = {
        place: work
        for place, (point, work) in enumerate(zip(points, works, strict=True))
        if point.valid and work is not None and _is_enough(work, used)
    }
    alike: dict[tuple[str, int], list[int]] = {}
    for place in told:
        alike.setdefault((points[place].arm, points[place].index), []).append(place)
    found = list(points)
    for places in alike.values():
        best = min(places, key=lambda place: told[place].event_us)
        for place in places:
            notes = _slower((points[place], told[place]), (points[best], told[best]), used)
            found[place] = judged(points[place], notes)
    return found


def _is_enough(work: ClientWork, limits: Limits) -> bool:
    return work.cpu_s >= limits.client_cpu_s and work.chunks >= limits.client_chunks


def _slower(
    mine: tuple[PointResult, ClientWork], best: tuple[PointResult, ClientWork], limits: Limits
) -> list[Finding]:
    """A boot that is as fast all the same is not noted: there is nothing to explain."""
    (point, work), (other, least) = mine, best
    speed, others = point.metrics.get(_SPEED), other.metrics.get(_SPEED)
    if speed is None or others is None or speed >= others * (1 - limits.boot_speed_gap):
        return []
    if work.event_us <= limits.node_slower * least.event_us:
        return []
    text = (
        f"the load generator took {work.chunk_us:.1f} us of processor time a streamed chunk here, "
        f"{least.chunk_us:.1f} us in boot {other.boot} of {other.arm}: the node's processors were slower or shared, "
        "so this speed is likely too low"
    )
    return [Finding("node_slower", text, fatal=False)]
