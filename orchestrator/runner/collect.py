"""Server logs from the node: compressed on the way, checked byte for byte, redacted as they are stored."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from orchestrator.errors import ConnectionFailed, ConnectionLost, DynspecError, RemoteError
from orchestrator.model.experiment import Experiment
from orchestrator.records.events import events_of
from orchestrator.records.restarts import joined_log, joined_samples
from orchestrator.remote.fetch import FetchFile
from orchestrator.remote.node import Node
from orchestrator.runner.events import Events
from orchestrator.runner.node_paths import gpu_csv, server_log
from orchestrator.runner.sampling import sampled_boots
from orchestrator.store import GPU_SAMPLES, SERVER_LOG, RunStore

_TRIES = 3


class _Stop(Exception):
    """Collecting ends here: asked to, or out of time."""


@dataclass
class Collecting:
    """`abort` is asked between blocks: whoever cancels twice does not wait for gigabytes of log.

    `node` may be another connection afterwards: one that breaks is replaced by `reconnect`.
    """

    node: Node
    reconnect: Callable[[], Node]
    experiment: Experiment
    store: RunStore
    events: Events
    abort: Callable[[], bool]
    kept: frozenset[tuple[str, int]] = frozenset()  # boots of which a resumed run kept points
    _deadline_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._deadline_s = time.monotonic() + self.experiment.limits.collect_s

    def run(self, boots: tuple[tuple[str, int], ...]) -> None:
        """Fetches what every boot left, then removes the run's folders on the node if nothing is missing.

        What an earlier command of a resumed run collected is not asked for again: it may be gone from the node.

        Never raises for the node or the connection: what did not come over is said, and stays there.
        """
        whole = True
        try:
            here = collected_files(self.store)
            for remote, local in (pair for pair in self._files(boots) if pair[1] not in here):
                whole = self._one(remote, local) and whole
        except _Stop as stop:
            self._warn(f"collecting stopped: {stop}")
            whole = False
        if not whole:
            self._warn(f"logs stay on the node under {self._folder}")
            return
        remove_folders(self.node, self.store.run_id, self.experiment.node.workdir, self.events)

    @property
    def _folder(self) -> str:
        return f"{self.experiment.node.workdir}/{self.store.run_id}"

    def _files(self, boots: tuple[tuple[str, int], ...]) -> Iterator[tuple[str, str]]:
        workdir = self.experiment.node.workdir
        sampled = sampled_boots(self.store)
        for arm, boot in boots:
            yield (
                server_log(workdir, self.store.run_id, arm, boot),
                self.store.boot_path(arm, boot, SERVER_LOG),
            )
            if (arm, boot) in sampled:
                yield (
                    gpu_csv(workdir, self.store.run_id, arm, boot),
                    self.store.boot_path(arm, boot, GPU_SAMPLES),
                )

    def _one(self, remote: str, local: str) -> bool:
        with tempfile.TemporaryFile() as raw:
            try:
                self._download(remote, raw)
            except DynspecError as lost:
                self._warn(f"{local} could not be collected: {lost.message}")
                return False
            raw.seek(0)
            content = self.store.redact.data(raw.read())
        self.store.write_bytes(local, self._with_earlier(local, content))
        self.events.emit("collected", file=local, bytes=len(content))
        return True

    def _with_earlier(self, local: str, content: bytes) -> bytes:
        """A boot that was started again after points of it were kept has the logs and samples of all its starts."""
        path = self.store.folder / local
        kept = any(local.startswith(self.store.boot_path(*boot, "")) for boot in self.kept)
        earlier = path.read_bytes() if kept and path.is_file() else b""
        return (joined_samples if path.name == GPU_SAMPLES else joined_log)(earlier, content)

    def _download(self, remote: str, into: BinaryIO) -> None:
        """Goes on where a broken transfer stopped; the digest is over the whole file on the node."""
        digest = hashlib.sha256()

        def sink(_path: str, block: bytes) -> None:
            self._check()
            into.write(block)
            digest.update(block)

        for left in reversed(range(_TRIES)):
            self._check()
            try:
                fetched = self.node.fetch([FetchFile(remote, into.tell())], sink)[0]
            except (ConnectionFailed, ConnectionLost):
                if not left:
                    raise
                self._connect_again()
                continue
            if fetched.error:
                raise RemoteError(f"{remote}: {fetched.error}")
            if fetched.sha256 != digest.hexdigest():
                raise RemoteError(f"{remote}: arrived damaged")
            return

    def _connect_again(self) -> None:
        self.node.close()
        try:
            self.node = self.reconnect()
        except DynspecError as error:
            raise _Stop(error.message) from error

    def _check(self) -> None:
        if self.abort():
            raise _Stop("asked to")
        if time.monotonic() > self._deadline_s:
            raise _Stop(f"it took longer than {self.experiment.limits.collect_s:.0f} s (limits.collect)")

    def _warn(self, text: str) -> None:
        self.events.emit("warning", text=text)


def remove_folders(node: Node, run_id: str, workdir: str, events: Events) -> None:
    """What a run that gave the node back still has there: journal, logs and work folder. A failure is said."""
    try:
        node.clean(run_id=run_id, workdir=workdir)
    except DynspecError as error:
        text = f"{workdir}/{run_id} could not be removed on the node: {error.message}"
        events.emit("warning", text=text)


def collected_files(store: RunStore) -> frozenset[str]:
    """Files in the run folder that came over whole, and whose boot was not started again since."""
    found: dict[str, bool] = {}
    for event in events_of(store):
        if event["event"] == "started":
            for name in (SERVER_LOG, GPU_SAMPLES):
                found.pop(store.boot_path(event["arm"], event["boot"], name), None)
        elif event["event"] == "collected" and isinstance(event.get("file"), str):
            found[event["file"]] = (store.folder / event["file"]).is_file()
    return frozenset(file for file, is_here in found.items() if is_here)
