"""`dynspec tune`: one server start, both extremes side by side, an answer with its evidence, the node as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.demo.node import NodeOptions
from tests.e2e.controller import Place
from tests.e2e.node import EAGLE3, SshNode, experiment
from tests.sshd import free_port

pytestmark = [pytest.mark.sshd, pytest.mark.wheels]


def _experiment(node: SshNode, **sweep: Any) -> dict[str, Any]:
    dynamic = {
        "args": {**EAGLE3, "speculative-disable-batch-threshold": 4},
        "patches": ["dynamic_disable"],
    }
    steady = {"concurrency": [1, 4], "output_tokens": 32, "requests_per_slot": 2, **sweep}
    made = experiment(node, free_port(), arms={"baseline": {}, "dynamic": dynamic}, sweep=steady)
    made["sweep"]["warmup"] = {"requests_per_slot": 1}
    made["server"]["env"]["DYNSPEC_DEMO_SPEED"] = "4"
    return made


def test_one_boot_gives_an_answer_with_its_evidence(node: SshNode, place: Place) -> None:
    done = place.run("tune", place.write(_experiment(node)), "--blocks", "3", "--json", limit_s=110)
    assert done.code in (0, 6), done.text
    assert node.problems() == []
    told = [event for event in done.events if event["event"] == "tuned"]
    folder = place.run_folder()
    assert [event["event"] for event in done.events].count("started") == 1
    assert json.loads((folder / "tune.json").read_text())["tune"]["changes"] == told[0]["changes"]
    assert json.loads((folder / "summary.json").read_text())["tune"] == told[0]["recommendation"]
    assert {change["concurrency"] for change in told[0]["changes"]} <= {1, 4}  # a busy machine may spoil some
    assert (done.code == 6) == (told[0]["recommendation"]["advice"] == "none")
    for meta in folder.rglob("point-*.meta.json"):
        point = json.loads(meta.read_text())
        assert point["shared_boot"]["started_as"] == "always-speculate"
        before, after = (point[key][0]["dynspec_stats"] for key in ("server_before", "server_after"))
        never = "spec_steps" if point["arm"] == "always-plain" else "plain_steps"
        assert before[never] == after[never]
    assert len(list(folder.rglob("point-*.meta.json"))) == 2 * 2 * 3


def test_a_release_without_the_switch_is_refused(fresh_node: Callable[..., SshNode], place: Place) -> None:
    node = fresh_node(NodeOptions(version="0.5.14"))
    done = place.run("tune", place.write(_experiment(node)))
    assert done.code == 4, done.text
    assert "SGLang 0.5.14 does without that patch" in done.err
    assert node.problems() == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--blocks", "1"], "one repetition says nothing about noise"),
        (["--arm", "baseline"], "baseline is no arm that speculates"),
        (["--set", "sweep.load={open: poisson, rate: 8/s}"], "measures at fixed concurrencies"),
    ],
)
def test_what_cannot_be_tuned_is_refused_before_connecting(
    node: SshNode, place: Place, words: list[str], says: str
) -> None:
    done = place.run("tune", place.write(_experiment(node)), *words)
    assert done.code == 2, done.text
    assert says in done.err
    assert not place.results.exists()
