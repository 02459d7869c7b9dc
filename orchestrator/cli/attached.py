"""`dynspec run --resume` on a run that goes on by itself: its screen, to its end, with its exit code."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import BinaryIO, Self

from orchestrator.cli.again import RunCommand
from orchestrator.cli.following import EventPrinter
from orchestrator.cli.screen import SCREEN_FILE
from orchestrator.errors import DynspecError, PhaseFailed, UsageError
from orchestrator.records.driver import Driver, driver_of
from orchestrator.records.typed import typed_left
from orchestrator.store import OUTCOME, RunStore

_POLL_S = 0.2
_TAIL_BYTES = 64 * 1024
_VIEW_CLOSED = 130


def detached_run(results: Path, run: str) -> tuple[RunStore, Driver] | None:
    """The run and its controller, where one that nobody sits before drives it right now."""
    try:
        store = RunStore.open(results, run)
    except UsageError:
        return None
    driver = driver_of(store.folder)
    return (store, driver) if driver is not None and driver.detached else None


def attach(store: RunStore, driver: Driver, command: RunCommand, *, as_json: bool) -> int:
    """Shows the run until its controller has ended. Ctrl-C ends the showing alone: 130, and the run goes on."""
    again = command.resume(store.folder)
    for option, begun in _ignored(store, driver, command):
        print(f"dynspec: note: {_ignored_words(option, begun)}", file=sys.stderr)
    try:
        if as_json:
            _print_events(store)
        else:
            _print_screen(store.folder)
    except KeyboardInterrupt:
        print(
            f"\ndynspec: the view is closed; run {store.run_id} goes on (pid {driver.pid} on {driver.host})\n"
            f"  -> see it again: {again}",
            file=sys.stderr,
        )
        return _VIEW_CLOSED
    return _exit_code(store, driver, again)


def _ignored(
    store: RunStore, driver: Driver, command: RunCommand
) -> Iterator[tuple[str, tuple[str, ...] | None]]:
    """Options that were typed otherwise than for the part under way, each with its values there; None: it did not
    say."""
    typed = typed_left(store)
    overrides = tuple(map(store.redact, command.overrides))  # as those that are stored
    options = {
        "--arm": (command.arms, driver.arms),
        "--set": (overrides, typed.overrides if typed is not None else None),
    }
    for option, (asked, begun) in options.items():
        if asked and set(asked) != set(begun or ()):
            yield option, begun


def _ignored_words(option: str, begun: tuple[str, ...] | None) -> str:
    how = f", started with {' '.join(f'{option} {quote(value)}' for value in begun or ())}"
    if not begun:
        how = "" if begun is None else ", started without it"
    return f"{option} is ignored: the run is under way{how}"


def _print_events(store: RunStore) -> None:
    printer = EventPrinter(store, as_json=True)
    while driver_of(store.folder) is not None:
        printer.print_new()
        time.sleep(_POLL_S)
    printer.print_new()


def _print_screen(folder: Path) -> None:
    with ScreenReader(folder / SCREEN_FILE) as screen:
        while driver_of(folder) is not None:
            print(screen.new(), end="", flush=True)
            time.sleep(_POLL_S)
        print(screen.new(), end="", flush=True)


class ScreenReader:
    """A screen file as it grows, from its last 64 KiB on. A resumed controller brings a new file of that name, once its
    plan is accepted: until then there may be none, or the one of the part before."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def new(self) -> str:
        """Whole lines that were not told yet."""
        told = self._lines()
        if self._replaced():
            told += self._lines()
        return told.decode("utf-8", "replace")

    def _lines(self) -> bytes:
        if self._file is None:
            return b""
        start = self._file.tell()
        data = self._file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._file.seek(start + len(whole))
        return whole

    def _replaced(self) -> bool:
        try:
            fresh = self._path.open("rb")
        except OSError:
            return False
        info = os.fstat(fresh.fileno())
        if self._file is not None and info.st_ino == os.fstat(self._file.fileno()).st_ino:
            fresh.close()
            return False
        self.__exit__()
        self._file = fresh
        if info.st_size > _TAIL_BYTES:
            fresh.seek(info.st_size - _TAIL_BYTES)
            fresh.readline()
        return True


def _exit_code(store: RunStore, driver: Driver, again: str) -> int:
    try:
        return int(store.read_json(OUTCOME)["outcome"]["exit_code"])
    except (DynspecError, KeyError, TypeError, ValueError):
        raise PhaseFailed(
            f"the controller of run {store.run_id} (pid {driver.pid} on {driver.host}) has died",
            details=("the node gives itself back when its lease ends, or at once with the command below",),
            help=f"go on with: {again}",
        ) from None
