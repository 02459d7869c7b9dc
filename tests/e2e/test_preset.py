"""`arms: {preset: speculation}`: what a release cannot do is left out, in plan and report, with the reason."""

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

NEVER_ZERO = "adaptive speculation of SGLang {} never goes down to zero draft steps"


def _preset(node: SshNode, **more: Any) -> dict[str, Any]:
    args = {**EAGLE3, "speculative-disable-batch-threshold": 2, **more}
    sweep = {
        "concurrency": [1, 4],
        "output_tokens": 16,
        "requests_per_slot": 2,
        "warmup": {"requests_per_slot": 1},
    }
    return experiment(node, free_port(), arms={"preset": "speculation", "args": args}, sweep=sweep)


def test_a_run_measures_what_the_release_can_and_reports_the_rest(node: SshNode, place: Place) -> None:
    done = place.run("run", place.write(_preset(node)))
    assert done.code in MEASURED, done.text
    assert node.problems() == []
    folder = place.run_folder()
    summary = json.loads((folder / "summary.json").read_text())
    assert list(summary["arms"]) == ["baseline", "static", "dynamic"]
    report = (folder / "report.md").read_text()
    for arm in ("native", "native-skip"):
        assert f"{arm} was not run: {NEVER_ZERO.format('0.5.11')}" in report
    planned = [event for event in _events(folder) if event["event"] == "planned"]
    assert (planned[0]["boots"], planned[0]["points"]) == (3, 6)


def _events(folder: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


PLANS: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    ("0.5.14", {}, {"dynamic": "SGLang 0.5.14 needs no patch; arm native has its threshold"}),
    (
        "0.5.14",
        {"speculative-eagle-topk": 4, "speculative-num-draft-tokens": 8},
        {
            "dynamic": "SGLang 0.5.14 needs no patch; arm native has its threshold",
            "native": "SGLang 0.5.14 and later have no native fallback for speculative-eagle-topk 4, only for 1",
            "native-skip": "SGLang 0.5.14 and later have no native fallback for speculative-eagle-topk 4, only for 1",
        },
    ),
    (
        "0.5.13.post1",
        {},
        {
            "dynamic": "0.5.13 has lost the structures",
            "native": NEVER_ZERO.format("0.5.13.post1"),
            "native-skip": NEVER_ZERO.format("0.5.13.post1"),
        },
    ),
]


@pytest.mark.parametrize(
    ("version", "more", "left_out"), PLANS, ids=["0.5.14", "0.5.14-topk-4", "0.5.13.post1"]
)
def test_the_plan_leaves_out_what_the_release_cannot_do(
    fresh_node: Callable[..., SshNode],
    place: Place,
    version: str,
    more: dict[str, Any],
    left_out: dict[str, str],
) -> None:
    node = fresh_node(NodeOptions(version=version))
    done = place.run("plan", place.write(_preset(node, **more)))
    assert done.code == 0, done.text
    lines = [line for line in done.lines if ": left out, since" in line]
    assert [line.split()[1].rstrip(":") for line in lines] == list(left_out)
    for line, why in zip(lines, left_out.values(), strict=True):
        assert why in line
    kept = {"baseline", "static", "dynamic", "native", "native-skip"} - left_out.keys()
    assert {line.split()[1].rstrip(":") for line in done.lines if ": worker " in line} == kept
    if "native-skip" in kept:
        assert "SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND=1" in done.out


def test_one_arm_that_the_release_cannot_do_is_refused_when_nothing_else_is_asked_for(
    node: SshNode, place: Place
) -> None:
    done = place.run("run", place.write(_preset(node)), "--arm", "native")
    assert done.code == 4, done.text
    assert f"arm native: {NEVER_ZERO.format('0.5.11')}" in done.err
