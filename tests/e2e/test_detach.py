"""`dynspec run --detach`: the run goes on without its terminal, is shown by `--resume`, and ended by `stop`."""

from __future__ import annotations

import json
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.records.driver import driver_of
from tests.e2e.controller import LIMIT_S, MEASURED, Done, Place
from tests.e2e.node import Foreign, SshNode, experiment, gone_at, process_state
from tests.sshd import free_port

pytestmark = [pytest.mark.sshd, pytest.mark.wheels]


class Detached:
    """A run that goes on by itself. Whatever a test does, its controller does not outlive it."""

    def __init__(self, place: Place, words: tuple[str, ...], done: Done) -> None:
        assert done.code == 0, done.text
        (self.event,) = done.events
        self.run_id, self.pid = str(self.event["run_id"]), int(self.event["pid"])
        self.folder = place.folder / self.event["folder"]
        self.resume = (*words[:2], "--resume", self.run_id, *words[2:])

    @property
    def screen(self) -> Path:
        return self.folder / "screen.log"

    def until(self, text: str) -> None:
        """Until its screen shows `text`."""
        deadline = time.monotonic() + LIMIT_S
        while text not in self.screen.read_text():
            assert time.monotonic() < deadline, self.screen.read_text()
            assert process_state(self.pid) not in ("", "Z"), self.screen.read_text()
            time.sleep(0.02)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        gone_at(self.pid)

    def close(self) -> None:
        if process_state(self.pid) not in ("", "Z"):
            self.kill()


def _points(node: SshNode) -> dict[str, Any]:
    """A quick point and one that takes seconds."""
    made = experiment(node, free_port())
    made["server"]["env"]["DYNSPEC_DEMO_SPEED"] = "4"
    made["sweep"].update(concurrency=[1, 2], output_tokens=128, requests_per_slot=8, min_requests=8)
    return made


@pytest.fixture
def detach(node: SshNode, place: Place) -> Iterator[Callable[..., Detached]]:
    """`detach(*options)`: a run that goes on by itself; `resume`: what goes on with it."""
    runs: list[Detached] = []
    path = place.write(_points(node))

    def start(*options: str, resume: tuple[str, ...] = ()) -> Detached:
        words = ("run", path, *options)
        runs.append(Detached(place, words, place.run(*(resume or words), "--detach", "--json")))
        return runs[-1]

    yield start
    for run in runs:
        run.close()


def test_a_detached_run_outlives_its_terminal_is_shown_to_others_and_tells_them_its_exit_code(
    place: Place, detach: Callable[..., Detached]
) -> None:
    detached = detach()
    assert [word.split()[1] for word in detached.event["commands"]] == ["run", "status", "logs", "stop"]
    assert stat.S_IMODE(detached.screen.stat().st_mode) == 0o600
    assert os.getsid(detached.pid) == detached.pid
    os.kill(detached.pid, signal.SIGHUP)
    os.kill(detached.pid, signal.SIGSTOP)  # it waits until both look at it
    other = (*detached.resume, "--set", "sweep.repeats=9")
    with place.start(*detached.resume) as first, place.start(*other) as second:
        first.wait_text("guardian")
        second.wait_text("guardian")
        first.send(signal.SIGINT)
        closed = first.wait()
        os.kill(detached.pid, signal.SIGCONT)
        shown = second.wait()
    assert closed.code == 130, closed.text
    assert f"run {detached.run_id} goes on" in closed.err
    assert f"dynspec {' '.join(detached.resume)}" in closed.err
    outcome = json.loads((detached.folder / "outcome.json").read_text())["outcome"]
    assert shown.code == outcome["exit_code"]
    assert shown.code in MEASURED, shown.text
    assert shown.err.startswith("dynspec: note: --set is ignored: the run is under way, started without it\n")
    assert "is ignored" not in closed.err
    assert shown.out == detached.screen.read_text()
    assert "report: " in shown.out
    assert driver_of(detached.folder) is None
    assert [path.name for path in place.results.iterdir()] == [detached.run_id]


def test_after_its_controller_was_killed_a_detached_run_is_gone_on_with_and_then_stopped(
    node: SshNode, place: Place, elsewhere: Place, detach: Callable[..., Detached]
) -> None:
    detached = detach("--set", "sweep.repeats=4")  # long enough to be looked at
    with place.start(*detached.resume) as view:
        view.wait_text("measure concurrency 2")
        detached.kill()
        bereft = view.wait()
    assert bereft.code == 1, bereft.text
    assert f"go on with: dynspec {' '.join(detached.resume)}" in bereft.err
    again = detach("--set", "sweep.repeats=4", resume=detached.resume)
    again.until("points kept: ")  # that of concurrency 2 too, where the kill came late
    refused = place.run(*detached.resume, "--detach")
    stopped = elsewhere.run("stop", node.name, *_reach(node))
    gone_at(again.pid)
    assert refused.code == 3, refused.text
    assert f"pid {again.pid}" in refused.err
    assert stopped.code == 0, stopped.text
    assert again.run_id in stopped.out
    outcome = json.loads((again.folder / "outcome.json").read_text())["outcome"]
    assert (outcome["exit_code"], outcome["state"]) == (130, "interrupted")
    assert outcome["message"].startswith("ended by `dynspec stop` from ")
    assert "over a new connection" not in again.screen.read_text()  # no wonder that its guardian is gone


def test_what_refuses_a_detached_run_comes_to_the_terminal_with_its_exit_code(
    node: SshNode, place: Place, foreign: Foreign
) -> None:
    entry = foreign.hold_gpu()
    try:
        busy = place.run("run", place.write(experiment(node, free_port())), "--detach")
    finally:
        entry.unlink()
    assert busy.code == 3, busy.text
    assert f"pid {foreign.pid}" in busy.err
    assert list(place.results.iterdir()) == []


def _reach(node: SshNode) -> list[str]:
    return ["--ssh-config", str(node.sshd.ssh_config), "--known-hosts", str(node.sshd.known_hosts)]
