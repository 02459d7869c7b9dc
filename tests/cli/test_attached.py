"""The screen of a detached run, read as it grows."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.cli.attached import ScreenReader, detached_run
from orchestrator.runner.runlock import RunLock
from orchestrator.store import RunStore

RUN = "20260101-000000-x-0001"


def test_whole_lines_are_told_once_and_a_new_screen_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "screen.log"
    with ScreenReader(path) as screen:
        assert screen.new() == ""  # not there yet
        path.write_text("one\ntw")
        assert screen.new() == "one\n"
        with path.open("a") as file:
            file.write("o\nthree\n")
        assert screen.new() == "two\nthree\n"
        assert screen.new() == ""
        fresh = tmp_path / "fresh"
        fresh.write_text("resumed\n")
        with path.open("a") as file:
            file.write("last words\n")
        os.replace(fresh, path)
        assert screen.new() == "last words\nresumed\n"


def test_of_a_long_screen_the_last_lines_are_told(tmp_path: Path) -> None:
    path = tmp_path / "screen.log"
    path.write_text("".join(f"line {number}\n" for number in range(20_000)))
    with ScreenReader(path) as screen:
        told = screen.new().splitlines()
    assert told[-1] == "line 19999"
    assert told[0].startswith("line ")
    assert len(told) < 10_000


def test_only_a_run_that_nobody_sits_before_is_shown(tmp_path: Path) -> None:
    folder = tmp_path / RUN
    folder.mkdir()
    (folder / "plan.json").write_text("{}")
    assert detached_run(tmp_path, "20200101-000000-none-0000") is None
    assert detached_run(tmp_path, RUN) is None
    for detached in (False, True):
        with RunLock(detached=detached) as lock:
            lock.take(folder)
            found = detached_run(tmp_path, RUN)
            assert (found is not None) == detached
    assert RunStore.open(tmp_path, RUN).folder == folder
