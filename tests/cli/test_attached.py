"""The screen of a detached run, read as it grows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.cli.again import RunCommand
from orchestrator.cli.attached import ScreenReader, attach, detached_run
from orchestrator.records.driver import FILE_NAME, Driver, driver_of
from orchestrator.records.typed import KEY, Typed
from orchestrator.redact import Redactor
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


TOKEN = f"server.env.A=hf_{'x' * 34}"


@pytest.mark.parametrize(
    ("started", "asked", "says"),
    [
        (
            ("sweep.repeats=4", "a=b c"),
            ("sweep.repeats=3",),
            ", started with --set sweep.repeats=4 --set 'a=b c'",
        ),
        ((), ("sweep.repeats=3",), ", started without it"),
        (None, ("sweep.repeats=3",), ""),
        ((TOKEN,), (TOKEN,), None),
        (("sweep.repeats=4",), (), None),
    ],
)
def test_overrides_other_than_those_under_way_are_said_to_be_ignored(
    tmp_path: Path,
    started: tuple[str, ...] | None,
    asked: tuple[str, ...],
    says: str | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = RunStore.create(tmp_path, RUN, Redactor({}))
    typed = {KEY: Typed("e.yaml", started)} if started is not None else {}
    assert "hf_x" not in store.write_json("plan.json", {**typed, "plan": {}}).read_text()
    store.write_json("outcome.json", {"outcome": {"exit_code": 0}})
    assert attach(store, Driver(), RunCommand(Path("e.yaml"), overrides=asked), as_json=False) == 0
    note = "" if says is None else f"dynspec: note: --set is ignored: the run is under way{says}\n"
    assert capsys.readouterr().err == note


@pytest.mark.parametrize(
    ("started", "asked", "says"),
    [
        (("twin",), ("baseline",), "--arm is ignored: the run is under way, started with --arm twin"),
        ((), ("baseline",), "--arm is ignored: the run is under way, started without it"),
        (("twin", "baseline"), ("baseline", "twin"), ""),
        (("twin",), (), ""),
    ],
)
def test_arms_other_than_those_under_way_are_said_to_be_ignored(
    tmp_path: Path,
    started: tuple[str, ...],
    asked: tuple[str, ...],
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = RunStore.create(tmp_path, RUN, Redactor({}))
    with RunLock(detached=True, arms=started) as lock:
        lock.take(store.folder)
        driver = driver_of(store.folder)
        store.write_json("outcome.json", {"outcome": {"exit_code": 6}})
    assert driver is not None
    assert attach(store, driver, RunCommand(Path("e.yaml"), asked), as_json=False) == 6
    assert capsys.readouterr().err == (f"dynspec: note: {says}\n" if says else "")


def test_a_controller_that_does_not_say_its_arms_is_not_said_to_have_any(tmp_path: Path) -> None:
    with RunLock(detached=True) as lock:
        lock.take(tmp_path)
        (tmp_path / FILE_NAME).write_text('{"pid": 7, "detached": true}')  # of an earlier version
        assert driver_of(tmp_path) == Driver(7, detached=True, arms=None)
