"""Standard output that takes no more, or is closed: said in a line, or nobody's business; never a traceback."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli import output
from orchestrator.cli.screen import Lines, screen_for, show_report
from orchestrator.config import load_experiment
from orchestrator.errors import OutputLost, PhaseFailed
from orchestrator.model.result import Outcome
from orchestrator.redact import Redactor
from orchestrator.runner.finish import Finished
from orchestrator.runner.options import RunOptions
from orchestrator.runner.session import run_experiment
from orchestrator.store import RunStore
from tests.cli.command import COMMAND, ROOT, SILENT
from tests.report.example_runs import INFO, summary

EXPERIMENT = ROOT / "experiments" / "default.yaml"
FULL = "standard output cannot be written: No space left on device"
pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")


def typed(words: str) -> tuple[int, str]:
    """Exit code and standard error of `dynspec` with a redirection."""
    script = f'"$@" {words}'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *COMMAND], cwd=ROOT, stderr=subprocess.PIPE, text=True, timeout=60
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (f"validate {EXPERIMENT} > /dev/full", 1, f"dynspec: {FULL}\n"),
        (f"validate {EXPERIMENT} >&-", 0, ""),
        ("report no-such-run >&-", 2, "dynspec: no run folder 'no-such-run' under results\n"),
    ],
)
def test_output_that_cannot_be_written_is_said_in_a_line_and_a_closed_one_is_nowhere(
    words: str, code: int, said: str
) -> None:
    found, told = typed(words)
    assert found == code
    assert told.startswith(said) if code == 2 else told == said


def test_a_run_that_its_full_screen_ends_names_the_screen_and_not_the_results(tmp_path: Path) -> None:
    def full(_event: object) -> None:
        raise OutputLost(errno.ENOSPC, FULL)

    finished = run_experiment(
        load_experiment(SILENT.format(port=9), name="e.yaml"),
        RunOptions(results=tmp_path),
        base=tmp_path,
        environ={},
        listeners=(full,),
    )
    assert finished.error is not None
    assert finished.error.render() == f"this machine: {FULL}"
    assert finished.outcome.exit_code == 1


@pytest.mark.parametrize("ended_by_it", [False, True])
def test_a_run_whose_screen_is_full_says_so_once_and_keeps_its_exit_code(
    ended_by_it: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr("sys.stdout", full)
        output.prepare()
        screen = Lines()
        with pytest.raises(OutputLost):
            screen.listen({"event": "note", "text": "begun"})
        error = PhaseFailed(f"this machine: {FULL}") if ended_by_it else None
        outcome = Outcome(1 if ended_by_it else 0, "ok", "", True, "", "")
        screen.finish(Finished(outcome, error, None))
        assert output.lost() == ""  # answered for: the exit code is the run's
    said = f"dynspec: this machine: {FULL}\n" if ended_by_it else f"dynspec: {FULL}\n"
    assert capfd.readouterr().err == said


def test_a_run_goes_on_when_its_screen_is_full_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr", sys.stderr)  # put back, as prepare wraps it
    monkeypatch.setattr(output, "_out", [])
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr("sys.stdout", full)
        output.prepare()
        screen = screen_for(False, load_experiment(SILENT.format(port=9), name="e.yaml").experiment)
        for text in ("begun", "still here"):
            screen.listen({"event": "note", "text": text})
        screen.finish(Finished(Outcome(0, "ok", "", True, "", ""), None, None))
        assert output.lost() == ""  # the exit code is the run's
    said = capfd.readouterr().err.splitlines()
    assert said == [f"dynspec: {FULL}; the run goes on without it", f"dynspec: {FULL}"]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_run_goes_on_when_nobody_reads_its_screen_and_says_so(
    as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    monkeypatch.setattr("sys.stderr", sys.stderr)  # put back, as prepare wraps it
    monkeypatch.setattr(output, "_out", [])
    with os.fdopen(writing, "w", encoding="utf-8") as pipe:
        monkeypatch.setattr("sys.stdout", pipe)
        output.prepare()
        screen = screen_for(as_json, load_experiment(SILENT.format(port=9), name="e.yaml").experiment)
        for text in ("begun", "still here"):
            screen.listen({"event": "note", "text": text})
        store = RunStore(tmp_path / "a-run", Redactor({}))
        screen.finish(Finished(Outcome(6, "nothing-to-claim", "", True, "", ""), None, store))
        assert output.lost() == ""  # the exit code is the run's
    said = capfd.readouterr().err.splitlines()
    assert said == [
        "dynspec: nobody reads standard output any more; the run goes on without it",
        f"dynspec: nobody read standard output to its end; the run folder is whole: {store.folder}",
    ]


@pytest.mark.parametrize(("command", "code"), [("run", 1), ("validate", 2)])
def test_a_reader_who_left_changes_no_exit_code(command: str, code: int, tmp_path: Path) -> None:
    experiment = tmp_path / "e.yaml"
    if command == "run":
        experiment.write_text(SILENT.format(port=9), encoding="utf-8")
    reading, writing = os.pipe()
    os.close(reading)
    words = [*COMMAND, command, str(experiment)]
    told = subprocess.PIPE if command == "run" else writing  # 2>&1
    try:
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(words, cwd=tmp_path, env=environ, stdout=writing, stderr=told, timeout=60)
    finally:
        os.close(writing)
    assert done.returncode == code
    if command == "run":
        assert b"refused the connection" in done.stderr
        assert b"Broken pipe" not in done.stderr


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("env", "drawn"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),  # empty is not set, as no-color.org has it
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({}, False),
    ],
)
def test_a_report_has_no_escape_code_where_the_terminal_or_the_person_wants_none(
    env: dict[str, str], drawn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout", Terminal())
    show_report(summary(), INFO)
    assert ("\x1b[" in sys.stdout.getvalue()) is drawn


def test_a_terminal_that_is_not_utf_8_gets_its_own_signs_in_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", sys.stderr)  # put back, as prepare wraps it
    monkeypatch.setattr(output, "_out", [])
    with (tmp_path / "screen").open("w", encoding="ascii") as screen:
        monkeypatch.setattr("sys.stdout", screen)
        output.prepare()
        show_report(summary(), INFO)
        print(
            "cut\N{HORIZONTAL ELLIPSIS} \N{SNOWMAN}\N{SNOWMAN} 40 \N{DEGREE SIGN}C \N{REPLACEMENT CHARACTER}"
        )
        sys.stdout.flush()
    *shown, last = (tmp_path / "screen").read_text(encoding="ascii").splitlines()
    assert last == r"cut... \u2603\u2603 40  C ?"
    assert not any("\\" in line for line in shown)
    rule = next(number for number, line in enumerate(shown) if set(line) == {"-"})
    rows = [line for line in shown[rule:] if "+-" in line]
    assert rows
    assert len({line.index("%") for line in rows}) == 1
