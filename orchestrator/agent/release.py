"""Waiting until the GPU memory of ended processes is really free: the driver keeps it charged for seconds."""

from __future__ import annotations

import time
from typing import Callable, Dict, List, NamedTuple, Optional, Set

from . import gpus, holders
from .gpus import Picture, Spawn

_POLL_S = 0.25
SLACK_MIB = 512  # over what was in use before: driver contexts come and go
IDLE_MIB = 1024  # in use on a GPU that nobody uses, where nothing was measured before

Baseline = Dict[int, Optional[int]]


class Release(NamedTuple):
    """`problem` is None when the memory is proven free (or, with a `note`, when the tool cannot say more)."""

    waited_s: float
    problem: Optional[str]
    note: Optional[str] = None


def wait(
    pids: Set[int],
    baseline: Baseline,
    wanted: Optional[List[int]],
    timeout_s: float,
    spawn: Spawn,
    abort: Callable[[], bool] = lambda: False,
) -> Release:
    started = time.monotonic()
    while True:
        left_s = started + timeout_s - time.monotonic()
        picture = gpus.read(spawn, max(1.0, min(gpus.TOOL_TIMEOUT_S, left_s)))
        waited_s = round(time.monotonic() - started, 3)
        if picture.problem is None and not picture.gpus:
            return Release(0.0, None, "no GPU on this node")
        verdict = picture.problem or still_charged(picture, pids, baseline, wanted)
        if verdict is None:
            return Release(waited_s, None, _unknown_note(picture, wanted))
        if waited_s >= timeout_s or abort():
            return Release(waited_s, "after {:.1f} s: {}".format(waited_s, verdict))
        time.sleep(_POLL_S)


def still_charged(
    picture: Picture, pids: Set[int], baseline: Baseline, wanted: Optional[List[int]]
) -> Optional[str]:
    """What is still in use of what should be free, with numbers; None when nothing is."""
    listed = [process for process in picture.processes if process.pid in pids]
    if listed:
        return "; ".join(
            "pid {} still has {} MiB on {}".format(process.pid, _number(process.memory_mib), process.gpu)
            for process in listed
        )
    high = []
    for index, used in holders.unexplained_mib(picture, wanted).items():
        before = baseline.get(index)
        limit = IDLE_MIB if before is None else before + SLACK_MIB
        if used is not None and used > limit:
            high.append(
                "GPU {} has {} MiB in use that no process accounts for (limit {})".format(index, used, limit)
            )
    return "; ".join(high) or None


def _unknown_note(picture: Picture, wanted: Optional[List[int]]) -> Optional[str]:
    unknown = [index for index, used in holders.unexplained_mib(picture, wanted).items() if used is None]
    if not unknown:
        return None
    return "the tool does not tell the memory of GPU {}: judged by its process list".format(
        ", ".join(str(index) for index in unknown)
    )


def _number(memory_mib: Optional[int]) -> str:
    return "unknown" if memory_mib is None else str(memory_mib)
