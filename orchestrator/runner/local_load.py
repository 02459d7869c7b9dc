"""Load offered from this machine, through a forward to the node's loopback: `sweep.load_from: controller`."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orchestrator.errors import DynspecError, RemoteError
from orchestrator.load.pack import build_zipapp
from orchestrator.records.spans import CLOCK_KEY
from orchestrator.remote.channel import Event
from orchestrator.remote.node import Node
from orchestrator.remote.replies import LoadReply

Progress = Callable[[Mapping[str, Any]], None]
_LOOK_S = 0.25


def load_from_here(node: Node, spec: Mapping[str, Any], timeout_s: float, on_progress: Progress) -> LoadReply:
    """The same load generator, as a process here.

    Raises RemoteError (`timeout`, `failed`) as the node's verb would, ConnectionLost when the node went away.
    """
    with (
        node.forward(int(spec["port"])) as port,
        tempfile.TemporaryDirectory(prefix="dynspec-load-") as folder,
    ):
        program, spec_path, records = (
            Path(folder) / name for name in ("loadgen.pyz", "spec.json", "records.jsonl")
        )
        program.write_bytes(build_zipapp())
        spec_path.write_text(json.dumps({**spec, "host": "127.0.0.1", "port": port}))
        ahead_s = clock_ahead_s(node)
        argv = [sys.executable, str(program), str(spec_path), str(records)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                with _ending(process, node, timeout_s) as late:
                    summary = _follow(process, on_progress)
                    error = process.stderr.read() if process.stderr else ""
                    code = process.wait()
            except BaseException:
                process.kill()
                raise
        _check(late.is_set(), timeout_s, code, summary, error)
        return LoadReply({**(summary or {}), CLOCK_KEY: ahead_s}, records.read_bytes())


def clock_ahead_s(node: Node) -> float | None:
    """The node's clock less ours, to half a round trip. Logs and GPU samples are stamped there, this load here."""
    asked_s = time.time()
    told_s = node.server().utc_s
    return None if told_s is None else round(told_s - (asked_s + time.time()) / 2, 3)


@contextmanager
def _ending(process: subprocess.Popen[str], node: Node, timeout_s: float) -> Iterator[threading.Event]:
    """Ends the generator when its time is over, its server has ended, or the node is gone; the last is raised."""
    deadline = time.monotonic() + timeout_s
    late, done = threading.Event(), threading.Event()
    lost: list[DynspecError] = []
    others: list[Event] = []

    def watch() -> None:
        while not done.is_set():
            try:
                event = node.events.get(timeout=_LOOK_S)
            except queue.Empty:
                if time.monotonic() < deadline:
                    continue
                late.set()
            else:
                if isinstance(event, DynspecError):
                    lost.append(event)
                elif event.name != "server_exit":
                    others.append(event)
                    continue
            process.terminate()
            return

    watcher = threading.Thread(target=watch, name="load-watch", daemon=True)
    watcher.start()
    try:
        yield late
    finally:
        done.set()
        watcher.join()
        for event in others:
            node.events.put(event)
    if lost:
        raise lost[0]


def _check(late: bool, timeout_s: float, code: int, summary: object, error: str) -> None:
    if late:
        raise RemoteError(f"the load took longer than {timeout_s:.0f} s (limits.point)", code="timeout")
    if code != 0 or summary is None:
        raise RemoteError(
            f"the load generator ended with exit code {code}: {error.strip()[-500:]}", code="failed"
        )


def _follow(process: subprocess.Popen[str], on_progress: Progress) -> dict[str, Any] | None:
    summary = None
    for line in process.stdout or ():
        value = json.loads(line)
        if "summary" in value:
            summary = value["summary"]
        else:
            on_progress(value)
    return summary
