"""`dynspec run` from the command line to the report, over a real sshd, and the node afterwards."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from orchestrator.demo.node import NodeOptions
from tests.e2e.controller import COMMAND, MEASURED, Place
from tests.e2e.node import EAGLE3, SshNode, experiment
from tests.sshd import free_port

pytestmark = [pytest.mark.sshd, pytest.mark.wheels]

STEADY = {"concurrency": [1], "output_tokens": 32, "min_requests": 6, "warmup": {"requests_per_slot": 1}}
TOUCHED = ("srt/server_args.py", "srt/speculative/eagle_worker.py", "srt/speculative/eagle_worker_v2.py")


def test_the_whole_loop_ends_with_a_report_and_the_node_as_it_was(node: SshNode, place: Place) -> None:
    arms = {"plain": {"args": EAGLE3}, "banner": {"extends": "plain", "patches": ["spec_banner"]}}
    sweep = {**STEADY, "concurrency": [1, 2, 1]}
    path = place.write(experiment(node, free_port(), arms=arms, sweep=sweep))
    done = place.run("run", path)
    assert done.code in MEASURED, done.text
    assert node.problems() == []
    folder = place.run_folder()
    assert done.out.count(" boot 1 after ") == 2
    assert str(folder.relative_to(place.folder)) in done.out
    _is_complete(folder, {"plain": [1, 2, 1], "banner": [1, 2, 1]})
    _summary_is_sane(folder, node)
    _each_boot_ran_its_own_tree(folder)
    assert {path.name.split("-")[0] for path in (node.registry / "agent").iterdir()} == {"agent", "loadgen"}
    assert list(node.workdir.iterdir()) == []  # logs were fetched, backups are not needed any more


def _is_complete(folder: Path, points: dict[str, list[int]]) -> None:
    """The contract's run folder, every JSON file of schema 1."""
    for name in ("plan.json", "facts.json", "summary.json", "outcome.json"):
        assert json.loads((folder / name).read_text())["schema"] == 1, name
    assert (
        yaml.safe_load((folder / "experiment.lock.yaml").read_text())["lock"]["tree"]["version"] == "0.5.11"
    )
    assert "SIMULATED" in (folder / "report.md").read_text()
    for arm, concurrency in points.items():
        boot = folder / "arms" / arm / "boot-1"
        assert json.loads((boot / "server_info.json").read_text())["schema"] == 1
        assert (boot / "server.log").stat().st_size > 1000
        found = sorted(path.name for path in boot.glob("point-*.jsonl"))
        assert found == [f"point-{index:02d}-c{value}.jsonl" for index, value in enumerate(concurrency)]
        for name in found:
            lines = (boot / name).read_text().splitlines()
            assert all(len(line) < 500 and json.loads(line)["ok"] for line in lines), lines
    assert not list(folder.rglob(".*")), "a temporary file was left"
    kinds = [json.loads(line)["event"] for line in (folder / "events.jsonl").read_text().splitlines()]
    assert kinds[-1] == "outcome"


def _summary_is_sane(folder: Path, node: SshNode) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    for arm in ("plain", "banner"):
        points = summary["arms"][arm]["points"]
        assert [point["concurrency"] for point in points] == [1, 2, 1]
        for point in points:
            metrics = point["metrics"]
            assert 0 < metrics["ttft"]["value"] < 5
            assert metrics["output_tps"]["value"] > 10
            assert metrics["ttft"]["n"] >= 1
    outcome = json.loads((folder / "outcome.json").read_text())["outcome"]
    assert outcome["exit_code"] in MEASURED


def _each_boot_ran_its_own_tree(folder: Path) -> None:
    """The patch's start-up line is in the patched arm's log, and the other arm ran the original bytes."""
    logs = {arm: (folder / "arms" / arm / "boot-1" / "server.log").read_text() for arm in ("plain", "banner")}
    words = "worker=EAGLEWorker"
    assert words not in logs["plain"]
    assert words in logs["banner"]


def test_a_run_goes_on_to_its_end_when_its_reader_goes_away(node: SshNode, place: Place) -> None:
    path = place.write(experiment(node, free_port()))
    run = subprocess.Popen(
        [*COMMAND, "run", path],
        cwd=place.folder,
        env=place.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert run.stdout is not None
    while b"smoke" not in run.stdout.readline():  # as `dynspec run ... | head` does
        pass
    run.stdout.close()
    errors = run.stderr.read().decode() if run.stderr else ""
    code = run.wait(30)
    assert code in MEASURED, errors
    assert "the run goes on without it" in errors
    assert "Traceback" not in errors
    outcome = json.loads((place.run_folder() / "outcome.json").read_text())["outcome"]
    assert (outcome["exit_code"], outcome["node_restored"]) == (code, True)


def test_late_gpu_memory_is_waited_for_with_proof(fresh_node: Callable[..., SshNode], place: Place) -> None:
    node = fresh_node(NodeOptions(gpu_release_s=2.0))
    arms = {"first": {}, "second": {}}
    done = place.run("run", place.write(experiment(node, free_port(), arms=arms)), "--json")
    assert done.code in MEASURED, done.text
    waited = [event["gpu_wait_s"] for event in done.events if event["event"] == "stopped"]
    assert len(waited) == 2
    assert min(waited) >= 1.5
    assert node.problems() == []
