"""`dynspec run --detach`: the controller as a process of its own session.

The terminal's process waits until the node is locked and the plan accepted, or for the refusal. What it is told comes
over a pipe, one JSON object a line: {"event"}, {"accepted"}, {"ended"}.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from orchestrator.agent.places import CI_VARIABLES
from orchestrator.cli.again import RunCommand
from orchestrator.cli.screen import SCREEN_FILE, Lines, outcome_event
from orchestrator.command import node_command
from orchestrator.errors import UsageError
from orchestrator.model.experiment import Node
from orchestrator.runner.session import Finished
from orchestrator.store import RunStore

_MAIN = "import sys; sys.path[:] = {path!r}; from orchestrator.cli import main; main()"
_FORWARDED = (signal.SIGINT, signal.SIGTERM)  # not SIGHUP: who closes the terminal wants the run to go on


# -- the terminal's side


def launch(command: RunCommand, options: tuple[str, ...], node: Node, *, as_json: bool) -> int:
    """Starts the controller; 0 once its run goes on by itself, else the exit code that it ended with."""
    with _early_screen(command.results) as (path, screen):
        reading, writing = os.pipe()
        words = command.words("--detach", "--report-to", f"{writing}:{path}", *options)
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _MAIN.format(path=sys.path), *words],
            stdin=subprocess.DEVNULL,
            stdout=screen,
            stderr=screen,
            pass_fds=(writing,),
            start_new_session=True,
            env={name: value for name, value in os.environ.items() if name not in CI_VARIABLES},
        )
        os.close(writing)
        with os.fdopen(reading, encoding="utf-8") as told, _forwarding(process) as asked_to_end:
            final = _listen(told, asked_to_end, Lines() if not as_json else None)
        if "accepted" in final:
            _show_accepted(command, node, final["accepted"], as_json=as_json)
            return 0
        code = process.wait()
        _show_ended(final.get("ended"), screen, as_json=as_json)
    return code if code >= 0 else 1


@contextmanager
def _early_screen(results: Path) -> Iterator[tuple[Path, TextIO]]:
    """The controller's screen, until it has a run folder to move it into. Readable by this user alone."""
    try:
        results.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=results, prefix=".detached-", suffix=".log")
    except OSError as error:
        advice = "name another folder with --results"
        raise UsageError(f"{results} can't be written in: {error.strerror}", help=advice) from None
    with os.fdopen(handle, "w+", encoding="utf-8", errors="replace") as screen:
        try:
            yield Path(name), screen
        finally:
            Path(name).unlink(missing_ok=True)


@contextmanager
def _forwarding(process: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """Ctrl-C before the run goes on by itself ends it; the list is then not empty."""
    asked: list[int] = []

    def forward(signum: int, _frame: FrameType | None) -> None:
        asked.append(signum)
        process.send_signal(signum)

    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _listen(told: TextIO, asked_to_end: list[int], screen: Lines | None) -> Mapping[str, Any]:
    """The message that decides; empty when the controller ended without one."""
    for line in told:
        message: dict[str, Any] = json.loads(line)
        if "event" in message and screen is not None:
            screen.listen(message["event"])
        if "ended" in message or ("accepted" in message and not asked_to_end):
            return message
    return {}


def _show_accepted(command: RunCommand, node: Node, accepted: Mapping[str, Any], *, as_json: bool) -> None:
    run_id = accepted["run_id"]
    ways = {
        "see it": command.resume(Path(accepted["folder"])),
        "node": node_command("status", node),
        "logs": f"dynspec logs {accepted['folder'] if command.results != RunCommand.results else run_id} -f",
        "end it": node_command("stop", node),
    }
    if as_json:
        print(json.dumps({"event": "detached", **accepted, "commands": list(ways.values())}), flush=True)
        return
    print(f"\nrun {run_id} goes on by itself, as pid {accepted['pid']}")
    for what, way in ways.items():
        print(f"  {what + ':':<8}{way}")


def _show_ended(ended: Mapping[str, Any] | None, screen: TextIO, *, as_json: bool) -> None:
    if ended is None:  # refused before its first event, or killed: whatever it said stands on its screen
        screen.seek(0)
        print(screen.read(), end="", file=sys.stderr)
        return
    if as_json:
        print(json.dumps(ended["outcome"]), flush=True)
    elif ended["words"]:
        print(ended["words"])
    for line in ended["errors"]:
        print(line, file=sys.stderr)


# -- the controller's side


class DetachedScreen(Lines):
    """Plain lines on standard output, which is a file, and the pipe for as long as somebody listens there."""

    def __init__(self, report_to: str, command: RunCommand) -> None:
        super().__init__(command)
        descriptor, _, path = report_to.partition(":")
        self._pipe = os.fdopen(int(descriptor), "w", encoding="utf-8")
        os.set_inheritable(self._pipe.fileno(), False)
        self._path = Path(path)
        self._listened = True
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def listen(self, event: Mapping[str, Any]) -> None:
        super().listen(event)
        self._tell({"event": event})

    def accepted(self, store: RunStore) -> None:
        """From here on the run goes on alone."""
        with suppress(FileNotFoundError):  # whoever started it is gone already, and its file with it
            self._path.replace(store.folder / SCREEN_FILE)
        told = {"run_id": store.run_id, "folder": str(store.folder), "pid": os.getpid()}
        self._tell({"accepted": told})

    def close(self) -> None:
        """Of a run that was never accepted, whoever started it has the file open, or is gone and left it behind."""
        self._path.unlink(missing_ok=True)

    def finish(self, finished: Finished) -> None:
        super().finish(finished)
        ended = {"outcome": outcome_event(finished), "words": self.closing_words(finished)}
        self._tell({"ended": {**ended, "errors": self.error_lines(finished)}})

    def _tell(self, message: Mapping[str, Any]) -> None:
        if not self._listened:
            return
        try:
            print(json.dumps(message), file=self._pipe, flush=True)
        except OSError:
            self._listened = False
