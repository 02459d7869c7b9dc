"""Who drives a run: an OS lock on a file of its folder, held by the controller for as long as that process lives.

The kernel drops it with the process, so it is never stale; what the file says beside it is for people.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from orchestrator.errors import NodeBusy
from orchestrator.store import utc_now

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


class RunLock:
    """Of one controller: free until `take`, then held until `release` or the end of the process."""

    def __init__(self, *, detached: bool = False) -> None:
        self._detached = detached
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def take(self, folder: Path) -> None:
        """Raises NodeBusy naming the controller that drives this run already. Twice is once."""
        if self._descriptor is not None:
            return
        descriptor = os.open(folder / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise _driven(folder) from None
        except OSError:  # a file system without locks: the node's own lock has to do
            pass
        self._descriptor = descriptor
        me = Driver(os.getpid(), socket.gethostname(), self._detached, utc_now())
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(asdict(me)).encode(), 0)

    def release(self) -> None:
        """The file stays, empty: removing it would let two controllers lock two files of one name."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None


def driver_of(folder: Path) -> Driver | None:
    """The live controller of a run; None where there is none."""
    try:
        descriptor = os.open(folder / FILE_NAME, os.O_RDONLY | os.O_NOFOLLOW)
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
        descriptor = os.open(folder / FILE_NAME, os.O_RDONLY | os.O_NOFOLLOW)
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
    known = {field.name: type(field.default) for field in fields(Driver)}
    return Driver(**{name: value[name] for name, kind in known.items() if type(value.get(name)) is kind})


def _driven(folder: Path) -> NodeBusy:
    found = driver_of(folder) or Driver()
    kind = ", detached" if found.detached else ""
    helps = (
        f"Ctrl-C in its terminal ends it, or dynspec stop NODE --force; dynspec logs {folder.name} shows it"
    )
    if found.detached:
        helps = f"without --detach, dynspec run EXPERIMENT.yaml --resume {folder.name} shows it"
    return NodeBusy(
        f"run {folder.name} is under way: pid {found.pid} on {found.host}{kind}, since {found.since_utc}",
        help=helps,
    )
