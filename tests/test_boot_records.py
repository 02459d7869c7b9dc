"""What a boot leaves beside its points: GPU samples, and the worker by the server's own words."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config import load_experiment
from orchestrator.demo.node import DemoNode, NodeOptions
from orchestrator.runner.options import RunOptions
from orchestrator.runner.session import Finished, run_experiment

pytestmark = pytest.mark.wheels
SPEED = {"DYNSPEC_DEMO_SPEED": "4", "DYNSPEC_DEMO_LOAD_S": "3"}
WORDS = ("sweep.repeats=1", "sweep.concurrency=[2]", "sweep.requests_per_slot=6")


def run(
    node: DemoNode, results: Path, arm: str, pulses: list[Mapping[str, Any]], *words: str
) -> tuple[Finished, Path]:
    place = (f"node.ssh_config={node.ssh_config}", f"node.known_hosts={node.known_hosts}")
    text = Path("experiments/demo.yaml").read_text()
    checked = load_experiment(text, name="demo.yaml", overrides=[*place, *WORDS, *words])
    options = RunOptions(results=results, arms=(arm,), watchers=(pulses.append,))
    done = run_experiment(checked, options, base=Path("experiments"), environ={}, listeners=())
    assert done.store is not None, done.outcome
    return done, done.store.folder / "arms" / arm / "boot-1"


def events(done: Finished, kind: str) -> list[dict[str, Any]]:
    assert done.store is not None
    lines = (done.store.folder / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def test_a_run_keeps_gpu_samples_and_the_worker_of_each_rank(tmp_path: Path) -> None:
    pulses: list[Mapping[str, Any]] = []
    with DemoNode(NodeOptions(gpus=2, engine_env=SPEED)) as node:
        done, boot = run(node, tmp_path, "eagle3-banner", pulses, "server.args.tp=2")
    rows = list(csv.DictReader((boot / "gpu.csv").read_text().splitlines()))
    assert {row["index"] for row in rows} == {"0", "1"}
    assert max(float(row["memory.used"]) for row in rows) > 10_000, "samples cover the time of the server"
    seen = json.loads((boot / "server_info.json").read_text())["worker_seen"]
    assert (seen["worker"], seen["ranks"], seen["predicted"], seen["problem"]) == ("v2", [0, 1], "v2", "")
    assert seen["files"][0].endswith("srt/speculative/eagle_worker_v2.py")
    assert events(done, "worker")[0]["ranks"] == [0, 1]
    assert any(len(pulse["gpus"]) == 2 and pulse["line"] for pulse in pulses), "who watches is told meanwhile"
    assert events(done, "pulse") == [], "and nothing of that is stored"


def test_a_node_without_gpus_is_measured_all_the_same(tmp_path: Path) -> None:
    with DemoNode(NodeOptions(gpus=1, engine_env=SPEED)) as node:
        (node.home / "bin" / "nvidia-smi").unlink()
        done, boot = run(node, tmp_path, "baseline", [])
    assert done.outcome.state in ("ok", "nothing-to-claim"), done.outcome
    assert not (boot / "gpu.csv").exists()
    assert [event["text"] for event in events(done, "no_samples")] == [
        "no nvidia-smi on this node: no GPU samples"
    ]
    assert not [event for event in events(done, "warning") if "gpu" in event["text"]]
