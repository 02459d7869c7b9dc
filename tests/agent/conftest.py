"""A node of its own for each test: home, lock name, work folder, a toy package and a fake nvidia-smi first on PATH."""

from __future__ import annotations

import contextlib
import io
import json
import os
import py_compile
import signal
import stat
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from orchestrator.agent import pack
from tests.agent.client import Client, Json, alive, eventually

BANNER = b'BANNER = "original"\n'
WORKER = b"import os\n\n\ndef work(x):\n    return x == 1\n"


def with_bytecode(zipapp: bytes, folder: Path) -> bytes:
    """The zipapp that goes up, with the bytecode of each module beside its source: these tests start it a thousand
    times, and without it every start compiles all of it. The tests of whole runs start it as it goes up."""
    packed = io.BytesIO(zipapp)
    with zipfile.ZipFile(packed, "a") as archive:
        for name in archive.namelist():
            source = Path(archive.extract(name, folder))
            compiled = py_compile.compile(
                str(source),
                cfile=f"{source}c",
                dfile=name,
                doraise=True,
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )
            archive.write(compiled, f"{name}c")
    return packed.getvalue()


@pytest.fixture(scope="session")
def agent_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("agent") / pack.name()
    path.write_bytes(with_bytecode(pack.build_zipapp(), tmp_path_factory.mktemp("sources")))
    return path


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is such a place: thousands of syncs, and no disk has to prove itself."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        yield tmp_path
        return
    with TemporaryDirectory(prefix="dynspec-", dir=memory) as folder:
        yield Path(folder)


class Node:
    """What a test needs to know of its node, and the way to it."""

    def __init__(self, folder: Path, agent: Path) -> None:
        self.folder = folder
        self.agent = agent
        self.home = folder / "home"
        self.workdir = folder / "work"
        self.bin = folder / "bin"
        self.site = folder / "site"
        self.package = self.site / "toy"
        self.lock_name = f"dynspec-test-{os.getpid()}-{abs(hash(str(folder)))}"
        self.environ = {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "HOME": str(folder),
            "DYNSPEC_HOME": str(self.home),
            "DYNSPEC_LOCK_NAME": self.lock_name,
        }
        self.clients: list[Client] = []
        for place in (self.bin, self.package / "sub"):
            place.mkdir(parents=True)
        (self.package / "__init__.py").write_bytes(b'__version__ = "1.2.3"\n')
        (self.package / "banner.py").write_bytes(BANNER)
        (self.package / "sub" / "__init__.py").write_bytes(b"")
        (self.package / "sub" / "worker.py").write_bytes(WORKER)

    @property
    def banner(self) -> Path:
        return self.package / "banner.py"

    @property
    def worker(self) -> Path:
        return self.package / "sub" / "worker.py"

    def client(self, **extra: str) -> Client:
        client = Client(self.agent, {**self.environ, **extra})
        self.clients.append(client)
        return client

    def guard(self, client: Client, run_id: str = "run-1", **args: Any) -> Json:
        asked: Json = {
            "run_id": run_id,
            "holder": "ann@laptop:7",
            "workdir": str(self.workdir),
            "lease_s": 60,
        }
        return client.ask("guard", **{**asked, **args})

    def start(self, client: Client, source: str, **args: Any) -> Json:
        """A server from Python text; its log is `log`."""
        script = self.folder / "server.py"
        script.write_text(textwrap.dedent(source))
        asked: Json = {
            "argv": [sys.executable, str(script)],
            "cwd": str(self.folder),
            "env": {},
            "log": str(self.log),
            "port": 1,
            "arm": "a",
            "boot": 1,
        }
        return client.ask("start", **{**asked, **args})

    @property
    def log(self) -> Path:
        return self.workdir / "run-1" / "logs" / "a-1.log"

    def journal(self, run_id: str = "run-1") -> list[Json]:
        text = (self.home / "runs" / run_id / "journal.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def guardian_pid(self, run_id: str = "run-1") -> int:
        pid: int = self.journal(run_id)[0]["guardian"]["pid"]
        return pid

    def by_hand(self, *words: str, **extra: str) -> subprocess.CompletedProcess[str]:
        """`agent.pyz restore` and its like, as a person types it."""
        argv = [sys.executable, str(self.agent), *words]
        environ = {**self.environ, **extra}
        return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60, check=False)

    def files(self) -> dict[str, tuple[bytes, int, int, int]]:
        """Everything under the package but bytecode: content, mode, owner."""
        found = {}
        for path in sorted(self.package.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                info = path.lstat()
                found[str(path)] = (path.read_bytes(), stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid)
        return found

    def processes(self) -> list[int]:
        """Pids of living guardians and servers of this node, told by their environment or command line."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                environ = (entry / "environ").read_bytes()
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(self.folder).encode() in environ + command and alive(int(entry.name)):
                found.append(int(entry.name))
        return found

    def fake_nvidia_smi(self, xml: str) -> Path:
        """A tool that prints the file `gpus.xml`; tests rewrite the file, or the tool."""
        (self.folder / "gpus.xml").write_text(xml)
        return self.fake_tool(f"cat {self.folder / 'gpus.xml'}")

    def fake_tool(self, script: str) -> Path:
        tool = self.bin / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
        return tool

    def close(self) -> None:
        """Everything of this test must go; what a test left on purpose is ended by pid."""
        for client in self.clients:
            client.close()
        eventually(lambda: not self._ended(), what="test processes gone")

    def _ended(self) -> list[int]:
        """Those that were there; again and again, since one that is about to start another is not seen to be two."""
        found = self.processes()
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return found


@pytest.fixture
def node(tmp_path: Path, agent_file: Path) -> Iterator[Node]:
    made = Node(tmp_path, agent_file)
    yield made
    made.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Two MiB of tmpfs, where this machine lets us mount one."""
    place = tmp_path / "small"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if made.returncode != 0:
        pytest.skip("no small disk: mounting a tmpfs needs root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(path: Path) -> int:
    """Takes all the space there is; returns how much that was."""
    size = 0
    with path.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            size += stream.write(b"x" * 4096)
    return size
