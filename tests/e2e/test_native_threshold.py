"""A release with adaptive speculation of its own: the threshold runs without a patch, its file goes with the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.demo.node import NodeOptions
from tests.e2e.controller import MEASURED, Place
from tests.e2e.node import EAGLE3, SshNode, experiment
from tests.sshd import free_port

pytestmark = [pytest.mark.sshd, pytest.mark.wheels]

THRESHOLD = "speculative-disable-batch-threshold"
FreshNode = Callable[..., SshNode]


def _experiment(node: SshNode, threshold: int, **more: Any) -> dict[str, Any]:
    dynamic = {"args": {**EAGLE3, THRESHOLD: threshold, **more}, "patches": ["dynamic_disable"]}
    sweep = {
        "concurrency": [1, 6],
        "output_tokens": 24,
        "min_requests": 12,
        "warmup": {"requests_per_slot": 1},
    }
    return experiment(node, free_port(), arms={"baseline": {}, "dynamic": dynamic}, sweep=sweep)


def test_the_threshold_runs_without_a_patch_and_the_report_says_how(
    fresh_node: FreshNode, place: Place
) -> None:
    node = fresh_node(NodeOptions(version="0.5.14"))
    path = place.write(_experiment(node, 2))
    plan = place.run("plan", path)
    assert plan.code == 0, plan.text
    mode = "threshold 2 by SGLang 0.5.14's own adaptive speculation (zero draft steps above it), no patch"
    assert f"note     arm dynamic: {mode}" in plan.lines
    assert "changes  no file" in plan.out
    assert f"--speculative-adaptive-config {node.workdir}/RUN_ID/adaptive/dynamic.json" in plan.out
    done = place.run("run", path)
    assert done.code in MEASURED, done.text
    assert node.problems() == []
    folder = place.run_folder()
    log = (folder / "arms/dynamic/boot-1/server.log").read_text()
    assert "Switch adaptive runtime state: steps 3 -> 0" in log
    info = json.loads((folder / "arms/dynamic/boot-1/server_info.json").read_text())
    assert info["speculative_adaptive"] is True
    assert info["speculative_adaptive_config"] == f"{node.workdir}/{folder.name}/adaptive/dynamic.json"
    assert list(node.workdir.iterdir()) == []
    summary = json.loads((folder / "summary.json").read_text())
    reasons = [reason for point in summary["arms"]["dynamic"]["points"] for reason in point["reasons"]]
    assert not [reason for reason in reasons if reason.startswith(("patch_", "silent_fallback"))], reasons
    report = (folder / "report.md").read_text()
    assert "mode of dynamic" in report
    assert "patches of dynamic" not in report


@pytest.mark.parametrize(
    ("threshold", "more", "says"),
    [
        (9, {}, "threshold 9 is not a captured CUDA graph batch size"),
        (2, {"speculative-eagle-topk": 4, "speculative-num-draft-tokens": 8}, "only for 1"),
    ],
)
def test_a_threshold_that_the_release_cannot_have_is_refused_before_anything_is_touched(
    fresh_node: FreshNode, place: Place, threshold: int, more: dict[str, Any], says: str
) -> None:
    node = fresh_node(NodeOptions(version="0.5.14"))
    done = place.run("run", place.write(_experiment(node, threshold, **more)))
    assert done.code == 4, done.text
    assert says in done.err
    assert not place.results.exists() or not list(place.results.iterdir())
    assert node.problems() == []
