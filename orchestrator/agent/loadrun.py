"""Runs the load generator as a child that cannot outlive its channel."""

from __future__ import annotations

import glob
import json
import os
import signal
import subprocess
import threading
from typing import Callable, List, Optional, Set

from . import args, places
from .wire import AgentError, Message, pack

_ERROR_LINES = 20
_KILL_WAIT_S = 5.0
# Asks the kernel for a KILL when the parent dies, makes sure that it has not yet, and becomes the generator, whose
# records are nobody else's.
_SHIM = (
    "import ctypes, os, sys; os.umask(0o77); ctypes.CDLL(None).prctl(1, 9, 0, 0, 0); "
    "os.getppid() == int(sys.argv[1]) or os._exit(9); "
    "os.execv(sys.executable, [sys.executable, '-I', '-S'] + sys.argv[2:])"
)


class LoadRunner:
    """All generators of one channel, so that the channel's end can end them."""

    def __init__(self) -> None:
        self._running: Set["subprocess.Popen[bytes]"] = set()
        self._lock = threading.Lock()
        self._closed = False

    def run(self, given: Message, on_progress: Callable[[Message], None]) -> Message:
        """Returns {summary, records}. Raises AgentError `timeout`, or `failed` with the last lines it said."""
        generator = _generator(args.optional_text(given, "loadgen"))
        spec, records = _files(given)
        if os.path.exists(records):
            os.unlink(records)
        process = self._start([generator, spec, records])
        timeout_s = args.seconds(given, "timeout_s", 3600.0)
        late = threading.Event()

        def end() -> None:
            late.set()
            kill_group(process)

        timer = threading.Timer(timeout_s, end)
        timer.daemon = True
        timer.start()
        try:
            summary, said = _follow(process, on_progress)
            code = process.wait()
        finally:
            timer.cancel()
            kill_group(process)
            with self._lock:
                self._running.discard(process)
        if late.is_set() and code == -signal.SIGKILL:
            raise AgentError("timeout", "the load generator was ended after {:g} s".format(timeout_s))
        if code != 0:
            _require_folder(os.path.dirname(records))
            raise AgentError("failed", "the load generator ended with {}".format(code), log_tail=said)
        return {"summary": summary, "records": pack(_read(records))}

    def _start(self, words: List[str]) -> "subprocess.Popen[bytes]":
        with self._lock:
            if self._closed:
                raise AgentError("lost", "the channel is ending")
            process = subprocess.Popen(
                [*places.own_python(), "-c", _SHIM, str(os.getpid()), *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            self._running.add(process)
            return process

    def interrupt(self) -> None:
        """Asks every generator to end and to write what it has: there is nothing left to measure."""
        with self._lock:
            running = list(self._running)
        for process in running:
            process.terminate()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            running = list(self._running)
        for process in running:
            kill_group(process)


def _generator(name: Optional[str]) -> str:
    """The named file among the uploaded ones, else the newest load generator there."""
    folder = places.agent_folder()
    if name is not None:
        found = [os.path.join(folder, args.path_name({"loadgen": name}, "loadgen"))]
    else:
        found = glob.glob(os.path.join(glob.escape(folder), "loadgen-*.pyz"))
    found = [path for path in found if os.path.isfile(path)]
    if not found:
        raise AgentError("not_found", "no load generator was uploaded to {}".format(folder), path=folder)
    return max(found, key=os.path.getmtime)


def _files(given: Message) -> "tuple[str, str]":
    work = places.private_folder(
        places.work_folder(args.text(given, "workdir"), args.path_name(given, "run_id"))
    )
    folder = places.private_folder(os.path.join(work, "load"))
    name = args.path_name(given, "name")
    spec = os.path.join(folder, name + ".spec.json")
    if not isinstance(given.get("spec"), dict):
        raise args.bad("spec", "an object", type(given.get("spec")).__name__)
    descriptor = places.open_private(spec, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    with os.fdopen(descriptor, "w") as stream:
        json.dump(given["spec"], stream)
    return spec, os.path.join(folder, name + ".jsonl")


def _require_folder(folder: str) -> None:
    """A generator that cannot write its records says little; that they have no place any more says all."""
    if not os.path.isdir(folder):
        raise AgentError(
            "failed",
            "node.workdir has vanished: {} was removed while requests ran".format(folder),
            path=folder,
        )


def _follow(
    process: "subprocess.Popen[bytes]", on_progress: Callable[[Message], None]
) -> "tuple[Message, List[str]]":
    """Relays each JSON line; the last one is the summary. Standard error is kept for a failure."""
    said: List[str] = []

    def listen() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            said.append(line.decode("utf-8", "replace").rstrip())
            del said[:-_ERROR_LINES]

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    last: Optional[Message] = None
    assert process.stdout is not None
    for raw in process.stdout:
        try:
            line = json.loads(raw.decode("utf-8"))
        except ValueError:
            said.append(raw.decode("utf-8", "replace").rstrip())
            continue
        if isinstance(line, dict):
            if last is not None:
                on_progress(last)
            last = line
    listener.join(timeout=1.0)
    return last or {}, said


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError as error:
        _require_folder(os.path.dirname(path))
        raise AgentError(
            "failed", "the load generator left no records: {}".format(error.strerror), path=path
        ) from None


def kill_group(process: "subprocess.Popen[bytes]") -> None:
    """While the leader is not reaped its group id is its own."""
    if process.poll() is not None:
        return
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    try:
        process.wait(timeout=_KILL_WAIT_S)
    except subprocess.TimeoutExpired:
        pass
