"""Who drives a run right now, by the lock that its controller holds on a file of the run folder.

The kernel drops the lock with the process, so what stands in the file means something only while it is held. This side
only looks; `runner.runlock` takes it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

FILE_NAME = "controller.lock"
_MOST_BYTES = 4096
_TRIES, _TRY_AGAIN_S = 10, 0.02  # the file is empty for a moment after it was locked


@dataclass(frozen=True)
class Driver:
    """The controller of a live run, by its own word. `pid` 0: it did not say."""

    pid: int = 0
    host: str = "unknown"
    detached: bool = False
    since_utc: str = "unknown"
    arms: tuple[str, ...] | None = None  # that it was told to measure; (): none was chosen


def open_lock(folder: Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of the lock file. Raises OSError, also for what is no file of its own: a link, a folder, a pipe."""
    # Without O_NONBLOCK, opening a pipe would wait for its writer.
    descriptor = os.open(folder / FILE_NAME, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return descriptor


def driver_of(folder: Path) -> Driver | None:
    """The live controller of a run; None where there is none."""
    try:
        descriptor = open_lock(folder)
    except OSError:
        return None
    try:
        for _ in range(_TRIES):
            if _free(descriptor):
                return None
            told = os.pread(descriptor, _MOST_BYTES, 0)
            if told:
                return _read(told)
            time.sleep(_TRY_AGAIN_S)
    finally:
        os.close(descriptor)
    return Driver()


def abandoned(folder: Path) -> bool:
    """Nobody drives the run, by the word of the kernel: False too where the file system has no locks to ask for.

    A controller writes the outcome before it lets go, so a run that is abandoned and still has none never gets one by
    itself.
    """
    try:
        descriptor = open_lock(folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        return _free(descriptor, without_locks=False)
    finally:
        os.close(descriptor)


def _free(descriptor: int, *, without_locks: bool = True) -> bool:
    """`without_locks`: the answer where the file system has none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return without_locks
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return True


def _read(told: bytes) -> Driver:
    """What does not have the type that we write is left at "unknown"."""
    try:
        value: Any = json.loads(told)
    except ValueError:
        return Driver()
    if not isinstance(value, dict):
        return Driver()
    known = {field.name: type(field.default) for field in fields(Driver) if field.name != "arms"}
    arms = value.get("arms")
    return Driver(
        **{name: value[name] for name, kind in known.items() if type(value.get(name)) is kind},
        arms=tuple(map(str, arms)) if isinstance(arms, list) else None,
    )
