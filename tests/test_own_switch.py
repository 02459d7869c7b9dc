"""Where an arm leaves speculation off by itself is read from its settings and from what its servers did."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.analysis.roles import roles
from orchestrator.analysis.summary import summarise
from orchestrator.model.experiment import Arm
from tests.report.example_runs import ARMS, EAGLE3, points

ADAPTIVE = {"speculative-adaptive": True, "speculative-adaptive-config": "/c.json"}


def off_at(arm: Arm, shares: dict[int, float], **changes) -> list[int]:
    """`shares`: of speculative steps, by concurrency."""
    measured = [
        replace(point, metrics={**point.metrics, "spec_share": shares.get(point.concurrency)})
        if point.arm == arm.name
        else point
        for point in points(2, arms=(ARMS[0], arm), **changes)
    ]
    found = summarise(measured, arms=(ARMS[0], arm))["crossover"]
    return next(item["off_at"] for item in found if item["metric"] == "output_tps")


@pytest.mark.parametrize(
    ("args", "shares", "off"),
    [
        pytest.param({}, {}, [], id="it always speculates"),
        pytest.param({"speculative-disable-batch-threshold": 5}, {}, [10, 30, 70], id="a threshold"),
        pytest.param(
            {"speculative-disable-batch-threshold": 5},
            {10: 0.0, 30: 0.012, 70: 0.0},
            [10, 30, 70],
            id="the drain of a load speculates",
        ),
        pytest.param(
            {"speculative-disable-batch-threshold": 5},
            {10: 0.9, 30: 0.0, 70: 0.0},
            [30, 70],
            id="arrivals at a set rate stay below the threshold",
        ),
        pytest.param({"speculative-disable-batch-threshold": 100}, {}, [], id="a threshold above the sweep"),
        pytest.param({"speculative-disable-batch-threshold": 0}, {}, [1, 2, 5, 10, 30, 70], id="threshold 0"),
        pytest.param(ADAPTIVE, {}, [], id="a configuration that nothing tells of"),
        pytest.param(ADAPTIVE, {30: 0.0, 70: 0.0}, [30, 70], id="a configuration whose servers ran plain"),
    ],
)
def test_levels_without_speculation_are_known(args, shares, off):
    assert off_at(Arm("own", {**EAGLE3, **args}, {}), shares) == off


@pytest.mark.parametrize(
    ("arm", "adaptive"),
    [
        (Arm("a", {**EAGLE3, **ADAPTIVE}, {}), True),
        (Arm("a", {**EAGLE3, "speculative-adaptive": False}, {}), False),
        (Arm("a", {**EAGLE3, "speculative-disable-batch-threshold": 5}, {}, ("dynamic_disable",)), False),
        (Arm("a", EAGLE3, {}, ("dynamic_disable",)), False),
        (Arm("a", EAGLE3, {}), False),
    ],
)
def test_only_an_arm_with_a_configuration_of_its_own_may_switch_anywhere(arm, adaptive):
    assert roles((arm,)).adaptive == (("a",) if adaptive else ())
