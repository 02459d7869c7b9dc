"""The server: started in a session of its own, watched by the guardian, stopped with proof."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Set

from . import ending, files, places, ports, procs
from .children import Children
from .ending import Ended
from .procs import Identity, Stat
from .wire import AgentError, Message

TAIL_LINES = 20
_TAIL_BYTES = 64 * 1024


class Launch(NamedTuple):
    """What to start. `env` is laid over the login environment; None removes a variable."""

    argv: List[str]
    cwd: str
    env: Dict[str, Optional[str]]
    log: str
    port: int


def environment(over: Mapping[str, Optional[str]], marker: str) -> Dict[str, str]:
    """The login environment without our own variables, the launch's over it, unbuffered, and our mark."""
    merged = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("DYNSPEC_") and key not in places.CI_VARIABLES
    }
    merged["PYTHONUNBUFFERED"] = "1"
    for name, value in over.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = value
    name, _, value = marker.partition("=")
    merged[name] = value
    return merged


class Server:
    """One started server. Lives in the guardian, which is its parent."""

    def __init__(self, process: "subprocess.Popen[bytes]", launch: Launch, children: Children) -> None:
        self._process = process
        self._children = children
        self.launch = launch
        stat = procs.stat_of(process.pid)  # the child is not reaped before `poll`, so this is still it
        self.identity: Identity = (process.pid, stat.start_time if stat else 0)
        self.seen: Set[Identity] = {self.identity}
        self.exit_reported = False
        self._lock = threading.Lock()  # of `seen`: the watch and a stop look at the same time
        self.started = time.monotonic()
        self._log_size = -1
        self._log_changed = time.monotonic()

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> Optional[int]:
        """The return code as subprocess tells it (negative for a signal), None while it runs."""
        return self._process.poll()

    def tree(self, processes: Dict[int, Stat]) -> Set[Identity]:
        """Everything alive that came from this server: all below the guardian but its helpers, and what was seen."""
        below = procs.descendants(processes, [os.getpid()]) - self._children.helpers(processes)
        found = {processes[pid].identity for pid in below if not processes[pid].gone}
        with self._lock:
            self.seen |= found
            return procs.alive_in(processes, self.seen)

    def pids(self) -> Set[int]:
        """Everything that was ever seen of it."""
        with self._lock:
            return {pid for pid, _ in self.seen}

    def state(self) -> Message:
        """A ServerState."""
        code = self.poll()
        size, idle_s = self.watch_log()
        return {
            "pid": self.pid,
            "alive": code is None,
            "exit_code": code if code is not None and code >= 0 else None,
            "signal": -code if code is not None and code < 0 else None,
            "log_size": size,
            "log_idle_s": idle_s,
            "log_tail": tail(self.launch.log),
            "utc_s": round(time.time(), 3),
            "disk_free_mib": self._disk_free_mib(),
        }

    def _disk_free_mib(self) -> Optional[int]:
        """Where the log goes: on a full disk it cannot tell why the server died."""
        try:
            return files.free_bytes(os.path.dirname(self.launch.log)) >> 20
        except OSError:
            return None

    def watch_log(self) -> "tuple[int, float]":
        """Size and seconds since it last changed; the file's mtime would follow jumps of the wall clock."""
        try:
            size = os.stat(self.launch.log).st_size
        except OSError:
            size = 0
        if size != self._log_size:
            self._log_size, self._log_changed = size, time.monotonic()
        return size, round(time.monotonic() - self._log_changed, 3)

    def exit_event(self) -> Message:
        state = self.state()
        return {key: state[key] for key in ("pid", "exit_code", "signal", "log_tail")}

    def stop(self, timeout_s: float, hurry: Callable[[], bool]) -> Ended:
        """TERM to the server's group, a wait, KILL to the group and all that is left, until nothing is left."""

        def targets() -> Set[Identity]:
            self.poll()
            processes = procs.snapshot()
            self._children.reap(processes)
            return self.tree(processes)

        def gentle(alive: Set[Identity]) -> None:
            procs.send_group(self.pid, alive, signal.SIGTERM)

        return ending.end(targets, timeout_s, gentle, leader=self.identity, hurry=hurry)

    def wait_port_closed(self, timeout_s: float) -> Optional[str]:
        """None when nobody listens on the port any more, else who does."""
        deadline = time.monotonic() + timeout_s
        while True:
            fact = ports.fact(self.launch.port)
            if not fact["in_use"]:
                return None
            if time.monotonic() >= deadline:
                return "port {port} is still in use by pid {pid} ({command})".format(**fact)
            time.sleep(0.05)


def start(launch: Launch, marker: str, children: Children) -> Server:
    """Raises AgentError `not_found` or `failed` when the program or the folder is not there or cannot run."""
    if not launch.argv:
        raise AgentError("bad_request", "argv is empty")
    if not os.path.isdir(launch.cwd):
        raise AgentError(
            "not_found", "the folder to serve from does not exist: {}".format(launch.cwd), path=launch.cwd
        )
    log = _open_log(launch.log)
    try:
        process = children.spawn_server(
            launch.argv,
            cwd=launch.cwd,
            env=environment(launch.env, marker),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    except OSError as error:
        raise _exec_error(launch, error) from None
    finally:
        os.close(log)
    return Server(process, launch, children)


def _open_log(path: str) -> int:
    try:
        return places.open_private(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    except OSError as error:
        raise AgentError(
            "not_writable", "cannot open the log {}: {}".format(path, error.strerror), path=path
        ) from None


def _exec_error(launch: Launch, error: OSError) -> AgentError:
    code = "not_found" if isinstance(error, (FileNotFoundError, NotADirectoryError)) else "failed"
    return AgentError(
        code, "cannot start {!r}: {}".format(launch.argv[0], error.strerror), path=launch.argv[0]
    )


def tail(path: str, lines: int = TAIL_LINES) -> List[str]:
    """The last lines as a terminal would show them: a progress bar redraws its line with carriage returns."""
    try:
        with open(path, "rb") as stream:
            stream.seek(0, os.SEEK_END)
            size = stream.tell()
            stream.seek(max(0, size - _TAIL_BYTES))
            data = stream.read()
    except OSError:
        return []
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    shown = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return [line for line in shown if line.strip()][-lines:]
