"""How a boot is doing right now, for screens that draw: GPU memory and clocks, the last log line. Never stored.

A thread of its own, since the main one waits for the load. Two small reads of files in two seconds; none at all
where nobody watches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from orchestrator.errors import DynspecError
from orchestrator.model.experiment import Gpus
from orchestrator.remote.node import Node
from orchestrator.runner.readiness import ACCESS
from orchestrator.runner.sampling import GpuNow, newest
from orchestrator.store import plain

_EVERY_S = 2.0
_TAIL_BYTES = 8192
_HEADER_BYTES = 512


@dataclass
class Pulse:
    """Tells `tell` every two seconds until `stop`. `samples` None: no GPU samples on this node."""

    node: Node
    tell: Callable[..., None]  # gpus=[GpuNow as JSON], line=text
    log: str
    samples: str | None
    gpus: Gpus = "all"  # those that the server has
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _header: str = ""

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=0.2)  # it may wait for an answer that nobody needs any more

    def _run(self) -> None:
        while not self._stop.wait(_EVERY_S):
            try:
                gpus, line = self._gpus(), self._line()
            except DynspecError:
                continue  # the file is not there yet, or the connection is going: others say so
            if not self._stop.is_set():
                self.tell(gpus=plain(gpus), line=line)

    def _gpus(self) -> tuple[GpuNow, ...]:
        if self.samples is None:
            return ()
        if not self._header:
            head = self.node.tail(self.samples, 0, _HEADER_BYTES).data.decode("utf-8", "replace")
            self._header, complete, _ = head.partition("\n")
            if not complete:
                self._header = ""
                return ()
        tail = self.node.tail(self.samples, -_TAIL_BYTES, _TAIL_BYTES).data.decode("utf-8", "replace")
        found = newest(self._header, tail.splitlines())
        return tuple(gpu for gpu in found if self.gpus == "all" or gpu.index in self.gpus)

    def _line(self) -> str:
        tail = self.node.tail(self.log, -_TAIL_BYTES, _TAIL_BYTES).data.decode("utf-8", "replace")
        told = [line.rsplit("\r", 1)[-1].strip() for line in tail.replace("\r\n", "\n").split("\n")]
        return next((line for line in reversed(told) if line and not ACCESS.search(line)), "")
