"""When a point was measured, by what the load generator says."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

CLOCK_KEY = (
    "node_clock_ahead_s"  # in a load's summary: the node's clock less the load generator's, of two machines
)


def client_summary(load: Mapping[str, Any]) -> Mapping[str, Any]:
    """The load generator's summary; some agents hand on the line that it stands in."""
    inner = load.get("summary")
    return inner if isinstance(inner, Mapping) else load


def load_span(meta: Mapping[str, Any]) -> tuple[float, float] | None:
    """Begin and end of a point's load in UTC seconds, by the node's clock."""
    load = client_summary(meta.get("load") or {})
    begin = utc_s(load.get("wall_start_utc"))
    length = (load.get("client") or {}).get("wall_s")
    if begin is None or not isinstance(length, int | float):
        return None
    ahead_s = load.get(CLOCK_KEY)
    begin += ahead_s if isinstance(ahead_s, int | float) else 0.0
    return begin, begin + length


def utc_s(text: object) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp() if isinstance(text, str) else None
    except ValueError:
        return None
