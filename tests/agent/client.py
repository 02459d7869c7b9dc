"""A controller in miniature: starts the real zipapp and speaks JSON lines over its pipes."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
import queue
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def z(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


def unz(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def change(path: Path, before: bytes | None, after: bytes | None) -> Json:
    """One entry of `apply`."""
    return {
        "path": str(path),
        "before_sha256": None if before is None else sha(before),
        "after_sha256": None if after is None else sha(after),
        "z": None if after is None else z(after),
    }


def eventually(condition: Callable[[], Any], timeout_s: float = 30.0, what: str = "") -> Any:
    """The first true value; fails when there is none in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what or condition}"
        time.sleep(0.02)


class Refused(Exception):
    """An error reply. `code` and `details` as on the wire."""

    def __init__(self, error: Json) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code: str = error["code"]
        self.message: str = error["message"]
        self.details: Json = error["details"]


class Client:
    """One channel."""

    def __init__(
        self,
        agent: Path,
        environ: Mapping[str, str],
        preexec: Callable[[], None] | None = None,
        python: str = sys.executable,
    ) -> None:
        self.process = subprocess.Popen(
            [python, "-I", "-S", str(agent), "serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(environ),
            preexec_fn=preexec,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin, self._stdout = self.process.stdin, self.process.stdout
        self._ids = itertools.count(1)
        self._waiting: dict[Any, Future[Json]] = {}
        self.events: queue.Queue[Json] = queue.Queue()
        self.banner = self._stdout.readline()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._stdout:
            message = json.loads(line)
            if "event" in message:
                self.events.put(message)
            else:
                waiting = self._waiting.pop(message["id"], None)
                if waiting is None:
                    self.events.put(message)
                else:
                    waiting.set_result(message)
        for waiting in list(self._waiting.values()):
            waiting.set_exception(ConnectionError("the agent ended"))

    def raw(self, data: bytes) -> None:
        self._stdin.write(data)
        self._stdin.flush()

    def submit(self, verb: str, **args: Any) -> Future[Json]:
        return self.submit_any(verb, args)

    def submit_any(self, verb: str, args: object) -> Future[Json]:
        """A request whose args may be of any kind."""
        number = next(self._ids)
        future: Future[Json] = Future()
        self._waiting[number] = future
        self.raw(json.dumps({"id": number, "verb": verb, "args": args}).encode() + b"\n")
        return future

    def result(self, future: Future[Json], timeout_s: float = 30.0) -> Json:
        reply = future.result(timeout=timeout_s)
        if "error" in reply:
            raise Refused(reply["error"])
        ok: Json = reply["ok"]
        return ok

    def ask(self, verb: str, **args: Any) -> Json:
        return self.result(self.submit(verb, **args))

    def event(self, name: str, timeout_s: float = 30.0) -> Json:
        """The data of the next event of that name; others before it are dropped."""
        deadline = time.monotonic() + timeout_s
        while True:
            message = self.events.get(timeout=max(0.01, deadline - time.monotonic()))
            if message.get("event") == name:
                data: Json = message["data"]
                return data

    def hang_up(self) -> None:
        """The channel ends, without goodbye."""
        self._stdin.close()
        self.process.wait(timeout=30)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=30)

    def close(self) -> None:
        if self.process.poll() is None:
            self._stdin.close()
            try:
                self.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self.kill()
        self._reader.join(timeout=5)
        self._stdout.close()


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def end(pid: int) -> None:
    """For processes that a test started on purpose outside of the guardian."""
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        return
    eventually(lambda: not alive(pid), what=f"pid {pid} gone")
