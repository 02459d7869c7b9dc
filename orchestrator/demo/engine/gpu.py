"""Simulated GPU memory: one file a process in the node's folder, read by the node's `nvidia-smi`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def start_ticks(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat: with the pid it names a process for good. None: no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    return None if fields[0] == "Z" else int(fields[19])


class OutOfMemory(Exception):
    pass


class Memory:
    """What this process holds on one simulated GPU. Without a node folder nothing is kept."""

    def __init__(self, folder: Path | None, index: int, total_mib: int, gpus: int | None = None) -> None:
        self.folder = folder
        self.gpus = gpus  # how many the node has; None: not known
        self.index = index
        self.total_mib = total_mib

    @classmethod
    def of_node(cls, node: Mapping[str, Any], index: int) -> Memory:
        folder = node.get("gpu_dir")
        total_mib = int(node.get("gpu_memory_mib", 143771))
        return cls(Path(folder) if folder else None, index, total_mib, node.get("gpus"))

    def hold(self, mib: int) -> None:
        """Set what this process holds. OutOfMemory if others leave less than that."""
        if self.folder is None:
            return
        free = self.total_mib - sum(entry["mib"] for entry in self._others())
        if mib > free:
            raise OutOfMemory(
                f"CUDA out of memory. Tried to allocate {mib / 1024:.2f} GiB. GPU {self.index} has a total "
                f"capacity of {self.total_mib / 1024:.2f} GiB of which {free / 1024:.2f} GiB is free."
            )
        entry = {"pid": os.getpid(), "start": start_ticks(os.getpid()), "gpu": self.index, "mib": mib}
        self.folder.mkdir(parents=True, exist_ok=True)
        target = self.folder / f"{os.getpid()}.json"
        scratch = target.with_suffix(".tmp")
        scratch.write_text(json.dumps(entry), encoding="utf-8")
        scratch.replace(target)

    def _others(self) -> list[dict[str, Any]]:
        return [e for e in holders(self.folder) if e["gpu"] == self.index and e["pid"] != os.getpid()]


def holders(folder: Path | None) -> list[dict[str, Any]]:
    """Entries of living processes."""
    if folder is None or not folder.is_dir():
        return []
    entries = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]
    return [entry for entry in entries if start_ticks(entry["pid"]) == entry["start"]]
