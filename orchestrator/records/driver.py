"""Who drives a run right now, by the lock that its controller holds on a file of the run folder.

The kernel drops the lock with the process, so what stands in the file means something only while it is held. This side
only looks; `runner.runlock` takes it.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOCKED = "controller.lock"
_MOST_BYTES = 4096
_LOOKS, _LOOK_AGAIN_S = 10, 0.02  # a controller locks the file first and then writes who it is


@dataclass(frozen=True)
class Driving:
    """The controller by its own word. `pid` 0: it did not say."""

    pid: int = 0
    host: str = "an unknown host"


def driver_of(folder: Path) -> Driving | None:
    """None where no live process holds the lock, or the file system has none."""
    try:
        descriptor = os.open(folder / LOCKED, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        for _ in range(_LOOKS):
            if not _held(descriptor):
                return None
            if told := os.pread(descriptor, _MOST_BYTES, 0):
                return _who(told)
            time.sleep(_LOOK_AGAIN_S)
    finally:
        os.close(descriptor)
    return Driving()


def _held(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def _who(told: bytes) -> Driving:
    try:
        value: Any = json.loads(told)
    except ValueError:
        return Driving()
    pid, host = (value.get("pid"), value.get("host")) if isinstance(value, dict) else (None, None)
    return Driving(pid if type(pid) is int else Driving.pid, host if type(host) is str else Driving.host)
