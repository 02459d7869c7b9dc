"""What a run shows: plain lines that read the same in a terminal, in tmux and in a CI log; or one JSON event a line."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from orchestrator.cli import output
from orchestrator.cli.again import RunCommand
from orchestrator.cli.words import error_lines
from orchestrator.errors import NodeDirty
from orchestrator.model.experiment import Experiment
from orchestrator.model.result import RunInfo
from orchestrator.runner.events import Listener
from orchestrator.runner.session import Finished
from orchestrator.store import SUMMARY, from_here

SCREEN_FILE = "screen.log"  # of a run folder: what a detached controller shows
_PROGRESS_EVERY_S = 10.0


class Screen(Protocol):
    @property
    def watchers(self) -> tuple[Listener, ...]:
        """Who wants to know how things stand right now; see Events.pulse."""

    def listen(self, event: Mapping[str, Any]) -> None: ...

    def close(self) -> None:
        """Leaves the terminal as it was, also where there is nothing to finish."""

    def finish(self, finished: Finished) -> None: ...


def screen_for(
    as_json: bool, experiment: Experiment, arms: tuple[str, ...] = (), command: RunCommand | None = None
) -> Screen:
    """JSON where asked for, a live view on a terminal that can draw, lines everywhere else.

    The run outlives it, and whoever reads it: see `output`.
    """
    output.outlive_screen()
    if as_json:
        return JsonLines()
    if not _draws():
        return Lines(command)
    from orchestrator.cli.live import LiveView
    from orchestrator.cli.progress import Totals

    return LiveView(Totals.of(experiment, arms), command=command)


def _draws() -> bool:
    """Standard output is a terminal that knows escape codes."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb").lower() not in ("dumb", "unknown", "")


class JsonLines:
    """Events as they are; the last line is the outcome."""

    watchers: tuple[Listener, ...] = ()

    def close(self) -> None:
        pass

    def listen(self, event: Mapping[str, Any]) -> None:
        print(json.dumps(event), flush=True)

    def finish(self, finished: Finished) -> None:
        if finished.store is None:  # refused before there was a run folder: no outcome event was written
            with suppress(OSError):
                print(json.dumps(outcome_event(finished)), flush=True)
        _tell_loss(finished)
        if isinstance(finished.error, NodeDirty):
            print(finished.error.restore_command, file=sys.stderr)


def _tell_loss(finished: Finished) -> None:
    """What could not be shown costs no run its exit code: its outcome is stored."""
    said = finished.error.message if finished.error is not None else ""
    more = (
        f"; the run folder is whole: {from_here(finished.store.folder)}" if finished.store is not None else ""
    )
    lost = output.lost(answered=said)
    if more and not lost and output.unread():
        lost = "dynspec: nobody read standard output to its end"
    if lost:
        with suppress(OSError):  # of a detached run it is the same file
            print(f"{lost}{more}", file=sys.stderr)


def outcome_event(finished: Finished) -> dict[str, Any]:
    """The last event of a run that has no run folder to write it into."""
    outcome = finished.outcome
    told = {"exit_code": outcome.exit_code, "state": outcome.state, "text": outcome.message}
    return {"event": "outcome", **told}


class Lines:
    """One line an event, with the time since the start; progress at most every ten seconds."""

    def __init__(self, command: RunCommand | None = None) -> None:
        self._command = command
        self._began_s = time.monotonic()
        self._progress_s = 0.0

    @property
    def watchers(self) -> tuple[Listener, ...]:
        return ()

    def close(self) -> None:
        pass

    def listen(self, event: Mapping[str, Any]) -> None:
        text = self._text(event)
        if text:
            print(f"{time.monotonic() - self._began_s:7.1f}s  {text}", flush=True)

    def _text(self, event: Mapping[str, Any]) -> str:
        kind = event["event"]
        if kind == "progress":
            now = time.monotonic()
            if now - self._progress_s < _PROGRESS_EVERY_S:
                return ""
            self._progress_s = now
            return f"         {event['what']}: {event.get('done', 0)} done, {event.get('in_flight', 0)} in flight"
        return event_text(event)

    def finish(self, finished: Finished) -> None:
        """The report, then the error. A reader who is gone keeps neither the error nor the exit code from whoever
        is left: standard error may still be read."""
        with suppress(OSError):
            self._show(finished)
            sys.stdout.flush()
        _tell_loss(finished)
        for line in self.error_lines(finished):
            print(line, file=sys.stderr)

    def error_lines(self, finished: Finished) -> list[str]:
        return error_lines(finished.error) if finished.error is not None else []

    def _show(self, finished: Finished) -> None:
        if finished.summary is not None and finished.info is not None:
            print()
            show_report(finished.summary, finished.info)
        if finished.store is not None:
            path = report_path(finished.store.folder) if finished.summary is not None else None
            print(f"\nreport: {path}" if path else f"\nrun folder: {from_here(finished.store.folder)}")
        if words := self.closing_words(finished):
            print(words)

    def closing_words(self, finished: Finished) -> str:
        """How a run that did not come to its end is gone on with; empty for one that did."""
        again = ""
        if self._command is not None and finished.store is not None and finished.outcome.node_restored:
            again = f"Go on with: {self._command.resume(finished.store.folder)}"
        if finished.outcome.state == "interrupted":
            return f"interrupted; {finished.node}. {again}".rstrip()
        return again if finished.outcome.state == "failed" else ""


def event_text(event: Mapping[str, Any]) -> str:
    """One event in words; empty for those that only programs need."""
    writer = _WRITERS.get(event["event"])
    return writer(event) if writer else ""


def _point_done(event: Mapping[str, Any]) -> str:
    metrics = event["metrics"]
    rate = metrics.get("output_tps")
    shown = "no throughput" if rate is None else f"{rate:.0f} tok/s"
    accept = metrics.get("accept_length")
    extra = f", accept length {accept:.2f}" if accept is not None else ""
    where = f"{event['arm']} boot {event['boot']} c={event['concurrency']}"
    return f"point     {where}: {shown}{extra}, {event['ok']} ok, {event['failed']} failed"


def _smoke(event: Mapping[str, Any]) -> str:
    """Later lines stand under the first, behind the time and the word."""
    return "smoke     " + f"\n{' ' * 20}".join(event["lines"]) if event["lines"] else ""


def _given_back(event: Mapping[str, Any]) -> str:
    """Files that were put back between the boots, or before, have had their line: here are the rest, if any."""
    files = f"files put back: {len(event['restored'])}; " if event.get("restored") else ""
    return f"restored  {files}every file is as it was, verified by hash; lock released"


_WRITERS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "phase": lambda event: f"{event['phase']:<9} {event['text']}",
    "warning": lambda event: f"note      {event['text']}",
    "note": lambda event: f"note      {event['text']}",
    "recovered": lambda event: f"recovered {event['text']}",
    "smoke": _smoke,
    "freed": lambda event: (
        f"stopped   pid {event['process']['pid']} of {event['process']['user']}: {event['process']['command']}"
    ),
    "loading": lambda event: f"          {event['text']}",
    "ready": lambda event: f"ready     {event['arm']} boot {event['boot']} after {event['seconds']} s",
    "canary": lambda event: f"canary    {event['arm']}: {event['text']}",
    "point_done": _point_done,
    "restored": lambda event: (
        f"restored  files put back: {len(event['files'])}, verified by hash" if event["files"] else ""
    ),
    "given_back": _given_back,
    "failed": lambda event: f"failed    {event['text']}",
}


def report_path(folder: Path) -> Path | None:
    """The file that a person opens, as short as it can be typed; None where none could be written."""
    found = [from_here(folder) / name for name in ("report.html", "report.md", SUMMARY)]
    return next((path for path in found if path.is_file()), None)


def show_report(summary: dict[str, Any], info: RunInfo) -> None:
    """The terminal report at the width of this terminal; plain where it draws none, or NO_COLOR is set."""
    from orchestrator.report.terminal import to_text
    from orchestrator.report.text import PLUS_MINUS

    tty = sys.stdout.isatty()
    width = shutil.get_terminal_size((100, 24)).columns if tty else 100
    color = _draws() and not os.environ.get("NO_COLOR")
    sign = PLUS_MINUS if output.draws(PLUS_MINUS) else "+-"
    print(to_text(summary, info, width=width, color=color, plus_minus=sign))
