"""The verbs that act on the node, through the guardian: from taking it to giving it back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from orchestrator.errors import RemoteError
from orchestrator.remote import replies
from orchestrator.remote.calls import GRACE_S, QUICK_S, Args, Calls, GpuChoice, content, gpu_args

RECOVER_S = 180.0  # a server is stopped, then every changed file is put back and hashed


class ActingVerbs(Calls):
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
        self,
        run_id: str | None = None,
        *,
        holder: str = "unknown",
        force: bool = False,
        timeout_s: float = QUICK_S,
    ) -> replies.Attached:
        """Take over the guardian of a channel that ended or said goodbye. RemoteError codes: `busy`, `not_found`."""
        return self._call(
            replies.Attached, "attach", {"run_id": run_id, "holder": holder, "force": force}, timeout_s
        )

    def apply(self, name: str, files: Sequence[Args], *, timeout_s: float = QUICK_S * 2) -> replies.Applied:
        """Make the tree hold exactly this set.

        `files`: `{path, before_sha256, after_sha256, data}`, absolute path, data bytes (None: no such file afterwards).
        """
        return self._call(replies.Applied, "apply", {"set": name, "files": _edits(files)}, timeout_s)

    def lay(
        self, name: str, package: str, package_path: str, files: Sequence[Args], *, timeout_s: float = 600.0
    ) -> replies.Laid:
        """Make a copy of the package hold exactly this set, and serve from it; installed files are only read.

        `files` as for `apply`, with package-relative paths.
        """
        args = {"set": name, "package": package, "package_path": package_path, "files": _edits(files)}
        return self._call(replies.Laid, "lay", args, timeout_s)

    def origins(self) -> replies.Origins:
        """Where each process of the server that runs its interpreter loads the package from."""
        return self._call(replies.Origins, "origins", {}, QUICK_S)

    def verify(self) -> tuple[replies.VerifiedFile, ...]:
        return self._call(replies.Verified, "verify", {}, QUICK_S).files

    def free(self, *, policy: str, rules: Sequence[Args], gpus: GpuChoice, timeout_s: float) -> replies.Freed:
        """Make the GPUs free as `policy` allows. RemoteError code `busy` (data: holders) when they are not."""
        args = {
            "policy": policy,
            "rules": [dict(rule) for rule in rules],
            "gpus": gpu_args(gpus),
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

    def put(self, path: str, data: bytes) -> replies.Put:
        """A small file below the run's work folder; it goes with that folder."""
        return self._call(replies.Put, "put", {"path": path, **content(data)}, QUICK_S)

    def server(self) -> replies.ServerState:
        return self._call(replies.ServerState, "server", {}, QUICK_S)

    def stop(
        self, *, timeout_s: float = 30.0, gpu_free_s: float = 60.0, gpus: GpuChoice = "all"
    ) -> replies.Stopped:
        args = {
            "timeout_s": timeout_s,
            "gpu_free_s": gpu_free_s,
            "gpus": gpu_args(gpus),
        }
        return self._call(replies.Stopped, "stop", args, timeout_s + gpu_free_s + GRACE_S)

    def sample(self, interval_s: float, path: str | None) -> replies.Sampled:
        """Write GPU samples to `path` on the node; None stops."""
        return self._call(replies.Sampled, "sample", {"interval_s": interval_s, "path": path}, QUICK_S)

    def restore(self) -> replies.Restored:
        return self._call(replies.Restored, "restore", {}, QUICK_S * 2)

    def unwind(self, *, stop_s: float, reason: str, timeout_s: float = 180.0) -> replies.Unwound:
        """Give the node back: stop, restore, verify, unlock. RemoteError code `dirty` when something is left."""
        return self._call(replies.Unwound, "unwind", {"stop_s": stop_s, "reason": reason}, timeout_s)

    def recover(
        self,
        what: Literal["stop", "restore"],
        *,
        force: bool = False,
        keep_foreign: bool = False,
        by: str = "",
    ) -> replies.RecoveredRuns:
        """What `dynspec stop` and `dynspec restore` ask: end what was started, put back every changed file.

        `by`: what the controller of a run that this ends is told of who ended it.
        """
        args = {"what": what, "force": force, "keep_foreign": keep_foreign, "by": by}
        return self._call(replies.RecoveredRuns, "recover", args, RECOVER_S)

    def goodbye(self, *, detach: bool = False) -> None:
        """Leave: with `detach` the guardian goes on; without, it gives the node back by itself if it has not yet."""
        try:
            self._channel.call("goodbye", {"detach": detach}, QUICK_S)
        except RemoteError as error:
            if detach or error.code != "lost":  # after an unwind the guardian may just be leaving
                raise

    def clean(self, *, run_id: str, workdir: str) -> None:
        self._channel.call("clean", {"run_id": run_id, "workdir": workdir}, QUICK_S)


def _edits(files: Sequence[Args]) -> list[Args]:
    return [
        {
            "path": file["path"],
            "before_sha256": file["before_sha256"],
            "after_sha256": file["after_sha256"],
            **content(file["data"]),
        }
        for file in files
    ]
