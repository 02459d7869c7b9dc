"""After a launch: the worker in use by the server's own words, kept beside what `/server_info` says."""

from __future__ import annotations

from orchestrator.analysis.worker_words import WorkerSeen, contradiction, read_worker
from orchestrator.errors import RemoteError
from orchestrator.model.plan import WorkerPath
from orchestrator.model.speculation import whole
from orchestrator.remote.node import Node
from orchestrator.runner.boot import Boot
from orchestrator.store import SERVER_INFO, plain

KEY = "worker_seen"  # in server_info.json
_BLOCK_BYTES = 1 << 20
_START_BYTES = 16 << 20  # of the log; start-up lines of eight ranks are well below 1 MiB


def confirm_worker(boot: Boot, predicted: WorkerPath, log: str) -> None:
    """Emits `worker`, with `problem` where the server contradicts the plan; the points of that boot are not claimed."""
    if not boot.arm.speculates:
        return
    seen = _seen(boot.node, log)
    problem = contradiction(seen, predicted, whole(boot.arm, "tp-size") or 1)
    told = {**plain(seen), "predicted": predicted.worker, "problem": problem}
    told.pop("type")
    boot.events.emit("worker", arm=boot.arm.name, boot=boot.number, **told)
    if problem:
        boot.events.emit("warning", text=f"arm {boot.arm.name}, boot {boot.number}: {problem}")
    path = boot.store.boot_path(boot.arm.name, boot.number, SERVER_INFO)
    boot.store.write_json(path, {**boot.store.read_json(path), KEY: told})


def _seen(node: Node, log: str) -> WorkerSeen:
    """Reads the log so far. One that cannot be read is a server that does not say."""
    data = bytearray()
    try:
        while len(data) < _START_BYTES:
            block = node.tail(log, len(data), _BLOCK_BYTES).data
            if not block:
                break
            data += block
    except RemoteError:
        return WorkerSeen(None)
    return read_worker(data.decode("utf-8", "replace").splitlines())
