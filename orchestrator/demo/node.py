"""An embedded node: a home folder with a serving tree, a simulated GPU, and an SSH server on loopback.

    with DemoNode() as node:
        ...  # ssh -F node.ssh_config dynspec-demo

Everything lies in one temporary folder and every process it starts carries that folder's name; leaving the context
ends the processes by pid and removes the folder. Needs the extra `demo` (asyncssh) for the SSH side alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from orchestrator.demo import processes
from orchestrator.demo.tree import VERSION, build_tree
from orchestrator.errors import DynspecError, UsageError

HOST = "dynspec-demo"
USER = "demo"
_TARGET = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "max_position_embeddings": 32768,
}


@dataclass(frozen=True)
class NodeOptions:
    """What a test may want otherwise. `engine_env`: DYNSPEC_DEMO_* for all engines of the node, under a launch's own.

    `delay_s`: how late each byte arrives, each way. `gpu_release_s`: how long memory stays charged after an exit.
    """

    version: str = VERSION
    gpus: int = 1
    gpu_memory_mib: int = 143771
    gpu_release_s: float = 0.0
    engine_env: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    max_sessions: int = 10
    env: Mapping[str, str] = field(default_factory=dict)
    keep: bool = False


class DemoNode:
    """`home`: the node's home folder. `ssh_config`, `known_hosts`, `host`: how a client reaches it."""

    host = HOST

    def __init__(self, options: NodeOptions | None = None) -> None:
        self.options = options or NodeOptions()
        self.root = Path(tempfile.mkdtemp(prefix="dynspec-demo-", dir=_short_folder()))
        self.home = self.root / "home"
        self.gpu_dir = self.root / "gpu"
        self.ssh_config = self.root / "client" / "ssh_config"
        self.known_hosts = self.root / "client" / "known_hosts"
        self.port = 0
        self._server: subprocess.Popen[str] | None = None

    @property
    def python(self) -> Path:
        """The interpreter that serves."""
        return self.home / "venv" / "bin" / "python3"

    @property
    def package(self) -> Path:
        """The serving tree's `sglang` folder."""
        return next((self.home / "venv" / "lib").glob("python3*/site-packages")) / "sglang"

    @property
    def environment(self) -> dict[str, str]:
        """What a login on the node sees."""
        return {
            "HOME": str(self.home),
            "USER": USER,
            "LOGNAME": USER,
            "SHELL": "/bin/sh",
            "LANG": "C.UTF-8",
            "PATH": f"{self.home / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "DYNSPEC_HOME": str(self.home / ".dynspec"),
            "DYNSPEC_LOCK_NAME": f"dynspec-{self.root.name}",
            **self.options.env,
        }

    def __enter__(self) -> Self:
        try:
            require_asyncssh()  # before a tree is fetched and built for nothing
            self.build()
            self.serve()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def build(self) -> None:
        """The files: interpreter, tree, models, nvidia-smi."""
        for folder in (self.home / "serve", self.home / "bin", self.gpu_dir, self.ssh_config.parent):
            folder.mkdir(parents=True)
        venv.EnvBuilder(symlinks=True, with_pip=False).create(self.home / "venv")
        facts = self._facts()
        build_tree(self.package.parent, self.options.version, facts)
        for name, extra in (
            ("demo-8b", {}),
            ("demo-8b-eagle3", {"architectures": ["LlamaForCausalLMEagle3"]}),
        ):
            folder = self.home / "models" / name
            folder.mkdir(parents=True)
            (folder / "config.json").write_text(json.dumps({**_TARGET, **extra, "simulated": True}))
        self._install_nvidia_smi(facts)

    def serve(self) -> None:
        """Start the SSH server; `ssh_config` and `known_hosts` are usable afterwards."""
        asyncssh = require_asyncssh()
        keys = {name: asyncssh.generate_private_key("ssh-ed25519", comment=name) for name in ("host", "user")}
        for name, key in keys.items():
            path = self.root / "client" / f"{name}_key"
            path.write_bytes(key.export_private_key())
            path.chmod(0o600)
        public = keys["user"].export_public_key().decode()
        (self.root / "client" / "authorized_keys").write_text(public)
        settings = self.root / "server.json"
        settings.write_text(json.dumps(self._server_settings()))
        self._server = subprocess.Popen(
            [sys.executable, "-m", "orchestrator.demo.sshserver", str(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(self.root / "sshserver.log").open("wb"),
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        )
        self.port = self._read_port(self._server)
        self._write_client_files(keys["host"].export_public_key().decode())

    def wait(self) -> None:
        """Until the SSH server ends by itself, as it never should. Raises DynspecError with its last words."""
        assert self._server is not None
        code = self._server.wait()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        raise DynspecError(
            f"the embedded SSH server has ended ({how}), and the node with it", details=self._last_words()
        )

    def close(self) -> None:
        """End every process of the node and remove its folder. Raises DynspecError if one does not go."""
        if self._server is not None and self._server.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._server.stdin.write("goodbye\n")
                self._server.stdin.close()
            try:
                self._server.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()
            self._server = None
        left = processes.end(self.root)
        if left:
            raise DynspecError(
                f"processes of the embedded node are still there: {left}; its folder is {self.root}"
            )
        if not self.options.keep:
            shutil.rmtree(self.root, ignore_errors=True)

    def engines(self) -> list[int]:
        """Pids of engines, ranks and whatever else serves from this node's tree."""
        mark = os.fsencode(str(self.home / "venv"))
        return [p.pid for p in processes.of_folder(self.root) if mark in _command(p.pid)]

    def _facts(self) -> dict[str, Any]:
        return {
            "gpu_dir": str(self.gpu_dir),
            "models_dir": str(self.home / "models"),
            "gpus": self.options.gpus,
            "gpu_memory_mib": self.options.gpu_memory_mib,
            "gpu_release_s": self.options.gpu_release_s,
            "env": dict(self.options.engine_env),
        }

    def _install_nvidia_smi(self, facts: dict[str, Any]) -> None:
        folder = self.home / "bin"
        shutil.copy(Path(__file__).with_name("nvidia_smi.py"), folder / "nvidia_smi.py")
        (folder / "node.json").write_text(json.dumps(facts))
        tool = folder / "nvidia-smi"
        tool.write_text(f'#!/bin/sh\nexec {self.python} -I -S {folder / "nvidia_smi.py"} "$@"\n')
        tool.chmod(0o755)

    def _server_settings(self) -> dict[str, Any]:
        client = self.root / "client"
        return {
            "host_key": str(client / "host_key"),
            "authorized_keys": str(client / "authorized_keys"),
            "env": self.environment,
            "cwd": str(self.home),
            "max_sessions": self.options.max_sessions,
            "delay_s": self.options.delay_s,
            "root": str(self.root),
            "keep": self.options.keep,
        }

    def _read_port(self, server: subprocess.Popen[str]) -> int:
        assert server.stdout is not None
        line = server.stdout.readline()
        if not line.startswith("READY "):
            raise DynspecError("the embedded SSH server did not start", details=self._last_words())
        return int(line.split()[1])

    def _last_words(self) -> tuple[str, ...]:
        return tuple((self.root / "sshserver.log").read_text(errors="replace").strip().splitlines()[-5:])

    def _write_client_files(self, host_key: str) -> None:
        kind, blob = host_key.split()[:2]
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {kind} {blob}\n")
        self.ssh_config.write_text(
            f"# The simulated node of dynspec\n"
            f"Host {HOST}\n"
            f"  HostName 127.0.0.1\n"
            f"  Port {self.port}\n"
            f"  User {USER}\n"
            f"  IdentityFile {self.root / 'client' / 'user_key'}\n"
            f"  IdentitiesOnly yes\n"
            f"  IdentityAgent none\n"
            f"  UserKnownHostsFile {self.known_hosts}\n"
            f"  GlobalKnownHostsFile /dev/null\n"
            f"  StrictHostKeyChecking yes\n"
            f"  BatchMode yes\n"
        )


def _short_folder() -> str | None:
    """`/tmp` where the usual temporary folder has a long name: paths of unix sockets end at 107 bytes."""
    return "/tmp" if len(tempfile.gettempdir()) > 24 and os.access("/tmp", os.W_OK) else None


def require_asyncssh() -> Any:
    """The module. Raises UsageError where it is not installed."""
    try:
        import asyncssh
    except ImportError as error:
        raise UsageError(
            "the embedded node needs asyncssh, which is not installed",
            help="pip install asyncssh, or dynspec's wheel file with its extra: pip install 'FILE.whl[demo]'; "
            "in a checkout: make demo",
        ) from error
    return asyncssh


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
