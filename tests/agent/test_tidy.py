"""Folders of runs that nobody came back for: what a later run removes, and what it never does."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.agent import places, procs, tidy
from orchestrator.agent.journal import CLEAN, Journal
from tests.agent.client import change
from tests.agent.conftest import BANNER, Node

RUN = "run-1"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DYNSPEC_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "runs"


def _run(work: Path, state: str | None = CLEAN, *, machine_id: str | None = None, logs: bool = False) -> None:
    """A run's two folders; `state` None: its journal is open."""
    for folder in (places.home(), places.runs_folder(), places.run_folder(RUN)):
        places.private_folder(folder)
    journal = Journal.create(
        RUN,
        boot_id=procs.boot_id() if machine_id is None else "another",
        machine_id=machine_id or procs.machine_id(),
        pid_namespace=procs.pid_namespace(),
        guardian={"pid": os.getpid(), "start_time": 1},
        holder="ann@laptop:7",
        workdir=str(work),
        stop_s=5.0,
        marker=f"DYNSPEC_RUN={RUN}.x",
    )
    (work / RUN / ("logs" if logs else "smoke")).mkdir(parents=True)
    if state is not None:
        journal.append("close", state=state)
    journal.close_file()


def _aged(days: float) -> None:
    moment = time.time() - days * 86400
    os.utime(Path(places.run_folder(RUN)) / "journal.jsonl", (moment, moment))


def _damaged(work: Path) -> None:
    _run(work)
    (Path(places.run_folder(RUN)) / "journal.jsonl").write_bytes(
        b'garbage\n{"kind": "close", "state": "clean"}\n'
    )


CASES: dict[str, tuple[Callable[[Path], None], float, bool]] = {
    # what lies there, its age in days, whether it goes
    "closed, no log": (lambda work: _run(work), 0, True),
    "closed, logs not collected": (lambda work: _run(work, logs=True), 6.9, False),
    "closed, logs nobody collected for a week": (lambda work: _run(work, logs=True), 7.1, True),
    "open": (lambda work: _run(work, None), 30, False),
    "somebody's edits kept": (lambda work: _run(work, "foreign files kept"), 30, False),
    "another machine's": (lambda work: _run(work, machine_id="another"), 30, False),
    "damaged": (_damaged, 30, False),
}


@pytest.mark.parametrize(("make", "days", "goes"), CASES.values(), ids=CASES)
def test_the_rule_of_what_is_removed(
    make: Callable[[Path], None], days: float, goes: bool, registry: Path, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    make(work)
    _aged(days)
    assert tidy.clear() == ([RUN] if goes else [])
    assert (registry / RUN).exists() != goes
    assert (work / RUN).exists() != goes


def test_a_run_never_removes_its_own_earlier_part(registry: Path, tmp_path: Path) -> None:
    _run(tmp_path / "work")
    assert tidy.clear(RUN) == []


def test_a_link_in_the_place_of_a_work_folder_is_not_followed(registry: Path, tmp_path: Path) -> None:
    _run(tmp_path / "work")
    precious = tmp_path / "precious"
    precious.mkdir()
    shutil.rmtree(tmp_path / "work" / RUN)
    (tmp_path / "work" / RUN).symlink_to(precious)
    assert tidy.clear() == [RUN]
    assert precious.exists()


def test_the_next_run_tells_what_it_removed_of_one_that_had_died(node: Node) -> None:
    first = node.client()
    node.guard(first)
    first.ask("apply", set="s", files=[change(node.banner, BANNER, b"patched\n")])
    os.kill(node.guardian_pid(), 9)
    first.event("guardian_lost")
    taken = node.guard(node.client(), "run-2")
    assert ([item["run_id"] for item in taken["recovered"]], taken["cleared"]) == ([RUN], [RUN])
    assert [path.name for path in (node.home / "runs").iterdir()] == ["run-2"]
    assert [path.name for path in node.workdir.iterdir()] == ["run-2"]
