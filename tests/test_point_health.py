"""`/health` while a point is measured: told on the screen and on the point, and never a reason to stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from orchestrator.config import load_experiment
from orchestrator.model.plan import RunPoint
from orchestrator.records.points import read_points
from orchestrator.redact import Redactor
from orchestrator.remote.replies import HttpReply, LoadReply, ServerState
from orchestrator.runner.boot import Boot
from orchestrator.runner.events import Events
from orchestrator.runner.loading import Loads
from orchestrator.store import RunStore
from tests.run_folders import EXPERIMENT, write_run

RUN = "20260101-000000-trial-0001"


class BusyNode:
    """Its server answers all requests, and 503 to `/health` while it does. Hands on the records of a run."""

    def __init__(self, records: bytes) -> None:
        self.records = records
        self.under_load = False

    def server(self) -> ServerState:
        return ServerState(1, True, None, None, 0, 0.0, ())

    def http(self, method: str, port: int, path: str, body: str | None = None, **_: Any) -> HttpReply:
        return HttpReply(503 if self.under_load and path == "/health" else 200, "{}", 0.0)

    def load(
        self, spec: Any, name: str, timeout_s: float, on_progress: Callable[[Mapping[str, Any]], None]
    ) -> LoadReply:
        self.under_load = True
        for second in range(1, 13):
            on_progress({"elapsed_s": float(second), "in_flight": 1, "done": second, "output_tokens": second})
        self.under_load = False
        return LoadReply({"client": {"lag_ns": {"p99": 200_000}, "cpu_share": 0.1}}, self.records)


def test_bad_health_under_load_is_a_warning_and_a_note_and_the_point_counts(tmp_path: Path) -> None:
    old = write_run(tmp_path, RUN, sweep=(1,), boots=1, arms=("baseline",))
    records = (old.folder / "arms/baseline/boot-1/point-00-c1.jsonl").read_bytes()
    text = EXPERIMENT.format(model="/models/m", boots=1, more="", sweep=[1], load="closed")
    experiment = load_experiment(text, name="e.yaml").experiment
    store = RunStore.create(tmp_path, "20260101-000000-trial-0002", Redactor({}))
    told: list[Mapping[str, Any]] = []
    loads = Loads.of(experiment.sweep, 30000, "m", tmp_path)
    events = Events((told.append,), Redactor({}))
    boot = Boot(experiment, experiment.arm("baseline"), 1, BusyNode(records), store, events, loads)
    boot.run_point(RunPoint("baseline", 1, 0, 1))
    warned = [event["text"] for event in told if event["event"] == "warning"]
    assert warned == ["arm baseline, boot 1: /health is 503 while requests run; that alone ends nothing"]
    (point,) = read_points(store, experiment).points
    assert point.valid, point.reasons
    assert "health_unsteady: /health was not 200 in 2 of 2 looks while requests ran" in point.notes
