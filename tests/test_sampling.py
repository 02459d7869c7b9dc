"""GPU samples: taken from launch to stop, read while they grow, and never a reason for a run to fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orchestrator.config import load_experiment
from orchestrator.redact import Redactor
from orchestrator.runner.node_paths import gpu_csv
from orchestrator.runner.prepare import connect
from orchestrator.runner.sampling import GpuNow, newest, sampled_boots, start_sampling
from orchestrator.store import RunStore
from tests.events import recording

COLUMNS = "utc_s,elapsed_s,index,uuid,utilization.gpu,memory.used,power.draw,clocks.sm,temperature.gpu"
HEADER = f"{COLUMNS},clocks_event_reasons.active\n"


def row(elapsed_s: float, index: int, memory: str = "1024", clock: str = "1980") -> str:
    return (
        f"1795962103.5,{elapsed_s:.3f},{index},GPU-{index},90,{memory},430.00,{clock},55,0x0000000000000000"
    )


def test_the_newest_sample_is_that_of_the_last_time_stamp_for_every_gpu() -> None:
    found = newest(HEADER, [row(1, 0), row(1, 1), row(2, 0, "2048"), row(2, 1, "4096", "1200")])
    assert found == (GpuNow(0, 2048.0, 1980.0, 90.0), GpuNow(1, 4096.0, 1200.0, 90.0))


def test_torn_lines_at_both_ends_are_left_out() -> None:
    found = newest(HEADER, ["0.00,1980,55,0x0", row(1, 0), row(2, 0)[:20]])
    assert [gpu.index for gpu in found] == [0]


@pytest.mark.parametrize("word", ["[N/A]", "[Not Supported]", ""])
def test_what_the_tool_does_not_say_is_unknown_and_not_zero(word: str) -> None:
    assert newest(HEADER, [row(1, 0, word, word)]) == (GpuNow(0, None, None, 90.0),)


def test_an_empty_file_has_no_sample() -> None:
    assert newest(HEADER, []) == ()


def test_a_sampler_that_cannot_start_is_told_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNSPEC_HOME", str(tmp_path / "home"))
    text = (
        f"{{schema: 1, name: t, node: {{host: local, python: {sys.executable}}}, server: {{args: {{model-path: m}}}}, "
        "arms: {a: {}}, sweep: {concurrency: [1]}}"
    )
    events, seen = recording()
    with connect(load_experiment(text, name="t").experiment) as node:  # nobody guards it: the verb is refused
        assert not start_sampling(node, events, str(tmp_path / "gpu.csv"), "a", 1)
    assert seen[0]["event"] == "no_samples"


def test_only_boots_that_were_sampled_are_asked_for_their_samples(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, "run-1", Redactor({}))
    store.event("started", {"arm": "a", "boot": 1})
    store.event("sampling", {"arm": "a", "boot": 1})
    store.event("started", {"arm": "b", "boot": 1})
    assert sampled_boots(store) == {("a", 1)}
    assert gpu_csv("/work", "run-1", "a b", 1) == "/work/run-1/logs/a-b-1.gpu.csv"
