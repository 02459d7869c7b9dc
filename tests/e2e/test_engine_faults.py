"""Every scripted fault of the stand-in engine, met by a whole run: right exit code, right words, a clean node."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.conftest import Measured
from tests.e2e.controller import MEASURED, Place
from tests.e2e.node import EAGLE3, Foreign, SshNode, experiment, gone_at
from tests.sshd import free_port

pytestmark = [pytest.mark.sshd, pytest.mark.wheels]

CASES: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("faults.yaml").read_text())
NOTICED_S = 2.0
ARMS = {"plain": {}, "again": {}, "eagle3": {"args": EAGLE3}}


@pytest.mark.parametrize("case", CASES, ids=[case["name"].replace(" ", "-") for case in CASES])
def test_a_fault_of_the_server(
    case: dict[str, Any], node: SshNode, place: Place, foreign: Foreign, measured: Measured
) -> None:
    port = free_port()
    path = place.write(_experiment(case, node, port))
    with place.start("run", path, "--json") as run:
        if case.get("noticed"):
            ended = gone_at(run.wait_event("started")[1]["pid"])
            told, _ = run.wait_event("boot_failed")
            measured("exit of the server noticed", told - ended, NOTICED_S)
        done = run.wait()
    assert done.code in (MEASURED if case.get("measured") else (case["code"],)), done.text
    for words in case.get("says", ()):
        assert words in done.text, words
    for words in case.get("never", ()):
        assert words not in done.events[-1]["text"].splitlines()[0].lower(), words
    assert node.problems() == []
    assert _is_closed(port)
    assert _is_closed(port + 1)
    _kept(case, place.run_folder(), done.code)


def _experiment(case: dict[str, Any], node: SshNode, port: int) -> dict[str, Any]:
    arms = {arm: ARMS[arm] for arm in case.get("arms", ["plain"])}
    sweep = {
        "concurrency": [case.get("concurrency", 1)],
        "requests_per_slot": 4,
        "warmup": {"requests_per_slot": 0},
    }
    made = experiment(node, port, arms=arms, sweep=sweep, limits=case.get("limits", {}))
    server = case.get("server", {})
    made["server"]["ready"].update(server.get("ready", {}))
    made["server"]["env"]["DYNSPEC_DEMO_FAULT"] = case["fault"]
    return made


def _is_closed(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def _kept(case: dict[str, Any], folder: Path, code: int) -> None:
    """The log of the boot that failed is there, and so is every record of what was measured."""
    outcome = json.loads((folder / "outcome.json").read_text())["outcome"]
    assert (outcome["exit_code"], outcome["node_restored"]) == (code, True)
    logs = [log.read_bytes() for log in folder.glob("arms/*/boot-1/server.log")]
    assert ["SIMULATED engine" in log.decode() for log in logs] == [True] * len(case.get("arms", "1"))
    if "failed" in case:
        (records,) = folder.glob("arms/*/boot-1/point-*.jsonl")
        failed = [record for record in map(json.loads, records.read_text().splitlines()) if not record["ok"]]
        assert len(failed) == case["failed"]
        assert all(record["error"] or record["finish"] == "abort" for record in failed)


def test_lines_that_a_killed_server_never_flushed_are_in_the_collected_log(
    node: SshNode, place: Place
) -> None:
    path = place.write(_experiment({"fault": "lost-lines"}, node, free_port()))
    done = place.run("run", path)
    assert done.code == 1, done.text
    assert "signal 9" in done.err
    log = (place.run_folder() / "arms/plain/boot-1/server.log").read_text()
    assert [f"unflushed line {number}" in log for number in (1, 2, 3)] == [True] * 3


@pytest.mark.parametrize("load_from", ["node", "controller"])
def test_a_server_killed_in_the_middle_of_a_long_open_load_is_noticed_at_once(
    load_from: str, node: SshNode, place: Place, measured: Measured
) -> None:
    sweep = {
        "concurrency": [4],
        "requests_per_slot": 100,
        "load": {"open": "constant", "rate": "5/s"},
        "load_from": load_from,
    }
    path = place.write(experiment(node, free_port(), arms={"plain": {}}, sweep=sweep))
    with place.start("run", path, "--json") as run:
        run.wait_event("progress")
        pid = node.server_pid()
        time.sleep(0.5)
        os.kill(pid, signal.SIGKILL)
        killed = gone_at(pid)
        told, event = run.wait_event("boot_failed")
        measured(f"kill of the server noticed, load from the {load_from}", told - killed, NOTICED_S)
        done = run.wait()
    assert event["signal"] == 9
    assert done.code == 1, done.text
    assert "died during concurrency 4 with signal 9" in done.text
    (partial,) = place.run_folder().glob("arms/plain/boot-1/point-00-c4.partial.jsonl")
    assert partial.read_text().count('"ok":true') >= 1
    assert not list(place.run_folder().rglob("point-*.meta.json"))
