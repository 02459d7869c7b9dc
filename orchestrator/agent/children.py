"""The guardian's children. It is a subreaper: strangers' orphans of its own tree come back to it and must be reaped,
without taking the exit status of a child that somebody else waits for."""

from __future__ import annotations

import os
import subprocess
import threading
from typing import Any, Dict, Set

from . import procs
from .procs import Stat


class Children:
    """Spawns children and reaps the adopted ones. `spawn` has the shape of `subprocess.Popen`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owned: Set[int] = set()
        self._helpers: Set[int] = set()

    def spawn(self, argv: Any, **options: Any) -> "subprocess.Popen[bytes]":
        """A helper (a tool with its own time limit). It is no part of the server's tree."""
        return self._spawn(argv, options, helper=True)

    def spawn_server(self, argv: Any, **options: Any) -> "subprocess.Popen[bytes]":
        return self._spawn(argv, options, helper=False)

    def _spawn(self, argv: Any, options: Dict[str, Any], helper: bool) -> "subprocess.Popen[bytes]":
        with self._lock:  # so that a child that ends at once is known before anything is reaped
            process: "subprocess.Popen[bytes]" = subprocess.Popen(argv, close_fds=True, **options)
            self._owned.add(process.pid)
            if helper:
                self._helpers.add(process.pid)
            return process

    def reap(self, processes: Dict[int, Stat]) -> None:
        """Waits for adopted zombies; for owned ones that were waited for, forgets the pid."""
        me = os.getpid()
        with self._lock:
            for pid in list(self._owned):
                stat = procs.stat_of(pid)
                if stat is None or stat.parent != me:
                    self._owned.discard(pid)
                    self._helpers.discard(pid)
            for stat in processes.values():
                if stat.parent == me and stat.state == "Z" and stat.pid not in self._owned:
                    try:
                        os.waitpid(stat.pid, os.WNOHANG)
                    except ChildProcessError:
                        pass

    def helpers(self, processes: Dict[int, Stat]) -> Set[int]:
        """Helpers and whatever runs below them."""
        with self._lock:
            roots = set(self._helpers)
        return roots | procs.descendants(processes, roots)
