"""Where the processes of a server load the package from: what each was started with, and what it has mapped.

The environment is read when a process is first seen: servers that rename their workers overwrite it in memory.
"""

from __future__ import annotations

import os
from typing import Dict, List, NamedTuple, Optional, Set

from . import procs
from .outrank import VARIABLE
from .procs import Identity
from .wire import Message


class Young(NamedTuple):
    """What a process was started with. `path`: its PYTHONPATH; `holder`: the first folder in it that has the package.

    `readable`: our mark stands in its environment, so that this is what it was.
    """

    readable: bool
    path: str
    holder: Optional[str]


class Origins:
    """Of one server, whose package lies in `root` and is installed at `source`. `mark`: NAME=value of the run."""

    def __init__(self, root: str, source: str, package: str, mark: str, leader: int) -> None:
        self._root = root
        self._inside = os.path.join(package, "__init__.py")
        self._below = tuple(os.path.realpath(folder) + os.sep for folder in (root, source))
        self._mark = os.fsencode(mark)
        self._program = _program(leader)
        self._young: Dict[Identity, Young] = {}

    def note(self, alive: Set[Identity]) -> None:
        """Looks at each process once, as soon as it is known."""
        for identity in alive - set(self._young):
            young = self._read(identity[0])
            if young is not None:
                self._young[identity] = young

    def tell(self, alive: Set[Identity]) -> List[Message]:
        """One entry for each process that runs the server's interpreter: {pid, command, state, how}.

        `state` is overlay, installed or unknown; `how` says what that is read from.
        """
        self.note(alive)
        return [
            self._told(identity)
            for identity in sorted(alive)
            if _program(identity[0]) == self._program and procs.is_alive(identity)
        ]

    def _told(self, identity: Identity) -> Message:
        state, how = self._state(identity)
        return {"pid": identity[0], "command": procs.command_line(identity[0]), "state": state, "how": how}

    def _state(self, identity: Identity) -> "tuple[str, str]":
        mapped = _mapped(identity[0])
        ours, installed = (sorted(path for path in mapped if path.startswith(top)) for top in self._below)
        if installed:
            return "installed", "maps {}".format(installed[0])
        if ours:
            return "overlay", "maps {}".format(ours[0])
        young = self._young.get(identity)
        if young is None or not young.readable:
            return "unknown", "its environment cannot be read"
        state = "overlay" if young.holder == self._root else "installed"
        return state, "was started with PYTHONPATH={}".format(young.path)

    def _read(self, pid: int) -> Optional[Young]:
        """Servers put folders before ours (torch hands its whole sys.path down): what counts is who has the package."""
        try:
            with open("/proc/{}/environ".format(pid), "rb") as stream:
                entries = stream.read().split(b"\0")
            here = os.readlink("/proc/{}/cwd".format(pid))
        except OSError:
            return None
        prefix = os.fsencode(VARIABLE) + b"="
        values = [os.fsdecode(entry[len(prefix) :]) for entry in entries if entry.startswith(prefix)]
        path = values[0] if values else ""
        folders = (
            [os.path.normpath(os.path.join(here, part)) for part in path.split(os.pathsep)] if path else []
        )
        holders = (folder for folder in folders if os.path.isfile(os.path.join(folder, self._inside)))
        return Young(self._mark in entries, path, next(holders, None))


def _program(pid: int) -> Optional[str]:
    try:
        return os.readlink("/proc/{}/exe".format(pid))
    except OSError:
        return None


def _mapped(pid: int) -> Set[str]:
    try:
        with open("/proc/{}/maps".format(pid), "rb") as stream:
            lines = stream.read().splitlines()
    except OSError:
        return set()
    found = (line.split(None, 5) for line in lines)
    return {os.fsdecode(words[5]) for words in found if len(words) == 6}
