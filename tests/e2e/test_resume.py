"""`--resume RUN_ID`: finished points are kept, the rest is measured, and the report is of the whole."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.controller import MEASURED, Place
from tests.e2e.node import SshNode, experiment
from tests.sshd import free_port

pytestmark = [pytest.mark.sshd, pytest.mark.wheels]


def _two_points(node: SshNode) -> dict[str, Any]:
    """A quick point and one that takes seconds, so that there is a middle to end in."""
    made = experiment(node, free_port())
    made["server"]["env"]["DYNSPEC_DEMO_SPEED"] = "4"
    made["sweep"].update(concurrency=[1, 2], output_tokens=128, requests_per_slot=8)
    return made


def _records(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("point-*.jsonl")}


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL], ids=["SIGINT", "SIGKILL"])
def test_a_run_that_was_ended_goes_on_where_it_was(ending: int, node: SshNode, place: Place) -> None:
    path = place.write(_two_points(node))
    words = ["run", path, "--set", "sweep.min_requests=8"]
    with place.start(*words, "--json") as run:
        run.wait_event("point", index=1)
        run.send(ending)
        ended = run.wait()
    folder = place.run_folder()
    if ending == signal.SIGINT:
        assert ended.code == 130, ended.text
        node.wait_until_free(10.0)  # an agent ends when its channel does
        outcome = json.loads((folder / "outcome.json").read_text())["outcome"]
        assert (outcome["exit_code"], outcome["state"]) == (130, "interrupted")
        _nothing_else_continues_it(place, path, folder.name)
    else:
        assert not (folder / "outcome.json").exists()
    kept = _records(folder)
    assert "point-00-c1.jsonl" in kept
    first_log = folder / "arms/banner/boot-1/server.log"
    seen = first_log.read_bytes() if first_log.exists() else b""
    assert bool(seen) == (ending == signal.SIGINT)
    done = place.run(*words, "--resume", folder.name)
    assert done.code in MEASURED, done.text
    assert done.out.count("point ") <= 2
    assert "measure concurrency 2" in done.out
    assert "measure concurrency 1" not in done.out
    whole = _records(place.run_folder())
    assert whole["point-00-c1.jsonl"] == kept["point-00-c1.jsonl"]
    summary = json.loads((folder / "summary.json").read_text())
    assert [point["concurrency"] for point in summary["arms"]["banner"]["points"]] == [1, 2]
    # The kept point is judged by what was seen while it was measured.
    log = first_log.read_bytes()
    assert log.startswith(seen)
    assert log.count(b"ready to roll") == 2
    assert "points of two server starts" in str(summary["arms"]["banner"]["notes"])


def test_logs_that_came_over_before_are_not_asked_for_again(node: SshNode, place: Place) -> None:
    made = _two_points(node)
    made["sweep"].update(concurrency=[1], repeats=2, requests_per_slot=8)
    path = place.write(made)
    with place.start("run", path, "--json") as run:
        run.wait_event("started", boot=2)
        run.send(signal.SIGINT)
        assert run.wait().code == 130
    logs = {path.parent.name: path.read_bytes() for path in place.run_folder().rglob("server.log")}
    assert "boot-1" in logs
    done = place.run("run", path, "--resume", place.run_folder().name)
    assert done.code in MEASURED, done.text
    assert "could not be collected" not in done.text
    assert list(Path(node.workdir).glob(f"{place.run_folder().name}*")) == []
    after = {path.parent.name: path.read_bytes() for path in place.run_folder().rglob("server.log")}
    assert after["boot-1"] == logs["boot-1"]
    assert after["boot-2"] != logs.get("boot-2")


def _nothing_else_continues_it(place: Place, path: str, run_id: str) -> None:
    other = place.run("run", path, "--set", "sweep.output_tokens=64", "--resume", run_id)
    assert other.code == 4, other.text
    assert "the experiment differs" in other.errors[0]
    lock = place.results / run_id / "experiment.lock.yaml"
    begun = lock.read_text()
    lock.write_text(begun.replace("driver ", "driver 1"))
    moved = place.run("run", path, "--set", "sweep.min_requests=8", "--resume", run_id)
    assert moved.code == 4, moved.text
    assert "was measured on something else" in moved.errors[0]
    assert moved.errors[1].startswith("  driver: 1")
    lock.write_text(begun)
    unknown = place.run("run", path, "--resume", "20200101-000000-none-0000")
    assert unknown.code == 2
    assert run_id in unknown.err
