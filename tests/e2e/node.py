"""A whole node behind a real sshd: the embedded node's home (SGLang's source, stand-in engine, simulated GPU), OpenSSH
in front of it, and what a test asks afterwards: is it as it was?"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from orchestrator.demo import processes
from orchestrator.demo.node import DemoNode, NodeOptions
from orchestrator.demo.tree import ENGINE_PACKAGE
from tests.sshd import Sshd, process_name

Picture = dict[str, tuple[object, ...]]
GONE_LIMIT_S = 30.0  # a guardian answers, then ends; an agent ends when its channel does


class SshNode:
    """`with SshNode(folder) as node:` a home of its own, reached by `ssh -F node.sshd.ssh_config testnode`.

    `address`, `wrapper`: where its sshd listens, as in `Sshd`.
    """

    def __init__(
        self,
        folder: Path,
        options: NodeOptions | None = None,
        *,
        address: str = "127.0.0.1",
        wrapper: Sequence[str] = (),
    ) -> None:
        self.demo = DemoNode(options)
        self.home = self.demo.home
        self.workdir = self.home / "work"
        self.registry = self.home / ".dynspec"
        environment = dict(self.demo.environment)
        self.lock_name = environment["DYNSPEC_LOCK_NAME"]
        limits = {"MaxStartups": "50", "MaxSessions": "4"}
        self.sshd = Sshd(folder, env=environment, options=limits, address=address, wrapper=wrapper)
        self.before: Picture = {}

    def __enter__(self) -> Self:
        self.demo.build()
        _compile_engine(self.demo)
        self.sshd.__enter__()
        self.before = self.files()
        return self

    def __exit__(self, *_: object) -> None:
        self.sshd.stop()
        self.demo.close()

    @property
    def name(self) -> str:
        return self.sshd.name

    @property
    def package(self) -> Path:
        return self.demo.package

    # -- what is there

    def files(self) -> Picture:
        """Everything in the home but dynspec's own two folders: kind, content or target, mode, owner."""
        return dict(self._entries(self.home))

    def _entries(self, folder: Path) -> Iterator[tuple[str, tuple[object, ...]]]:
        for entry in os.scandir(folder):
            path = Path(entry.path)
            if path in (self.workdir, self.registry):
                continue
            info = entry.stat(follow_symlinks=False)
            identity = (stat.S_IFMT(info.st_mode), stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid)
            if entry.is_symlink():
                yield entry.path, (*identity, os.readlink(path))
            elif entry.is_dir():
                yield entry.path, identity
                yield from self._entries(path)
            else:
                yield entry.path, (*identity, hashlib.sha256(path.read_bytes()).hexdigest())

    def own_processes(self) -> list[str]:
        """Living agents, guardians, servers, load generators and tools of this node, as `pid command`."""
        found = []
        for process in processes.of_folder(self.demo.root):
            words = _command_line(process.pid)
            if words:
                found.append(f"{process.pid} {words}")
        return found

    def lock_holder(self) -> dict[str, Any] | None:
        """Who answers at the node's lock, None when nobody holds it."""
        while True:
            with socket.socket(socket.AF_UNIX) as probe:
                try:
                    probe.connect("\0" + self.lock_name)
                    line = probe.makefile("rb").readline()
                except ConnectionRefusedError:
                    return None
                except ConnectionResetError:
                    continue  # it was just ending
            if line:
                holder: dict[str, Any] = json.loads(line)
                return holder

    def journals(self) -> dict[str, list[dict[str, Any]]]:
        """By run id, the records of each journal that is there."""
        found = {}
        for path in self.registry.glob("runs/*/journal.jsonl"):
            lines = path.read_text().splitlines()
            found[path.parent.name] = [json.loads(line) for line in lines if line.endswith("}")]
        return found

    def open_journals(self) -> list[str]:
        return [run for run, lines in self.journals().items() if lines[-1]["kind"] != "close"]

    def guardian_pid(self) -> int:
        holder = self.lock_holder()
        assert holder is not None, "nobody holds the node"
        return int(holder["guardian_pid"])

    def server_pid(self) -> int:
        """Of the run that holds the node, as its journal says."""
        for lines in self.journals().values():
            started = [line["pid"] for line in lines if line["kind"] == "server"]
            if lines[-1]["kind"] != "close" and started:
                return int(started[-1])
        raise AssertionError("no server was started")

    def agent_pids(self) -> list[int]:
        """Of the agents that serve channels."""
        return [int(line.split()[0]) for line in self.own_processes() if line.endswith(".pyz serve")]

    # -- what a test expects

    def is_free(self) -> bool:
        return self.lock_holder() is None and not self.open_journals() and not self.own_processes()

    def is_given_back(self) -> bool:
        """Lock, journal and files; a frozen connection may still have its agent."""
        return self.lock_holder() is None and not self.open_journals() and self.files() == self.before

    def wait_until_free(self, limit_s: float) -> float:
        """Seconds until nobody holds the node, no journal is open and nothing of ours runs."""
        began = time.monotonic()
        while not self.is_free():
            assert time.monotonic() < began + limit_s, self.problems()
            time.sleep(0.05)
        return time.monotonic() - began

    def problems(self) -> list[str]:
        """Every way in which the node is not as it was found; empty when it is."""
        deadline = time.monotonic() + GONE_LIMIT_S
        while self.own_processes() and time.monotonic() < deadline:
            time.sleep(0.05)
        found = [f"process left: {line}" for line in self.own_processes()]
        if self.lock_holder() is not None:
            found.append(f"lock held: {self.lock_holder()}")
        found += [f"journal open: {run}" for run in self.open_journals()]
        return found + differences(self.before, self.files())


def differences(before: Picture, after: Picture) -> list[str]:
    """One line for each file that is not what it was."""
    lines = [f"missing: {path}" for path in sorted(before.keys() - after.keys())]
    lines += [f"new: {path}" for path in sorted(after.keys() - before.keys())]
    both = sorted(before.keys() & after.keys())
    return lines + [f"changed: {path}" for path in both if before[path] != after[path]]


class NodeShelf:
    """One node for many tests, replaced when a test did not leave it as it was."""

    def __init__(self, make_folder: Callable[[], Path]) -> None:
        self._make_folder = make_folder
        self._node: SshNode | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._drop()

    def take(self) -> SshNode:
        if self._node is None:
            self._node = SshNode(self._make_folder()).__enter__()
        return self._node

    def give_back(self, node: SshNode) -> None:
        """Raises AssertionError with everything that is not as it was."""
        problems = node.problems()
        if problems:
            self._drop()
        assert not problems, "the node was not given back as it was:\n" + "\n".join(problems)

    def _drop(self) -> None:
        node, self._node = self._node, None
        if node is not None:
            node.__exit__()


class Foreign:
    """Somebody else's process that looks like a server: a kill by name or by command line would hit it."""

    def __init__(self, node: SshNode) -> None:
        words = ["python3 -m sglang.launch_server --model-path /models/theirs", "86400"]
        self._process = subprocess.Popen(
            words, executable=shutil.which("sleep"), stdin=subprocess.DEVNULL, cwd="/", env={"PATH": "/bin"}
        )
        self._gpu_dir = node.demo.gpu_dir

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def hold_gpu(self, mib: int = 40_000, gpu: int = 0) -> Path:
        """From now on nvidia-smi lists it; returns the file to remove when it shall not."""
        start = int(Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[19])
        entry = self._gpu_dir / f"{self.pid}.json"
        entry.write_text(json.dumps({"pid": self.pid, "start": start, "gpu": gpu, "mib": mib}))
        return entry

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def gone_at(pid: int, limit_s: float = 30.0) -> float:
    """Waits for the end of a process; returns the monotonic time at which it was seen to be gone."""
    deadline = time.monotonic() + limit_s
    while process_state(pid) not in ("", "Z"):
        assert time.monotonic() < deadline, f"pid {pid} lives"
        time.sleep(0.005)
    return time.monotonic()


def process_state(pid: int) -> str:
    """The letter of /proc/PID/stat, "" for a process that is not there."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _compile_engine(demo: DemoNode) -> None:
    """As pip leaves it: without this the first launch would write the bytecode of the files it imports."""
    site = demo.package.parent
    targets = [site / ENGINE_PACKAGE, demo.package / "__init__.py", demo.package / "launch_server.py"]
    subprocess.run([demo.python, "-m", "compileall", "-q", *targets], check=True)


def _command_line(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
    return words.strip() or f"[{process_name(pid)}]"


def experiment(node: SshNode, port: int, /, **sections: Any) -> dict[str, Any]:
    """The smallest experiment that is worth a run: one patched arm, one boot, one point. `sections` are merged in."""
    base: dict[str, Any] = {
        "schema": 1,
        "name": "e2e",
        "node": {
            "host": node.name,
            "python": "~/venv/bin/python3",
            "cwd": "~/serve",
            "workdir": "~/work",
            "ssh_config": str(node.sshd.ssh_config),
            "known_hosts": str(node.sshd.known_hosts),
        },
        "server": {
            "port": port,
            "args": {"model-path": "/models/demo-8b", "max-running-requests": 64},
            "env": {"DYNSPEC_DEMO_SPEED": "20", "DYNSPEC_DEMO_LOAD_S": "2"},
            "ready": {"timeout": "30s", "silence": "20s"},
        },
        "arms": {"banner": {"patches": ["spec_banner"]}},
        "sweep": {
            "concurrency": [2],
            "output_tokens": 8,
            "requests_per_slot": 1,
            "min_requests": 2,
            "warmup": {"requests_per_slot": 0},
            "repeats": 1,
        },
        "limits": {"canary": "30s", "point": "60s", "stop": "10s", "gpu_free": "10s"},
    }
    return merged(base, sections)


EAGLE3 = {
    "speculative-algorithm": "EAGLE3",
    "speculative-draft-model-path": "/models/demo-8b-eagle3",
    "speculative-num-steps": 3,
    "speculative-eagle-topk": 1,
    "speculative-num-draft-tokens": 4,
}


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`, key by key; whole values replace lists, and `arms` as a whole."""
    result = dict(base)
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(result.get(key), Mapping) and key != "arms":
            result[key] = merged(result[key], value)
        else:
            result[key] = value
    return result
