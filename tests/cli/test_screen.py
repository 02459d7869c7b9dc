"""The last words of a run: what became of the node, and the whole command that goes on with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.analysis.summary import summarise
from orchestrator.cli.again import RunCommand
from orchestrator.cli.screen import Lines, event_text, report_path
from orchestrator.errors import DynspecError, NodeDirty, PhaseFailed
from orchestrator.model.plan import RunPoint
from orchestrator.model.result import Outcome, Unfinished
from orchestrator.records.begun import goes_on_with
from orchestrator.records.parts import part_left
from orchestrator.records.typed import KEY
from orchestrator.redact import Redactor
from orchestrator.runner.finish import Finished, node_words, verdict
from orchestrator.store import RunStore
from tests.report.example_runs import INFO

RUN = "20260101-000000-x-0001"
COMMAND = RunCommand(Path("my exp.yaml"))
ALONE = f"dynspec run 'my exp.yaml' --resume {RUN}"
AGAIN = f"Go on with: {ALONE}"
CASES: list[tuple[DynspecError | None, int | None, bool, bool, str]] = [
    # error, signal, touched, has a run folder, closing words
    (None, None, True, True, ""),
    (None, 2, True, True, f"interrupted; the node is as it was. {AGAIN}"),
    (None, 15, False, True, f"interrupted; the node was not touched. {AGAIN}"),
    (None, 2, False, False, "interrupted; the node was not touched."),
    (PhaseFailed("crash"), None, True, True, AGAIN),
    (PhaseFailed("no way"), None, False, False, ""),
    (NodeDirty("left", restore_command="dynspec restore n"), 2, True, True, ""),
]


@pytest.mark.parametrize(("error", "signum", "touched", "started", "words"), CASES)
def test_a_run_that_did_not_come_to_its_end_says_what_it_left_and_how_to_go_on(
    error: DynspecError | None, signum: int | None, touched: bool, started: bool, words: str
) -> None:
    code, state = verdict(error, signum, touched)
    outcome = Outcome(code, state, "", not isinstance(error, NodeDirty), "", "")
    store = RunStore(Path("results", RUN), Redactor({})) if started else None
    finished = Finished(outcome, error, store, node=node_words(touched, ()))
    assert Lines(COMMAND).closing_words(finished) == words


def test_the_advice_is_the_whole_command() -> None:
    typed = RunCommand(Path("e.yaml"), ("a", "b"), ("sweep.repeats=1",), Path("elsewhere"))
    there = "--set sweep.repeats=1 --results elsewhere"
    assert typed.resume(Path("elsewhere/R")) == f"dynspec run e.yaml --resume R --arm a --arm b {there}"
    assert typed.resume(Path("away/R")) == f"dynspec run e.yaml --resume away/R --arm a --arm b {there}"


def test_a_run_that_lacks_something_names_its_own_file_wherever_it_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    store = RunStore.create(Path("results"), RUN, Redactor({}))
    store.write_json("plan.json", {KEY: COMMAND.typed})
    left = part_left(store, (RunPoint("eagle3", 1, 0, 1),))
    end = Unfinished("", {"baseline": 3, "eagle3": 3}, {"eagle3": 1}, resume=goes_on_with(store))
    told = Finished(
        Outcome(6, "partial", "", True, "", ""),
        left,
        store,
        summarise([]),
        replace(INFO, state="partial", unfinished=end),
    )
    Lines(replace(COMMAND, arms=("baseline",))).finish(told)
    shown = capsys.readouterr()
    assert shown.err.endswith(f"  -> {ALONE}\n")
    assert f"with:\n  {ALONE}\n" in shown.out
    assert "EXPERIMENT.yaml" not in shown.out


def test_files_that_are_put_back_are_counted_when_they_are_and_not_as_0_at_the_end() -> None:
    three = ["/sglang/a.py", "/sglang/b.py", "/sglang/c.py"]
    assert (
        event_text({"event": "restored", "files": three}) == "restored  files put back: 3, verified by hash"
    )
    assert event_text({"event": "restored", "files": []}) == ""
    last = "every file is as it was, verified by hash; lock released"
    assert event_text({"event": "given_back", "restored": []}) == f"restored  {last}"
    assert event_text({"event": "given_back", "restored": three}) == f"restored  files put back: 3; {last}"


def test_the_report_of_a_run_is_named_as_short_where_it_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    begun = RunStore.create(Path("results"), RUN, Redactor({}))
    for name in ("plan.json", "report.md"):
        begun.write(name, "{}")
    gone_on_with = RunStore.open(Path("results"), RUN)
    assert report_path(begun.folder) == report_path(gone_on_with.folder) == Path("results", RUN, "report.md")
