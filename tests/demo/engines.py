"""Real stand-in engines for tests: a tree made from the wheel, patched or not, and a process that serves from it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from orchestrator.demo.tree import build_tree
from orchestrator.patchset import find_patch
from tests.sshd import free_port

EAGLE3 = (
    *("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "org/draft"),
    *("--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"),
)
EAGLE3_V1 = (
    *("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "org/draft"),
    *(
        "--speculative-num-steps",
        "2",
        "--speculative-eagle-topk",
        "4",
        "--speculative-num-draft-tokens",
        "16",
    ),
)

StartEngine = Callable[..., "EngineProcess"]


def make_site(folder: Path, version: str = "0.5.11", node: dict[str, Any] | None = None) -> Path:
    """A site-packages folder with an unpatched tree and the engine."""
    folder.mkdir(parents=True, exist_ok=True)
    build_tree(folder, version, node)
    return folder


def apply_patch(site: Path, name: str) -> None:
    """Put the named patch into the tree, as its patcher would on a node."""
    patch = find_patch(name)
    for target in patch.targets:
        file = site / "sglang" / target.path
        if file.is_file():
            file.write_text(target.edit(file.read_text(), unique=True))
    for add in patch.adds:
        file = site / "sglang" / add.path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(add.text)


def copy_site(site: Path, folder: Path) -> Path:
    shutil.copytree(site, folder)
    return folder


class EngineProcess:
    """One server. `env` over a small environment; output of both streams in `log`."""

    def __init__(self, site: Path, log: Path, *flags: str, env: dict[str, str] | None = None) -> None:
        self.port = free_port()
        self.log_file = log
        self.base = f"http://127.0.0.1:{self.port}"
        # One client for all: a new one takes tens of ms, and requests would not run together.
        self.client = httpx.Client(base_url=self.base, timeout=60, limits=httpx.Limits(max_connections=None))
        base_env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(site), "PYTHONUNBUFFERED": "1"}
        argv = [sys.executable, "-m", "sglang.launch_server"]
        if "--model-path" not in flags:
            argv += ["--model-path", "org/model"]
        with log.open("wb") as sink:
            self.process = subprocess.Popen(
                [*argv, "--port", str(self.port), *flags],
                env={**base_env, "DYNSPEC_DEMO_SPEED": "8", "DYNSPEC_DEMO_LOAD_S": "0.4", **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                cwd=log.parent,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def health(self) -> int | None:
        """Status of /health; None: refused."""
        with contextlib.suppress(httpx.TransportError):
            return self.client.get("/health").status_code
        return None

    def wait_ready(self, limit_s: float = 60.0) -> EngineProcess:
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"engine exited with {self.process.returncode}:\n{self.log[-2000:]}")
            if self.health() == 200:
                return self
            time.sleep(0.03)
        raise AssertionError(f"not ready:\n{self.log[-2000:]}")

    def get(self, path: str) -> Any:
        return self.client.get(path).raise_for_status().json()

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return self.client.post(path, json=body)

    def generate(self, text: str, tokens: int, **params: Any) -> dict[str, Any]:
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True, **params}
        return self.post("/generate", {"text": text, "sampling_params": sampling}).raise_for_status().json()

    def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """All events of a stream; the end mark is checked and left out."""
        found: list[str] = []
        with self.client.stream("POST", path, json={**body, "stream": True}) as response:
            assert response.status_code == 200, response.read()
            found = [line[len("data: ") :] for line in response.iter_lines() if line.startswith("data: ")]
        assert found[-1] == "[DONE]"
        return [json.loads(text) for text in found[:-1]]

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.get("/server_info")["internal_states"][0]
        return state

    def wait_exit(self, limit_s: float = 60.0) -> int:
        return self.process.wait(limit_s)

    def close(self) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)
        self.client.close()


@contextlib.contextmanager
def running(site: Path, log: Path, flags: Sequence[str] = (), **env: str) -> Iterator[EngineProcess]:
    engine = EngineProcess(site, log, *flags, env=env)
    try:
        yield engine
    finally:
        engine.close()
