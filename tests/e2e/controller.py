"""The real command line as a process of its own, in a folder and an environment of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

CHECKOUT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-c", "from orchestrator.cli import main; main()")
LIMIT_S = 120.0
MEASURED = (0, 6)  # 6: on a machine with other work the load generator may run late, and then says so
Event = dict[str, Any]


@dataclass(frozen=True)
class Done:
    """A finished command: its exit code and what it showed."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def errors(self) -> list[str]:
        return self.err.splitlines()

    @property
    def text(self) -> str:
        return f"exit code {self.code} after {self.seconds:.1f} s\n{self.out}\n-- stderr --\n{self.err}"

    @property
    def events(self) -> list[Event]:
        return [json.loads(line) for line in self.lines]


class Place:
    """Where somebody sits and types: a current folder, a home folder, results, and nothing of anybody else's."""

    def __init__(self, folder: Path, env: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.command: Sequence[str] = COMMAND
        self.results = folder / "results"
        (folder / "home").mkdir(parents=True)
        self.env = {
            "HOME": str(folder / "home"),
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(CHECKOUT),
            "PYTHONDONTWRITEBYTECODE": os.environ.get("PYTHONDONTWRITEBYTECODE", ""),
            **(env or {}),
        }

    def write(self, experiment: Mapping[str, Any], name: str = "experiment.yaml") -> str:
        (self.folder / name).write_text(yaml.safe_dump(dict(experiment), sort_keys=False))
        return name

    def run(self, *words: str, limit_s: float = LIMIT_S, **env: str) -> Done:
        """The command to its end."""
        return self.start(*words, **env).wait(limit_s)

    def start(self, *words: str, **env: str) -> Running:
        return Running([*self.command, *words], self.folder, {**self.env, **env})

    def run_folder(self) -> Path:
        """The only run folder there is."""
        (folder,) = self.results.iterdir()
        return folder


class Running:
    """A command under way. Lines of its standard output arrive with the time they were seen."""

    def __init__(self, words: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
        self.began = time.monotonic()
        self._err = (folder / f"stderr-{time.monotonic_ns()}").open("w+")
        self.process = subprocess.Popen(
            list(words),
            cwd=folder,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._err,
            text=True,
        )
        self._lines: list[tuple[float, str]] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """A test that failed half-way leaves no controller behind."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(5)
        self._err.close()

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_event(self, kind: str, limit_s: float = LIMIT_S, **fields: object) -> tuple[float, Event]:
        """The first event of that kind and with these values (of --json): when it was seen, and it."""
        deadline = time.monotonic() + limit_s
        seen = 0
        with self._news:
            while True:
                for moment, line in self._lines[seen:]:
                    event = json.loads(line)
                    if event["event"] == kind and fields.items() <= event.items():
                        return moment, event
                seen = len(self._lines)
                if not self._reader.is_alive() or time.monotonic() > deadline:
                    raise AssertionError(f"no {kind} {fields}: {self._told()}")
                self._news.wait(0.5)

    def wait_text(self, text: str, limit_s: float = LIMIT_S) -> None:
        """Until a line of standard output holds `text`."""
        deadline = time.monotonic() + limit_s
        with self._news:
            while not any(text in line for _, line in self._lines):
                if not self._reader.is_alive() or time.monotonic() > deadline:
                    raise AssertionError(f"no {text!r}: {self._told()}")
                self._news.wait(0.5)

    def phase(self, name: str, limit_s: float = LIMIT_S) -> float:
        return self.wait_event("phase", limit_s, phase=name)[0]

    def phases(self) -> list[tuple[str, float]]:
        """Of a command that has ended: each phase of --json and when it was seen to begin."""
        events = [(moment, json.loads(line)) for moment, line in self._lines]
        return [(event["phase"], moment) for moment, event in events if event["event"] == "phase"]

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.process.wait()

    def wait(self, limit_s: float = LIMIT_S) -> Done:
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"not done after {limit_s:.0f} s: {self._told()}") from None
        seconds = time.monotonic() - self.began
        self._reader.join(5)
        self._err.seek(0)
        done = Done(code, "".join(line for _, line in self._lines), self._err.read(), seconds)
        self._err.close()
        return done

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self._lines.append((time.monotonic(), line))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def _told(self) -> str:
        self._err.flush()
        return "".join(line for _, line in self._lines[-15:]) + Path(self._err.name).read_text()[-2000:]
