"""GPU samples for the record: one CSV line a GPU and interval, written by a thread of the guardian."""

from __future__ import annotations

import os
import shutil
import threading
import time
from typing import Optional, TextIO

from . import gpus
from .gpus import Spawn

_FIELDS = "index,uuid,utilization.gpu,memory.used,power.draw,clocks.sm,temperature.gpu"
HEADER = "utc_s,elapsed_s," + _FIELDS
_QUERY_TIMEOUT_S = 10.0


class Sampler:
    def __init__(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self._stop = threading.Event()
        self._thread: Optional[threading.Thread] = None

    def start(self, path: str, interval_s: float) -> Optional[str]:
        """Returns a note when there is nothing to sample. A sampler that runs already is replaced."""
        self.stop()
        if shutil.which(gpus.TOOL) is None:
            return "no {} on this node: no GPU samples".format(gpus.TOOL)
        descriptor = os.open(
            path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        stream = os.fdopen(descriptor, "w", buffering=1)
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(stream, max(0.1, interval_s), self._stop), name="sampler", daemon=True
        )
        self._thread.start()
        return None

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=2.0)
            self._thread = None

    def _run(self, stream: TextIO, interval_s: float, stop: threading.Event) -> None:
        started = time.monotonic()
        due = started
        argv = [gpus.TOOL, "--query-gpu=" + _FIELDS, "--format=csv,noheader,nounits"]
        with stream:
            if stream.tell() == 0:
                stream.write(HEADER + "\n")
            while not stop.is_set():
                stamp = "{:.3f},{:.3f},".format(time.time(), time.monotonic() - started)
                for line in self._read(argv).splitlines():
                    stream.write(stamp + line.replace(", ", ",") + "\n")
                due += interval_s
                behind = time.monotonic() - due
                if behind > 0:
                    due += interval_s * (behind // interval_s)
                stop.wait(max(0.01, due - time.monotonic()))

    def _read(self, argv: "list[str]") -> str:
        """A sample that cannot be taken is a gap in the file, not a failed run."""
        try:
            return gpus.run_tool(argv, self._spawn, _QUERY_TIMEOUT_S)
        except gpus.Unreadable:
            return ""
