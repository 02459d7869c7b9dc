"""Boots that a resumed run started again while points of an earlier start were kept.

The logs and samples of such a boot are those of all its starts, one after the other, since each point is judged by
what was seen while it was measured. Both carry the node's wall clock, so that the order of lines is that of time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from orchestrator.records.events import events_of
from orchestrator.records.spans import load_span, utc_s
from orchestrator.store import RunStore, StoredPoint


def joined_log(earlier: bytes, later: bytes) -> bytes:
    """The server log of one boot over its starts; `later` may begin with `earlier`, since nodes append."""
    return later if later.startswith(earlier) else _whole_lines(earlier) + later


def joined_samples(earlier: bytes, later: bytes) -> bytes:
    """gpu.csv of one boot over its starts: one header, `elapsed_s` since the first sample of all.

    Starts with other columns, or without the two clocks, follow each other as they are.
    """
    text = joined_log(earlier, later)
    head, *rows = text.splitlines(keepends=True) or [b""]
    names = head.decode("utf-8", "replace").strip().split(",")
    if not {"utc_s", "elapsed_s"} <= set(names):
        return text
    at, since = names.index("utc_s"), names.index("elapsed_s")
    joined, begin, again = [head], None, False
    for row in rows:
        cells = row.split(b",")
        moment = _number(cells, at)
        if row == head:
            again = True
            continue
        if begin is None:
            begin = _number(cells, at, since)
        elif again and moment is not None and len(cells) > since:
            cells[since] = f"{moment - begin:.3f}".encode()
        joined.append(b",".join(cells))
    return b"".join(joined)


def _number(row: list[bytes], at: int, less: int | None = None) -> float | None:
    """Cell `at`, less cell `less`; None where one of them is no number."""
    try:
        return float(row[at]) - (0.0 if less is None else float(row[less]))
    except (ValueError, IndexError):
        return None


def _whole_lines(text: bytes) -> bytes:
    return text if not text or text.endswith(b"\n") else text + b"\n"


def first_starts(store: RunStore) -> dict[tuple[str, int], float]:
    """UTC seconds of the first start of each boot, by (arm, boot): where its log begins."""
    found: dict[tuple[str, int], float] = {}
    for boot, seconds in _starts(store):
        found.setdefault(boot, seconds)
    return found


def restarted_boots(store: RunStore, points: Iterable[tuple[tuple[str, int], StoredPoint]]) -> dict[str, int]:
    """Arm -> how many of its boots have points from before their last start. `points`: with the boot that served.

    A shared boot is one of every arm that has points in it: what sets them apart may be the two starts.
    """
    last = dict(_starts(store))
    served: dict[tuple[str, int], set[str]] = {}
    early: set[tuple[str, int]] = set()
    for boot, point in points:
        served.setdefault(boot, set()).add(point.arm)
        span = load_span(point.meta)
        if span is not None and span[1] < last.get(boot, 0.0):
            early.add(boot)
    return Counter(arm for boot in early for arm in served[boot])


def _starts(store: RunStore) -> Iterable[tuple[tuple[str, int], float]]:
    for event in events_of(store):
        if event["event"] == "started" and (seconds := utc_s(event.get("t"))) is not None:
            yield (event["arm"], event["boot"]), seconds
