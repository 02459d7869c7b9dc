"""Who holds the GPUs: the tool's list and open devices, as ProcessFacts."""

from __future__ import annotations

import os
import subprocess
from typing import Dict, List, NamedTuple, Optional, Set

from . import gpus, procs
from .gpus import GRAPHICS, OpenDevices, Picture, Spawn
from .wire import Message


class Holding(NamedTuple):
    picture: Picture
    holders: List[Message]

    def computing(self) -> List[Message]:
        return [holder for holder in self.holders if holder["kind"] != GRAPHICS]


def read(wanted: Optional[List[int]] = None, spawn: Spawn = subprocess.Popen) -> Holding:
    """Processes on the wanted GPUs (None: all). Where the tool does not list a process, the devices that it has open
    decide: a server opens them before it has memory there, and its first process never has any."""
    picture = gpus.read(spawn)
    return Holding(picture, facts(picture, gpus.device_holders(), wanted))


def facts(picture: Picture, devices: Dict[int, OpenDevices], wanted: Optional[List[int]]) -> List[Message]:
    indices = {gpu.uuid: gpu.index for gpu in picture.gpus}
    found: Dict[int, Message] = {}
    elsewhere = set()
    for process in picture.processes:
        if wanted is not None and indices[process.gpu] not in wanted:
            elsewhere.add(process.pid)
            continue
        known = found.get(process.pid)
        if known is not None:
            known["memory_mib"] = _sum(known["memory_mib"], process.memory_mib)
            continue
        found[process.pid] = procs.fact(process.pid, process.kind, process.gpu, process.memory_mib)
        if found[process.pid]["start_time"] == 0:  # not visible from here: the tool's own word has to do
            found[process.pid]["command"] = process.name
    minors = _minors(picture, wanted)
    for pid, opened in devices.items():
        if minors is not None and opened.minors.isdisjoint(minors):
            continue
        if pid not in found and pid not in elsewhere and pid != os.getpid():
            fact = procs.fact(pid, opened.kind)
            if fact["start_time"]:
                found[pid] = fact
    return [found[pid] for pid in sorted(found)]


def _minors(picture: Picture, wanted: Optional[List[int]]) -> Optional[Set[int]]:
    """Device numbers of the wanted GPUs; None for all, and where one is not known."""
    uuids = [gpu.uuid for gpu in picture.gpus if wanted is not None and gpu.index in wanted]
    if not uuids or any(uuid not in picture.minors for uuid in uuids):
        return None
    return {picture.minors[uuid] for uuid in uuids}


def _sum(left: Optional[int], right: Optional[int]) -> Optional[int]:
    return None if left is None or right is None else left + right


def unexplained_mib(picture: Picture, wanted: Optional[List[int]]) -> Dict[int, Optional[int]]:
    """Memory in use per GPU that no listed process accounts for; None where the tool does not say."""
    result: Dict[int, Optional[int]] = {}
    for gpu in picture.gpus:
        if wanted is not None and gpu.index not in wanted:
            continue
        rest = gpu.memory_used_mib
        for process in picture.processes:
            if process.gpu == gpu.uuid and rest is not None:
                rest = None if process.memory_mib is None else rest - process.memory_mib
        result[gpu.index] = rest
    return result
