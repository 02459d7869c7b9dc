"""Which processes belong to an embedded node, and ending them by pid."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import NamedTuple

from orchestrator.demo.engine.gpu import start_ticks


class Identity(NamedTuple):
    """A process for good: a pid alone may be given to another one."""

    pid: int
    start: int

    @property
    def alive(self) -> bool:
        return start_ticks(self.pid) == self.start


def of_folder(folder: Path) -> list[Identity]:
    """Living processes of this user that name `folder` in their environment, command line or working folder."""
    mark = os.fsencode(str(folder))
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid() or not _mentions(entry, mark):
            continue
        start = start_ticks(int(entry.name))
        if start is not None:
            found.append(Identity(int(entry.name), start))
    return found


def _mentions(entry: Path, mark: bytes) -> bool:
    try:
        if entry.stat().st_uid != os.getuid():
            return False
        texts = [(entry / "environ").read_bytes(), (entry / "cmdline").read_bytes()]
        texts.append(os.fsencode(os.readlink(entry / "cwd")))
    except OSError:
        return False
    return any(mark in text for text in texts)


def end(folder: Path, *, grace_s: float = 3.0) -> list[int]:
    """TERM, then KILL every process of `folder`; returns the pids that are still there."""
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 2.0)):
        deadline = time.monotonic() + wait_s
        signalled: set[Identity] = set()
        while (alive := of_folder(folder)) and time.monotonic() < deadline:
            for identity in alive:
                if identity not in signalled:
                    signalled.add(identity)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(identity.pid, number)
            time.sleep(0.02)
        if not alive:
            break
    return [identity.pid for identity in of_folder(folder)]
