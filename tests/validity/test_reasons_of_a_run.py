"""The reasons are met by a real run: a server that is not what was asked for, and one that cuts its answers short."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.demo.node import NodeOptions
from tests.conftest import require_sshd
from tests.e2e.controller import Place
from tests.e2e.node import EAGLE3, SshNode, experiment
from tests.sshd import free_port

pytestmark = [pytest.mark.sshd, pytest.mark.wheels]

SWEEP = {"concurrency": [50], "output_tokens": 8, "requests_per_slot": 1, "warmup": {"requests_per_slot": 0}}
ARMS = {
    "plain": {"env": {"DYNSPEC_DEMO_FAULT": "no-usage,reject:3"}},
    "eagle3": {"args": EAGLE3, "env": {"DYNSPEC_DEMO_FAULT": "short-output:5"}},
}


@pytest.fixture
def stubborn_node(tmp_path: Path) -> Iterator[SshNode]:
    """The login environment takes v2 away, which no flag and no variable of the experiment shows."""
    require_sshd()
    with SshNode(tmp_path / "sshd", NodeOptions(engine_env={"SGLANG_ENABLE_SPEC_V2": "0"})) as node:
        yield node


def test_a_run_names_what_speaks_against_its_points_and_claims_nothing(stubborn_node, tmp_path):
    place = Place(tmp_path / "here")
    made = experiment(stubborn_node, free_port(), arms=ARMS, sweep=SWEEP)
    del made["server"]["args"]["max-running-requests"]  # SGLang sets 48 under speculation, and nobody is told
    done = place.run("run", place.write(made))
    assert done.code == 6, done.text
    assert stubborn_node.problems() == []
    reasons = {
        name: {reason.partition(":")[0] for reason in arm["points"][0]["reasons"]}
        for name, arm in json.loads((place.run_folder() / "summary.json").read_text())["arms"].items()
    }
    late = {"client_bound", "concurrency_not_reached"}  # on top, as the machine has other work
    assert reasons["plain"] - late == {"tokens_missing", "failed_requests", "few_requests"}
    wanted = {"admission_limit", "args_differ", "silent_fallback", "short_outputs", "few_requests"}
    assert reasons["eagle3"] - late == wanted
    told = " ".join(done.text.split())
    assert "the server runs at most 48 requests, 50 were asked" in told
    assert "worker v1 served where v2 was expected" in told
