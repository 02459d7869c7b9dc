"""`dynspec logs`: a run folder read while it grows, and the log of its live server."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from orchestrator.cli.following import EventPrinter, follow_run, server_log_text
from orchestrator.errors import UsageError
from orchestrator.records.driver import abandoned
from orchestrator.redact import Redactor
from orchestrator.runner.runlock import RunLock
from orchestrator.store import RunStore
from tests.cli.command import COMMAND, ROOT, dynspec

RUN = "20260101-000000-trial-0001"
EXPERIMENT = """\
schema: 1
name: trial
node: {{host: local, python: {python}, workdir: {workdir}}}
server: {{args: {{model-path: /models/m}}, env: {{TOKEN: {{from_env: TRIAL_TOKEN}}}}}}
arms: {{plain: {{}}}}
sweep: {{concurrency: [1]}}
"""


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    made = RunStore.create(tmp_path / "results", RUN, Redactor({}))
    made.write("experiment.lock.yaml", EXPERIMENT.format(python=sys.executable, workdir=tmp_path / "work"))
    made.write_json("plan.json", {"plan": {}})
    made.event("phase", {"phase": "connect", "text": "gpu-1"})
    made.event("started", {"arm": "plain", "boot": 1, "pid": 7})
    return made


def finish(store: RunStore) -> None:
    store.event("outcome", {"exit_code": 0, "state": "ok", "text": ""})
    store.write_json("outcome.json", {"outcome": {"exit_code": 0}})


def test_events_are_lines_and_what_only_programs_need_is_left_out(store: RunStore) -> None:
    done = dynspec("logs", RUN, "--results", store.folder.parent)
    assert done.code == 0
    assert done.out == "    0.0s  connect   gpu-1\n"


def test_json_gives_the_events_as_they_are(store: RunStore) -> None:
    done = dynspec("logs", store.folder, "--json")
    assert [json.loads(line)["event"] for line in done.out.splitlines()] == ["phase", "started"]


def test_a_torn_last_line_is_left_for_later(store: RunStore) -> None:
    with (store.folder / "events.jsonl").open("a") as file:
        file.write('{"t": "2026-01-01T00:00:00Z", "event": "note", "te')
    assert dynspec("logs", store.folder, "--json").out.count("\n") == 2


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"\xff\xfe\n{\n", "cannot be read"), (b"", "is empty"), (None, "is missing")],
)
def test_a_run_whose_events_are_lost_says_so(store: RunStore, content: bytes | None, says: str) -> None:
    path = store.folder / "events.jsonl"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    printer = EventPrinter(store, as_json=False)
    printer.print_new()
    with pytest.raises(UsageError, match=rf"events\.jsonl {says}: what this run did is not known"):
        printer.require_something()


def test_single_lines_that_cannot_be_read_are_counted(
    store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    with (store.folder / "events.jsonl").open("ab") as file:
        file.write(b"\xff\n")
    printer = EventPrinter(store, as_json=False)
    printer.print_new()
    printer.require_something()
    assert "connect   gpu-1" in (told := capsys.readouterr()).out
    assert "1 line of " in told.err


def test_the_collected_log_of_a_boot_is_printed_as_it_is(store: RunStore) -> None:
    store.write_bytes(store.boot_path("plain", 2, "server.log"), b"first\nsecond \xff\n")
    done = dynspec("logs", store.folder, "--arm", "plain", "--boot", 2)
    assert done.out == "first\nsecond \ufffd\n"
    missing = dynspec("logs", store.folder, "--arm", "plain")
    assert missing.code == 2
    assert "--arm plain --boot 2" in missing.err


def test_the_log_of_an_arm_that_shares_a_boot_is_that_of_its_server(
    store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = {"arm": "two", "boot": 1, "shares": ["two", "three"]}
    store.write_json("plan.json", {"plan": {"boots": [shared]}})
    store.write_point("three", 2, 0, 1, b"", {"shared_boot": {"started_as": "two", "boot": 1}})
    with pytest.raises(UsageError, match=r"no server log of three, boot 1, which is boot 1 of two$"):
        server_log_text(store, "three", 1)
    store.write_bytes(store.boot_path("two", 1, "server.log"), b"ready\n")
    for boot in (1, 2):  # by the plan, by its points
        assert server_log_text(store, "three", boot) == "ready\n"
        said = f"dynspec: three, boot {boot}, was measured in boot 1 of two: this is its log\n"
        assert capsys.readouterr().err == said
    assert server_log_text(store, "two", 1) == "ready\n"
    assert capsys.readouterr().err == ""


def test_an_unknown_run_is_a_usage_error_that_names_the_latest(store: RunStore) -> None:
    done = dynspec("logs", "nothing", "--results", store.folder.parent)
    assert done.code == 2
    assert RUN in done.err


Deed = Callable[[], object]


@pytest.fixture
def controller(store: RunStore) -> Iterator[RunLock]:
    """Of a run that is under way."""
    with RunLock() as lock:
        lock.take(store.folder)
        yield lock


def follow(store: RunStore, tmp_path: Path, deeds: Mapping[str, Deed], **env: str) -> list[str]:
    """Lines that `logs -f` shows, errors too; each deed is done once a line holds its text."""
    log = tmp_path / "work" / RUN / "logs" / "plain-1.log"
    log.parent.mkdir(parents=True)
    log.write_text("weights are loaded\n")
    environ = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "DYNSPEC_HOME": str(tmp_path / "home"),
        **env,
    }
    process = subprocess.Popen(
        [*COMMAND, "logs", str(store.folder), "-f"],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    watchdog = threading.Timer(40, process.kill)
    watchdog.start()
    lines, waiting = [], dict(deeds)
    try:
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            for text in [text for text in waiting if text in line]:
                waiting.pop(text)()
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
    assert not waiting, lines
    return lines


@pytest.mark.usefixtures("controller")
def test_following_shows_new_events_and_the_live_log_until_the_run_ends(
    store: RunStore, tmp_path: Path
) -> None:
    def tell_a_secret() -> None:
        with (tmp_path / "work" / RUN / "logs" / "plain-1.log").open("a") as file:
            file.write("the token is very-secret-word\n")

    deeds: dict[str, Deed] = {
        "|  weights are loaded": tell_a_secret,
        "|  the token is": lambda: store.event("note", {"text": "half way"}),
        "note      half way": lambda: finish(store),
    }
    lines = follow(store, tmp_path, deeds, TRIAL_TOKEN="very-secret-word")
    assert "very-secret-word" not in "\n".join(lines)


@pytest.mark.usefixtures("controller")
def test_a_log_whose_secrets_are_not_known_here_is_not_shown(store: RunStore, tmp_path: Path) -> None:
    lines = follow(store, tmp_path, {"the server log is not followed": lambda: finish(store)})
    assert any("TRIAL_TOKEN" in line for line in lines)
    assert not [line for line in lines if "|" in line]


def test_following_ends_with_the_way_on_when_the_controller_dies(
    store: RunStore, controller: RunLock, capsys: pytest.CaptureFixture[str]
) -> None:
    dying = threading.Timer(0.1, controller.release)  # as the kernel does with the process
    dying.start()
    for _ in range(2):  # while it is followed, and dead before
        printer = EventPrinter(store, as_json=False)
        follow_run(store, printer)
        assert printer.read == 2
        dying.join()
        told = capsys.readouterr().err
        assert "the run's controller is gone" in told
        assert told.endswith(f"{store.folder}/experiment.lock.yaml --resume {store.folder}\n")


def test_where_locks_cannot_be_asked_for_a_run_is_not_called_dead(tmp_path: Path) -> None:
    assert abandoned(tmp_path)
    (tmp_path / "controller.lock").symlink_to("/nowhere")  # never opened, so never asked
    assert not abandoned(tmp_path)


def test_following_a_finished_run_ends_at_once_and_asks_no_node(store: RunStore, tmp_path: Path) -> None:
    finish(store)
    assert len(follow(store, tmp_path, {})) == 1
    assert not (tmp_path / "home").exists()
