"""The reading verbs of agent/protocol.md, one typed method each.

Calls may come from several threads at once. Errors of the node arrive as RemoteError with its code; what a code means
for the command (busy, dirty, does not fit) is the caller's to say, with `refusals.py` at hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from orchestrator.errors import RemoteError
from orchestrator.model.facts import Facts, FileFact
from orchestrator.remote import replies
from orchestrator.remote.calls import GRACE_S, QUICK_S, Args, Calls, GpuChoice, content, gpu_args
from orchestrator.remote.channel import Channel

OVERLAY_S = 90.0


class ReadingVerbs(Calls):
    def __init__(self, channel: Channel) -> None:
        super().__init__(channel)
        self._read_before: dict[str, bytes] = {}  # by sha256

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
        whole_package: bool = False,
        paths: Sequence[str] = (),
        timeout_s: float = 60.0,
    ) -> Facts:
        """What the node is. `files` are package-relative; `gpus` is "all" or indices.

        `whole_package`: compare all files of the package with what was installed, not only `files`. `paths`: absolute;
        `Facts.absent` has those of them that are not there.
        """
        args = {
            "python": python,
            "cwd": cwd,
            "env": dict(env),
            "package": package,
            "files": list(files),
            "port": port,
            "workdir": workdir,
            "gpus": gpu_args(gpus),
            **({"whole_package": True} if whole_package else {}),
            **({"paths": list(paths)} if paths else {}),
        }
        return self._call(Facts, "facts", args, timeout_s)

    def read_files(self, paths: Sequence[str]) -> tuple[replies.ReadFile, ...]:
        return self._call(replies.ReadFiles, "read", {"paths": list(paths)}, QUICK_S).files

    def contents(self, files: Sequence[FileFact]) -> dict[str, bytes]:
        """The files' bytes as `facts` saw them, by absolute path; a digest that was read before is not read again.

        Raises RemoteError code `changed` for a file that is not what the fact says.
        """
        present = [fact for fact in files if fact.exists]
        wanted = [fact.absolute for fact in present if fact.sha256 not in self._read_before]
        for read in self.read_files(wanted) if wanted else ():
            if read.data is not None and read.sha256 is not None:
                self._read_before[read.sha256] = read.data
        changed = [fact.absolute for fact in present if fact.sha256 not in self._read_before]
        if changed:
            raise RemoteError(
                f"{changed[0]} changed while it was read",
                code="changed",
                help="somebody edits the tree; try again",
            )
        return {fact.absolute: self._read_before[fact.sha256] for fact in present if fact.sha256}

    def known(self, fact: FileFact) -> bytes | None:
        """The bytes of a file as `facts` saw it, where `contents` has read them before: no round trip."""
        return self._read_before.get(fact.sha256) if fact.sha256 is not None else None

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
        argvs: Mapping[str, Sequence[str]] | None = None,
        timeout_s: float = 120.0,
    ) -> replies.Smoke:
        """Try `files` (package-relative path -> text, None: removed) in an overlay that no live server sees.

        `argvs`: per arm the words that follow `python -m module`, for the overlay's own parser.
        """
        args = {
            "workdir": workdir,
            "run_id": run_id,
            "python": python,
            "cwd": cwd,
            "env": dict(env),
            "package": package,
            "package_path": package_path,
            "files": [{"path": path, **content(data)} for path, data in files.items()],
            "modules": list(modules),
            "argvs": {arm: list(words) for arm, words in (argvs or {}).items()},
            "timeout_s": timeout_s,
        }
        return self._call(replies.Smoke, "smoke", args, timeout_s + GRACE_S)

    def overlay(
        self,
        *,
        workdir: str,
        run_id: str,
        python: str,
        cwd: str,
        env: Mapping[str, str],
        package: str,
        package_path: str,
        absent: Sequence[str] = (),
    ) -> replies.OverlayCheck:
        """Whether an overlay of the package would be what this interpreter loads. Nothing is written.

        `absent`: modules that a patch set removes, which must not be found elsewhere either.
        """
        args = {
            "workdir": workdir,
            "run_id": run_id,
            "python": python,
            "cwd": cwd,
            "env": dict(env),
            "package": package,
            "package_path": package_path,
            "absent": list(absent),
        }
        return self._call(replies.OverlayCheck, "overlay", args, OVERLAY_S)

    def holders(self, gpus: GpuChoice = "all") -> replies.Holders:
        return self._call(replies.Holders, "holders", {"gpus": gpu_args(gpus)}, QUICK_S)

    def http(
        self, method: str, port: int, path: str, body: str | None = None, *, timeout_s: float = 10.0
    ) -> replies.HttpReply:
        """A request to the node's loopback. RemoteError codes: `exited` (server gone), `timeout`, `failed`."""
        args = {"method": method, "port": port, "path": path, "body": body, "timeout_s": timeout_s}
        return self._call(replies.HttpReply, "http", args, timeout_s + GRACE_S)

    def tail(self, path: str, offset: int, max_bytes: int = 1 << 20) -> replies.Tail:
        return self._call(
            replies.Tail, "tail", {"path": path, "offset": offset, "max_bytes": max_bytes}, QUICK_S
        )

    def status(self) -> replies.Status:
        return self._call(replies.Status, "status", {}, QUICK_S)
