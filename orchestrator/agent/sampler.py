"""GPU samples for the record: one CSV line a GPU and interval, written by a thread of the guardian."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from typing import Optional, Sequence, TextIO, Tuple

from . import gpus, places, trouble
from .gpus import Spawn

_FIELDS = "index,uuid,utilization.gpu,memory.used,power.draw,clocks.sm,temperature.gpu"
# Why clocks are below what was asked, as a bit mask: under its name since driver 535, its name before, not at all.
_FIELDS_TRIED = (
    _FIELDS + ",clocks_event_reasons.active",
    _FIELDS + ",clocks_throttle_reasons.active",
    _FIELDS,
)
_UNKNOWN_FIELD = "not a valid field"
_QUERY_TIMEOUT_S = 10.0
_PROCESSES_EVERY_S = 5.0  # another run of the tool, which costs a node with eight GPUs half a second
_HEAD = "utc_s,elapsed_s,foreign_pids,xids,"


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
        descriptor = places.open_private(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
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
        fields: Optional[str] = None
        beside = _Beside(self._spawn)
        # A full disk ends the samples of this boot, and nothing else.
        with contextlib.suppress(OSError), stream, contextlib.closing(beside):
            fresh = os.fstat(stream.fileno()).st_size == 0
            while not stop.is_set():
                stamp = "{:.3f},{:.3f},".format(time.time(), time.monotonic() - started)
                fields, text = self._read(fields)
                stamp += beside.cells()
                if fresh and fields is not None:
                    stream.write(_HEAD + fields + "\n")
                    fresh = False
                for line in text.splitlines():
                    stream.write(stamp + line.replace(", ", ",") + "\n")
                due += interval_s
                behind = time.monotonic() - due
                if behind > 0:
                    due += interval_s * (behind // interval_s)
                stop.wait(max(0.01, due - time.monotonic()))

    def _read(self, known: Optional[str]) -> Tuple[Optional[str], str]:
        """(fields, lines). A sample that cannot be taken is a gap in the file, not a failed run.

        Which fields this driver has is known after the first sample; until then all sets are tried in turn.
        """
        for fields in _FIELDS_TRIED if known is None else (known,):
            argv = [gpus.TOOL, "--query-gpu=" + fields, "--format=csv,noheader,nounits"]
            try:
                return fields, gpus.run_tool(argv, self._spawn, _QUERY_TIMEOUT_S)
            except gpus.Unreadable as error:
                if _UNKNOWN_FIELD not in str(error):
                    break
        return known, ""


class _Beside:
    """The cells that stand before those of the tool: who else computes on our GPUs, and new errors of the driver."""

    def __init__(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self._log = trouble.KernelLog()
        self._foreign: Sequence[int] = ()
        self._due = time.monotonic()

    def cells(self) -> str:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + _PROCESSES_EVERY_S
            try:
                self._foreign = trouble.foreign_pids(self._spawn, _QUERY_TIMEOUT_S)
            except gpus.Unreadable:
                self._foreign = ()  # not known, which proves nothing against anybody
        return "{},{},".format(_words(self._foreign), _words(self._log.xids()))

    def close(self) -> None:
        self._log.close()


def _words(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers))
