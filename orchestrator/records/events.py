"""events.jsonl of a run folder, as far as it can be read, and the order in which boots ran."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from orchestrator.store import EVENTS, RunStore

_KINDS = {"event": str, "arm": str, "boot": int, "index": int, "concurrency": int}


def events_of(store: RunStore) -> Iterator[dict[str, Any]]:
    path = store.folder / EVENTS
    if not path.is_file():
        return
    with suppress(OSError), path.open(encoding="utf-8", errors="replace") as lines:  # see `records.damage`
        for line in lines:
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue  # the last line of a killed run may be torn
            if isinstance(event, dict) and _whole(event):
                yield event


def _whole(event: dict[str, Any]) -> bool:
    """A start without its boot, or a boot of a wrong type, in a damaged file, is of no use to anybody."""
    if any(event.get(key) is not None and type(event[key]) is not kind for key, kind in _KINDS.items()):
        return False
    return "event" in event and (event["event"] != "started" or {"arm", "boot"} <= event.keys())


def boot_order(store: RunStore) -> tuple[tuple[str, int], ...]:
    """(arm, boot) as they were started, from events.jsonl."""
    return tuple((event["arm"], event["boot"]) for event in events_of(store) if event["event"] == "started")


def measuring_order(store: RunStore) -> tuple[tuple[str, int], ...]:
    """(arm, boot) in the order in which they were measured: a shared boot counts where it was switched to the arm."""
    found: list[tuple[str, int]] = []
    for event in events_of(store):
        if event["event"] in ("started", "switched"):
            found.append((event["arm"], event["boot"]))
    return tuple(dict.fromkeys(found))
