"""What spoils a measurement on a GPU and is no sample: another process on it, and the driver's own errors (XID)."""

from __future__ import annotations

import os
import re
import subprocess
from typing import Dict, List, Optional, Set

from . import gpus, procs
from .gpus import Spawn

KERNEL_LOG = "/dev/kmsg"
_RECORD_BYTES = 8192  # one read of /dev/kmsg gives one record, of at most this size
_MOST_RECORDS = 10_000  # a flood must not hold up the samples
_PROCESS = re.compile(r"((?:GPU|MIG)-[0-9A-Za-z/-]+), (\d{1,10})\Z")
# "NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=python3, ...": the pid is quoted, unknown or missing in some releases.
_XID = re.compile(r"NVRM: Xid \(PCI:[0-9a-fA-F:.]+\): (\d{1,4}),(?: pid='?(\d{1,10})\b)?")
_MPS = "nvidia-cuda-mps"  # the daemon through which our own server may compute


def ours() -> Set[int]:
    """This process and everything below it: the guardian adopts what its server leaves behind."""
    return procs.descendants(procs.snapshot(), [os.getpid()]) | {os.getpid()}


def foreign_pids(spawn: Spawn = subprocess.Popen, timeout_s: float = gpus.TOOL_TIMEOUT_S) -> List[int]:
    """Processes that compute on a GPU which a process of ours computes on too.

    A pid that is not seen here (another pid namespace) counts for nobody. Raises gpus.Unreadable.
    """
    argv = [gpus.TOOL, "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader,nounits"]
    by_gpu: Dict[str, Set[int]] = {}
    for line in gpus.run_tool(argv, spawn, timeout_s).splitlines():
        match = _PROCESS.match(line.strip())
        if match:
            by_gpu.setdefault(match.group(1), set()).add(int(match.group(2)))
    own = ours()
    found: Set[int] = set()
    for pids in by_gpu.values():
        if pids & own:
            found |= pids - own
    return sorted(pid for pid in found if _counts(pid))


def _counts(pid: int) -> bool:
    stat = procs.stat_of(pid)
    return stat is not None and not stat.gone and not stat.command.startswith(_MPS)


class KernelLog:
    """New driver errors since the last look. Without the right to read the kernel's log nothing is known."""

    def __init__(self, path: str = KERNEL_LOG) -> None:
        self._file: Optional[int] = None
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._file, 0, os.SEEK_END)
        except OSError:
            self.close()

    @property
    def readable(self) -> bool:
        return self._file is not None

    def xids(self) -> List[int]:
        """Codes in the order of the log. One that names a process of somebody else's is left out."""
        found: List[int] = []
        for match in _XID.finditer(self._news()):
            if match.group(2) is None or int(match.group(2)) in ours():
                found.append(int(match.group(1)))
        return found

    def _news(self) -> str:
        blocks: List[bytes] = []
        for _ in range(_MOST_RECORDS):
            if self._file is None:
                break
            try:
                block = os.read(self._file, _RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # records were overwritten before they were read
            except OSError:
                self.close()  # the right to read was checked late, or taken away
                break
            if not block:
                break
            blocks.append(block)
        return b"".join(blocks).decode("utf-8", "replace")

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file = None
