"""Secrets go from the controller's environment into the server's, and are nowhere else: not on a screen, not in a log
or result, not in a command line of any process on the way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.controller import Place
from tests.e2e.node import SshNode, experiment
from tests.sshd import free_port

pytestmark = [pytest.mark.sshd, pytest.mark.wheels]

TOKEN = "hf_e2eSentinelZq7"
TWO_LINES = "-----first-line-Kx81\nsecond-line-Pw52"
SENTINELS = [TOKEN, *TWO_LINES.splitlines()]


@contextmanager
def watched_command_lines() -> Iterator[set[str]]:
    """Every command line that a process of this machine had while the context lasted, our own tests' left out."""
    seen: set[str] = set()
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            for entry in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    seen.add(entry.read_bytes().decode(errors="replace"))
                except OSError:
                    continue
            done.wait(0.02)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        done.set()
        watcher.join()


def found_in(folder: Path) -> list[str]:
    """Files with a sentinel, as `path: sentinel`."""
    return [
        f"{path}: {sentinel}"
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
        for sentinel in SENTINELS
        if sentinel.encode() in path.read_bytes()
    ]


def test_secrets_stay_in_the_environment(node: SshNode, place: Place) -> None:
    made = experiment(node, free_port(), arms={"plain": {}})
    made["server"]["env"].update(
        HF_TOKEN={"from_env": "HF_TOKEN"}, PRIVATE_KEY={"from_env": "KEY"}, DYNSPEC_DEMO_FAULT="leak-secret"
    )
    made["sweep"]["output_tokens"] = 64
    path = place.write(made)
    with watched_command_lines() as commands:
        done = place.run("run", path, "--json", HF_TOKEN=TOKEN, KEY=TWO_LINES)
    assert done.code in (0, 6), done.text
    assert [sentinel for sentinel in SENTINELS if sentinel in done.text] == []
    assert found_in(place.folder) == []
    assert found_in(node.home) == []  # the node keeps its log no longer than until it is collected
    assert [line for line in commands if any(sentinel in line for sentinel in SENTINELS)] == []
    assert any("sglang.launch_server" in line for line in commands), "nothing was watched"
    log = (place.run_folder() / "arms/plain/boot-1/server.log").read_text()
    assert "HF_TOKEN=[redacted:HF_TOKEN]" in log, "the server did not get it, or the log is not its own"


def test_a_secret_that_is_not_set_here_is_refused_by_name_before_connecting(
    node: SshNode, place: Place
) -> None:
    made = experiment(node, 30000)
    made["server"]["env"]["HF_TOKEN"] = {"from_env": "HF_TOKEN"}
    connections = node.sshd.log.read_text().count("Connection from")
    done = place.run("run", place.write(made))
    assert done.code == 2
    assert "HF_TOKEN" in done.errors[0]
    assert node.sshd.log.read_text().count("Connection from") == connections


def test_a_secret_in_the_last_words_of_a_crash_is_redacted_in_message_and_outcome(
    node: SshNode, place: Place
) -> None:
    made = experiment(node, free_port(), arms={"plain": {}})
    made["server"]["env"].update(
        HF_TOKEN={"from_env": "HF_TOKEN"}, DYNSPEC_DEMO_FAULT="leak-secret,exit-during-load"
    )
    done = place.run("run", place.write(made), HF_TOKEN=TOKEN)
    assert done.code == 1, done.text
    assert "environment: HF_TOKEN=[redacted:HF_TOKEN]" in done.err
    assert TOKEN not in done.text
    assert found_in(place.folder) == []
