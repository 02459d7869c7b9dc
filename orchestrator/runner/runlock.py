"""Who drives a run: an OS lock on a file of its folder, held by the controller for as long as that process lives.

The kernel drops it with the process, so it is never stale; what the file says beside it is for people.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Self

from orchestrator.errors import NodeBusy, UsageError
from orchestrator.records.begun import goes_on_with
from orchestrator.records.driver import FILE_NAME, Driver, driver_of, open_lock
from orchestrator.store import RunStore, from_here, utc_now


class RunLock:
    """Of one controller: free until `take`, then held until `release` or the end of the process."""

    def __init__(self, *, detached: bool = False, arms: tuple[str, ...] = ()) -> None:
        self._detached, self._arms = detached, arms
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def take(self, folder: Path) -> None:
        """Raises NodeBusy naming the controller that drives this run already, UsageError where something stands in the
        file's place. Twice is once."""
        if self._descriptor is not None:
            return
        descriptor = _opened(folder)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise _driven(folder) from None
        except OSError:  # a file system without locks: the node's own lock has to do
            pass
        self._descriptor = descriptor
        me = Driver(os.getpid(), socket.gethostname(), self._detached, utc_now(), self._arms)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(asdict(me)).encode(), 0)

    def release(self) -> None:
        """The file stays, empty: removing it would let two controllers lock two files of one name."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None


def _opened(folder: Path) -> int:
    try:
        return open_lock(folder, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        why = "a link" if error.errno == errno.ELOOP else error.strerror
        raise UsageError(
            f"{from_here(folder / FILE_NAME)} can't be locked: {why}",
            help="remove it, unless another dynspec drives this run: it is made anew",
        ) from None


def _driven(folder: Path) -> NodeBusy:
    found = driver_of(folder) or Driver()
    kind = ", detached" if found.detached else ""
    helps = (
        f"Ctrl-C in its terminal ends it, or dynspec stop NODE --force; dynspec logs {folder.name} shows it"
    )
    if found.detached:
        helps = f"without --detach, {goes_on_with(RunStore(folder))} shows it"
    return NodeBusy(
        f"run {folder.name} is under way: pid {found.pid} on {found.host}{kind}, since {found.since_utc}",
        help=helps,
    )
