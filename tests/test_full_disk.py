"""A server that dies on a full disk cannot say why in its log: the run says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config import load_experiment
from orchestrator.errors import PhaseFailed
from orchestrator.redact import Redactor
from orchestrator.remote.replies import ServerState
from orchestrator.runner.boot import Boot
from orchestrator.runner.events import Events
from orchestrator.runner.loading import Loads
from orchestrator.store import RunStore
from tests.run_folders import EXPERIMENT


class DeadServer:
    def __init__(self, disk_free_mib: int | None) -> None:
        self.disk_free_mib = disk_free_mib

    def server(self) -> ServerState:
        return ServerState(1, False, 1, None, 0, 0.0, (), disk_free_mib=self.disk_free_mib)


@pytest.mark.parametrize(
    ("free_mib", "more"), [(0, "; node.workdir is full (~/.dynspec/work)"), (1, ""), (None, "")]
)
def test_a_server_that_died_on_a_full_disk_is_told_as_such(
    free_mib: int | None, more: str, tmp_path: Path
) -> None:
    text = EXPERIMENT.format(model="/models/m", boots=1, more="", sweep=[1], load="closed")
    experiment = load_experiment(text, name="e.yaml").experiment
    store = RunStore.create(tmp_path, "20260101-000000-trial-0001", Redactor({}))
    loads = Loads.of(experiment.sweep, 30000, "m", tmp_path)
    arm = experiment.arm("baseline")
    boot = Boot(experiment, arm, 1, DeadServer(free_mib), store, Events((), Redactor({})), loads)
    with pytest.raises(PhaseFailed) as failed:
        boot.wait_ready()
    said = "arm baseline, boot 1: the server exited during start with exit code 1"
    assert failed.value.message == said + more
