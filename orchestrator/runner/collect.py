"""Server logs from the node: compressed on the way, checked byte for byte, redacted as they are stored."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from typing import BinaryIO

from orchestrator.errors import ConnectionLost
from orchestrator.model.experiment import Experiment
from orchestrator.remote.fetch import FetchFile
from orchestrator.remote.node import Node
from orchestrator.runner.events import Events
from orchestrator.runner.loop import server_log
from orchestrator.store import RunStore


def collect(
    node: Node,
    experiment: Experiment,
    store: RunStore,
    boots: tuple[tuple[str, int], ...],
    events: Events,
    abort: Callable[[], bool],
) -> None:
    """Fetches the log of every boot, then removes the run's folders on the node. `abort` stops between files."""
    workdir = experiment.node.workdir
    for arm, boot in boots:
        if abort():
            events.emit(
                "warning",
                text=f"collecting stopped; logs stay on the node under {workdir}/{store.run_id}/logs",
            )
            return
        _one_log(
            node,
            store,
            server_log(workdir, store.run_id, arm, boot),
            store.boot_path(arm, boot, "server.log"),
            events,
        )
    node.clean(run_id=store.run_id, workdir=workdir)


def _one_log(node: Node, store: RunStore, remote: str, local: str, events: Events) -> None:
    with tempfile.TemporaryFile() as raw:
        _download(node, remote, raw)
        raw.seek(0)
        content = raw.read()
    store.write_bytes(local, store.redact.data(content))
    events.emit("collected", file=local, bytes=len(content))


def _download(node: Node, remote: str, into: BinaryIO, tries: int = 3) -> None:
    """Goes on where a broken transfer stopped; the digest is over the whole file on the node."""
    digest = hashlib.sha256()

    def sink(_path: str, block: bytes) -> None:
        into.write(block)
        digest.update(block)

    for left in reversed(range(tries)):
        try:
            fetched = node.fetch([FetchFile(remote, into.tell())], sink)[0]
        except ConnectionLost:
            if not left:
                raise
            continue
        if fetched.error:
            raise ConnectionLost(f"{remote}: {fetched.error}")
        if fetched.sha256 != digest.hexdigest():
            raise ConnectionLost(f"{remote}: arrived damaged")
        return
