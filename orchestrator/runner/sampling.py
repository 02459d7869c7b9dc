"""GPU samples of each boot: one CSV on the node, from the launch to the stop, fetched with the log."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.errors import RemoteError
from orchestrator.records.events import events_of
from orchestrator.remote.node import Node
from orchestrator.runner.events import Events
from orchestrator.store import RunStore

INTERVAL_S = 1.0
SAMPLING = "sampling"  # the event that says a boot has samples


def start_sampling(node: Node, events: Events, path: str, arm: str, boot: int) -> bool:
    """Whether samples are taken. A node without GPUs, or a sampler that cannot start, is no reason to stop a run."""
    try:
        note = node.sample(INTERVAL_S, path).note
    except RemoteError as error:
        note = f"no GPU samples: {error.message}"
    if note is None:
        events.emit(SAMPLING, arm=arm, boot=boot, path=path)
        return True
    events.emit("no_samples", arm=arm, boot=boot, text=note)
    return False


def sampled_boots(store: RunStore) -> frozenset[tuple[str, int]]:
    """(arm, boot) of those whose samples lie on the node."""
    found = (event for event in events_of(store) if event["event"] == SAMPLING)
    return frozenset((event["arm"], event["boot"]) for event in found)


@dataclass(frozen=True)
class GpuNow:
    """The newest sample of one GPU. None: the tool does not say."""

    index: int
    memory_mib: float | None
    clock_mhz: float | None
    utilization: float | None  # percent


def newest(header: str, tail: Iterable[str]) -> tuple[GpuNow, ...]:
    """All GPUs at the last time stamp that is whole; a torn first or last line is left out."""
    names = header.strip().split(",")
    rows = [row for line in tail if len(row := line.strip().split(",")) == len(names)]
    if not rows or not {"elapsed_s", "index"} <= set(names):
        return ()
    records = [dict(zip(names, row, strict=True)) for row in rows]
    last = records[-1]["elapsed_s"]
    return tuple(
        GpuNow(
            int(record["index"]),
            _number(record.get("memory.used")),
            _number(record.get("clocks.sm")),
            _number(record.get("utilization.gpu")),
        )
        for record in records
        if record["elapsed_s"] == last and re.fullmatch("[0-9]{1,6}", record["index"])
    )


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None
