"""A run folder read as it grows, and the log of its live server beside it."""

from __future__ import annotations

import gzip
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from orchestrator.cli.screen import event_text
from orchestrator.errors import DynspecError, UsageError
from orchestrator.model.experiment import Experiment
from orchestrator.plain_text import clean
from orchestrator.records.begun import begun_experiment, goes_on_with
from orchestrator.records.driver import abandoned
from orchestrator.records.served import Home, home_in
from orchestrator.redact import Redactor
from orchestrator.remote.node import Node
from orchestrator.report.text import plural
from orchestrator.runner.node_paths import server_log
from orchestrator.runner.options import resolve_secrets
from orchestrator.runner.prepare import connect
from orchestrator.store import EVENTS, PACKED_LOG, SERVER_LOG, RunStore, from_here

_POLL_S = 0.5
_TAIL_BYTES = 1 << 16
_FIRST_BYTES = 4096


def server_log_text(store: RunStore, arm: str, boot: int) -> str:
    """The collected log of one boot; of arms that share boots, the server's, and a line on stderr says whose.

    Raises UsageError naming the boots that there are.
    """
    home = home_in(store, arm, boot)
    shared = f"boot {home.boot} of {home.arm}" if home != Home(arm, boot) else ""
    for name in (SERVER_LOG, PACKED_LOG):
        path = store.folder / store.boot_path(home.arm, home.boot, name)
        if path.is_file():
            if shared:
                print(
                    f"dynspec: {arm}, boot {boot}, was measured in {shared}: this is its log", file=sys.stderr
                )
            data = gzip.decompress(path.read_bytes()) if name.endswith(".gz") else path.read_bytes()
            return data.decode("utf-8", "replace")
    told = f"{store.run_id} has no server log of {arm}, boot {boot}"
    raise UsageError(f"{told}, which is {shared}" if shared else told, help=_logs_there(store))


def _logs_there(store: RunStore) -> str:
    there = sorted(
        f"--arm {path.parent.parent.name} --boot {path.parent.name.removeprefix('boot-')}"
        for name in (SERVER_LOG, PACKED_LOG)
        for path in store.folder.glob(f"arms/*/boot-*/{name}")
    )
    if not there:
        return "logs are collected when the run ends; follow it with -f"
    return f"there are: {'; '.join(there)}"


class EventPrinter:
    """Prints lines of events.jsonl that were not printed yet. `current`: the boot whose server runs, if any."""

    def __init__(self, store: RunStore, *, as_json: bool) -> None:
        self._path = store.folder / EVENTS
        self._as_json = as_json
        self._offset = 0
        self._began: datetime | None = None
        self.read = self.unread = 0  # lines
        self.current: tuple[str, int] | None = None

    def print_new(self) -> None:
        for line, event in self._new():
            self._note(event)
            if self._as_json:
                print(line, flush=True)
            elif text := event_text(event):
                print(f"{self._since(event):7.1f}s  {text}", flush=True)

    def _new(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Whole lines only: the last one may be half written."""
        if not self._path.is_file():
            return
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError as error:
            raise UsageError(f"{from_here(self._path)} cannot be read: {error.strerror}") from None
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for raw in whole.decode("utf-8", "replace").splitlines():
            try:
                event = json.loads(raw)
            except ValueError:
                event = None
            if isinstance(event, dict) and "event" in event:
                self.read += 1
                yield raw, event
            else:
                self.unread += 1

    def require_something(self) -> None:
        """Says what of the file cannot be read. Raises UsageError where that is all: every run tells something."""
        if self.read and self.unread:
            print(
                f"dynspec: {plural(self.unread, 'line')} of {from_here(self._path)} cannot be read",
                file=sys.stderr,
            )
        elif not self.read:
            why = "cannot be read" if self.unread else "is empty" if self._path.is_file() else "is missing"
            raise UsageError(
                f"{from_here(self._path)} {why}: what this run did is not known",
                help="dynspec report makes what it can of the rest; --arm NAME prints a server log",
            )

    def _note(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "started":
            self.current = (event["arm"], event["boot"])
        elif event["event"] in ("stopped", "given_back", "outcome"):
            self.current = None

    def _since(self, event: Mapping[str, Any]) -> float:
        try:
            moment = datetime.fromisoformat(str(event["t"]))
        except (KeyError, ValueError):
            return 0.0
        self._began = self._began or moment
        return (moment - self._began).total_seconds()


def follow_run(store: RunStore, printer: EventPrinter) -> None:
    """Until outcome.json is there, or nobody is left who would write it. Ctrl-C ends the following, never the run."""
    server = _LiveLog.open(store) if _under_way(store) else None
    try:
        while _under_way(store):
            printer.print_new()
            if server is not None:
                server.print_new(printer.current)
            time.sleep(_POLL_S)
        printer.print_new()
    finally:
        if server is not None:
            server.close()
    if not store.finished:
        print("\n".join(_controller_gone(store)), file=sys.stderr)


def _under_way(store: RunStore) -> bool:
    return not store.finished and not abandoned(store.folder)


def _controller_gone(store: RunStore) -> tuple[str, ...]:
    again = goes_on_with(store)
    return (
        f"dynspec: the run's controller is gone: {store.run_id} ended without an outcome",
        "  unless it was given back since, the node does it itself when the lease ends; the command below, at once",
        f"  -> go on with: {again}",
    )


class _LiveLog:
    """The log of the server that runs now, through a connection that only reads."""

    def __init__(self, node: Node, experiment: Experiment, run_id: str, redact: Redactor) -> None:
        self._node = node
        self._experiment = experiment
        self._run_id = run_id
        self._redact = redact
        self._boot: tuple[str, int] | None = None
        self._offset = 0
        self._rest = b""

    @classmethod
    def open(cls, store: RunStore) -> _LiveLog | None:
        """None, with the reason on stderr, where the node cannot be asked: the events are followed all the same."""
        try:
            experiment = begun_experiment(store)
            redact = Redactor(resolve_secrets(experiment, os.environ))  # a log may hold them
            return cls(connect(experiment), experiment, store.run_id, redact)
        except DynspecError as error:
            print(f"dynspec: the server log is not followed: {error.message}", file=sys.stderr)
            return None

    def print_new(self, boot: tuple[str, int] | None) -> None:
        if boot is None:
            return
        if boot != self._boot:
            self._boot, self._offset, self._rest = boot, -_FIRST_BYTES, b""
        path = server_log(self._experiment.node.workdir, self._run_id, *boot)
        try:
            tail = self._node.tail(path, self._offset, _TAIL_BYTES)
        except DynspecError:
            return  # not there yet, or just removed with its run
        self._offset = tail.offset
        *lines, self._rest = (self._rest + tail.data).split(b"\n")
        for line in lines:
            text = clean(line.decode("utf-8", "replace").rstrip("\r").rsplit("\r", 1)[-1])
            print(f"        |  {self._redact(text)}", flush=True)

    def close(self) -> None:
        self._node.close()
