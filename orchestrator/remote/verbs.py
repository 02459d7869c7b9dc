"""One typed method a verb of agent/protocol.md, over one channel.

Calls may come from several threads at once. Errors of the node arrive as RemoteError with its code; what a code means
for the command (busy, dirty, does not fit) is the caller's to say, with `refusals.py` at hand.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from orchestrator.model.facts import Facts
from orchestrator.remote import replies
from orchestrator.remote.channel import Channel, Event
from orchestrator.remote.replies import decode, packed

T = TypeVar("T")
Args = Mapping[str, Any]
GpuChoice = str | Sequence[int]  # "all" or indices

# Added to a limit that the node itself keeps, so that its answer arrives before we give up on it.
GRACE_S = 10.0
QUICK_S = 30.0


class Verbs:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._progress: dict[str, queue.SimpleQueue[Event | None]] = {}
        self._lock = threading.Lock()

    # -- reading verbs

    def hello(self) -> replies.Hello:
        return self._call(replies.Hello, "hello", {}, QUICK_S)

    def submit_facts(self, args: Args) -> Future[Any]:
        """`facts` without waiting, so that other requests can share its round trip; see `decoded`."""
        return self._channel.submit("facts", args)

    def facts(
        self,
        *,
        python: str,
        cwd: str,
        env: Mapping[str, str],
        package: str,
        files: Sequence[str],
        port: int,
        workdir: str,
        gpus: GpuChoice = "all",
        timeout_s: float = 60.0,
    ) -> Facts:
        """What the node is. `files` are package-relative; `gpus` is "all" or indices."""
        args = {
            "python": python,
            "cwd": cwd,
            "env": dict(env),
            "package": package,
            "files": list(files),
            "port": port,
            "workdir": workdir,
            "gpus": _gpus(gpus),
        }
        return self._call(Facts, "facts", args, timeout_s)

    def read_files(
        self, paths: Sequence[str], *, max_bytes: int | None = None, timeout_s: float = QUICK_S
    ) -> tuple[replies.ReadFile, ...]:
        args: dict[str, Any] = {
            "paths": list(paths),
            **({} if max_bytes is None else {"max_bytes": max_bytes}),
        }
        return self._call(replies.ReadFiles, "read", args, timeout_s).files

    def smoke(
        self,
        *,
        workdir: str,
        run_id: str,
        python: str,
        cwd: str,
        env: Mapping[str, str],
        package: str,
        package_path: str,
        files: Mapping[str, bytes | None],
        modules: Sequence[str],
        timeout_s: float = 120.0,
    ) -> replies.Smoke:
        """Try `files` (package-relative path -> text, None: removed) in an overlay that no live server sees."""
        args = {
            "workdir": workdir,
            "run_id": run_id,
            "python": python,
            "cwd": cwd,
            "env": dict(env),
            "package": package,
            "package_path": package_path,
            "files": [{"path": path, **_z(data)} for path, data in files.items()],
            "modules": list(modules),
            "timeout_s": timeout_s,
        }
        return self._call(replies.Smoke, "smoke", args, timeout_s + GRACE_S)

    def holders(self, gpus: GpuChoice = "all", *, timeout_s: float = QUICK_S) -> replies.Holders:
        return self._call(replies.Holders, "holders", {"gpus": _gpus(gpus)}, timeout_s)

    def http(
        self, method: str, port: int, path: str, body: str | None = None, *, timeout_s: float = 10.0
    ) -> replies.HttpReply:
        """A request to the node's loopback. RemoteError codes: `exited` (server gone), `timeout`, `failed`."""
        args = {"method": method, "port": port, "path": path, "body": body, "timeout_s": timeout_s}
        return self._call(replies.HttpReply, "http", args, timeout_s + GRACE_S)

    def tail(
        self, path: str, offset: int, max_bytes: int = 1 << 20, *, timeout_s: float = QUICK_S
    ) -> replies.Tail:
        return self._call(
            replies.Tail, "tail", {"path": path, "offset": offset, "max_bytes": max_bytes}, timeout_s
        )

    def status(self, *, timeout_s: float = QUICK_S) -> replies.Status:
        return self._call(replies.Status, "status", {}, timeout_s)

    def load(
        self,
        spec: Mapping[str, Any],
        name: str,
        timeout_s: float,
        on_progress: Callable[[Mapping[str, Any]], None] = lambda data: None,
    ) -> replies.LoadReply:
        """Run the load generator. `on_progress` gets each `load_progress`, in the calling thread."""
        progress: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        with self._lock:
            self._progress[name] = progress
        try:
            future = self._channel.submit("load", {"spec": dict(spec), "name": name, "timeout_s": timeout_s})
            future.add_done_callback(lambda _: progress.put(None))
            self._follow(progress, timeout_s + GRACE_S, on_progress)
            return self.decoded(replies.LoadReply, future, "load", 0.0)
        finally:
            with self._lock:
                del self._progress[name]

    # -- guardian verbs

    def guard(
        self,
        *,
        run_id: str,
        holder: str,
        workdir: str,
        lease_s: float,
        lock_wait_s: float = 0.0,
        stop_s: float = 30.0,
        gpu_free_s: float = 60.0,
        force: bool = False,
    ) -> replies.Guard:
        """Take the node: lock, lease, journal. RemoteError codes: `busy` (data: the LockFact), `dirty`."""
        args = {
            "run_id": run_id,
            "holder": holder,
            "workdir": workdir,
            "lease_s": lease_s,
            "lock_wait_s": lock_wait_s,
            "stop_s": stop_s,
            "gpu_free_s": gpu_free_s,
            "force": force,
        }
        # A dead holder's run is put back first: its server is stopped, its files are restored.
        return self._call(replies.Guard, "guard", args, lock_wait_s + stop_s + gpu_free_s + QUICK_S)

    def attach(
        self, run_id: str | None = None, *, force: bool = False, timeout_s: float = QUICK_S
    ) -> replies.Attached:
        return self._call(replies.Attached, "attach", {"run_id": run_id, "force": force}, timeout_s)

    def apply(self, name: str, files: Sequence[Args], *, timeout_s: float = QUICK_S * 2) -> replies.Applied:
        """Make the tree hold exactly this set.

        `files`: `{path, before_sha256, after_sha256, data}`, absolute path, data bytes (None: no such file afterwards).
        """
        listed = [
            {
                "path": file["path"],
                "before_sha256": file["before_sha256"],
                "after_sha256": file["after_sha256"],
                **_z(file["data"]),
            }
            for file in files
        ]
        return self._call(replies.Applied, "apply", {"set": name, "files": listed}, timeout_s)

    def verify(self, *, timeout_s: float = QUICK_S) -> tuple[replies.VerifiedFile, ...]:
        return self._call(replies.Verified, "verify", {}, timeout_s).files

    def free(self, *, policy: str, rules: Sequence[Args], gpus: GpuChoice, timeout_s: float) -> replies.Freed:
        """Make the GPUs free as `policy` allows. RemoteError code `busy` (data: holders) when they are not."""
        args = {
            "policy": policy,
            "rules": [dict(rule) for rule in rules],
            "gpus": _gpus(gpus),
            "timeout_s": timeout_s,
        }
        return self._call(replies.Freed, "free", args, timeout_s + GRACE_S)

    def start(
        self,
        argv: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        log: str,
        port: int,
        arm: str,
        boot: int,
        timeout_s: float = QUICK_S,
    ) -> replies.Started:
        args = {
            "argv": list(argv),
            "cwd": cwd,
            "env": dict(env),
            "log": log,
            "port": port,
            "arm": arm,
            "boot": boot,
        }
        return self._call(replies.Started, "start", args, timeout_s)

    def server(self, *, timeout_s: float = QUICK_S) -> replies.ServerState:
        return self._call(replies.ServerState, "server", {}, timeout_s)

    def stop(
        self, *, timeout_s: float = 30.0, gpu_free_s: float = 60.0, gpus: GpuChoice = "all"
    ) -> replies.Stopped:
        args = {
            "timeout_s": timeout_s,
            "gpu_free_s": gpu_free_s,
            "gpus": _gpus(gpus),
        }
        return self._call(replies.Stopped, "stop", args, timeout_s + gpu_free_s + GRACE_S)

    def sample(self, interval_s: float, path: str | None) -> None:
        """Write GPU samples to `path` on the node; None stops."""
        self._channel.call("sample", {"interval_s": interval_s, "path": path}, QUICK_S)

    def restore(self, *, timeout_s: float = QUICK_S * 2) -> replies.Restored:
        return self._call(replies.Restored, "restore", {}, timeout_s)

    def unwind(self, *, stop_s: float, reason: str, timeout_s: float = 180.0) -> replies.Unwound:
        """Give the node back: stop, restore, verify, unlock. RemoteError code `dirty` when something is left."""
        return self._call(replies.Unwound, "unwind", {"stop_s": stop_s, "reason": reason}, timeout_s)

    def goodbye(self, *, detach: bool = False) -> None:
        self._channel.call("goodbye", {"detach": detach}, QUICK_S)

    def clean(self, *, run_id: str, workdir: str) -> None:
        self._channel.call("clean", {"run_id": run_id, "workdir": workdir}, QUICK_S)

    def decoded(self, cls: type[T], future: Future[Any], verb: str, timeout_s: float) -> T:
        """The answer to a request that was submitted earlier."""
        return decode(cls, self._channel.result(future, verb, timeout_s), verb)

    def _call(self, cls: type[T], verb: str, args: Args, timeout_s: float) -> T:
        return decode(cls, self._channel.call(verb, args, timeout_s), verb)

    def _follow(
        self,
        progress: queue.SimpleQueue[Event | None],
        timeout_s: float,
        on_progress: Callable[[Mapping[str, Any]], None],
    ) -> None:
        try:
            while (event := progress.get(timeout=timeout_s)) is not None:
                on_progress(event.data)
        except queue.Empty:
            return  # the caller's wait for the answer says so

    def _deliver_progress(self, event: Event) -> bool:
        """Whether a waiting `load` took the event."""
        with self._lock:
            name = event.data.get("name")
            waiting = self._progress.get(name) if name else next(iter(self._progress.values()), None)
        if waiting is not None:
            waiting.put(event)
        return waiting is not None


def _gpus(choice: GpuChoice) -> str | list[int]:
    return choice if isinstance(choice, str) else list(choice)


def _z(data: bytes | None) -> dict[str, str | None]:
    return {"z": None} if data is None else {**packed(data)}
