"""The worker in use, by the server's own start-up lines; a server that says nothing is not taken for right."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from orchestrator.analysis.worker_words import contradiction, read_worker
from orchestrator.model.plan import WorkerPath

CASES = yaml.safe_load((Path(__file__).parent / "worker_words.yaml").read_text())


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_log_names_the_worker(case: dict) -> None:
    seen = read_worker(case["log"].splitlines())
    assert (seen.worker, list(seen.ranks)) == (case["worker"], case.get("ranks", []))
    predicted = WorkerPath(case["predicted"], "as the plan says")
    problem = contradiction(seen, predicted, case.get("tp", 1))
    assert case.get("problem", "") in problem
    assert bool(problem) == ("problem" in case)


def test_the_files_that_the_ranks_loaded_are_kept() -> None:
    seen = read_worker(
        ["dynspec: worker=EAGLEWorker tp_rank=0 topk=4 steps=2 draft_tokens=16 file=/v/eagle_worker.py"]
    )
    assert seen.files == ("/v/eagle_worker.py",)
