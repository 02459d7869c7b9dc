"""Boots become one summary that keeps apart what was measured, what is valid and what may be said."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from orchestrator.analysis.roles import roles
from orchestrator.analysis.summary import summarise, unclaimable
from orchestrator.model.experiment import Arm
from tests.report.example_runs import ARMS, EAGLE3, SWEEP, order, points, summary


def verdict(result: dict, arm: str, against: str = "baseline") -> dict:
    return next(v for v in result["verdicts"] if (v["arm"], v["against"]) == (arm, against))


def test_the_summary_has_the_contracts_shape_and_is_strict_json():
    result = summary()
    again = json.loads(json.dumps(result, allow_nan=False))
    point = again["arms"]["eagle3"]["points"][0]
    assert again["schema"] == 1
    assert again["arms"]["eagle3"]["boots"] == 3
    assert set(point) >= {"concurrency", "valid", "reasons", "metrics", "ok", "failed", "attempted"}
    assert set(point["metrics"]["output_tps"]) == {"value", "low", "high", "n"}
    assert {"verdicts", "crossover"} <= set(again)


def test_a_metric_without_a_sample_is_absent_and_never_zero():
    baseline = summary()["arms"]["baseline"]["points"][0]
    assert "accept_length" not in baseline["metrics"]
    assert "accept_length" not in baseline["boots"][0]["metrics"]


def test_counts_are_summed_over_boots():
    point = summary()["arms"]["eagle3"]["points"][1]
    assert (point["ok"], point["failed"], point["attempted"]) == (48, 0, 48)


def test_one_bad_boot_is_named_and_left_out_of_the_numbers():
    measured = [
        replace(p, valid=False, reasons=("client_bound: lag",), metrics={"output_tps": 1.0})
        if (p.arm, p.boot, p.concurrency) == ("eagle3", 2, 5)
        else p
        for p in points()
    ]
    point = summarise(measured, arms=ARMS)["arms"]["eagle3"]["points"][2]
    assert point["valid"]
    assert point["reasons"] == ["client_bound: lag (boot 2)"]
    assert point["metrics"]["output_tps"]["n"] == 2
    assert point["metrics"]["output_tps"]["value"] > 100


def test_a_point_bad_in_every_boot_keeps_its_numbers_and_is_not_valid():
    point = summary(invalid={("eagle3", 70): ("few_requests: 8",)})["arms"]["eagle3"]["points"][5]
    assert not point["valid"]
    assert point["reasons"] == ["few_requests: 8"]
    assert point["metrics"]["output_tps"]["n"] == 3


def test_every_arm_is_set_against_the_baseline_and_a_dynamic_arm_against_its_static_one_too():
    pairs = [(v["arm"], v["against"]) for v in summary()["verdicts"]]
    assert pairs == [("eagle3", "baseline"), ("dynamic", "baseline"), ("dynamic", "eagle3")]


def test_a_dynamic_arm_that_loses_to_the_baseline_above_its_threshold_is_told_so_point_by_point():
    rates = {"baseline": 100.0, "eagle3": 80.0, "dynamic": 60.0}
    result = summary(rates=lambda arm, c: rates[arm] * c if c >= 30 else 100.0 * c)
    lost = {p["concurrency"]: p["verdict"] for p in verdict(result, "dynamic")["points"]}
    assert (lost[30], lost[70]) == ("worse", "worse")
    lost = {p["concurrency"]: p["verdict"] for p in verdict(result, "dynamic", "eagle3")["points"]}
    assert lost[30] == "worse"


def test_the_same_settings_twice_with_8_percent_noise_are_inconclusive():
    calls = []
    for seed in range(40):
        result = summary(3, noise=0.08, seed=seed, rates=lambda arm, c: 100.0 * c, arms=ARMS[:2])
        calls.append(verdict(result, "eagle3")["verdict"])
        assert verdict(result, "eagle3")["power"]["more_boots"] != 0
    assert calls.count("inconclusive") >= 35


def test_one_boot_never_gives_a_verdict_however_large_the_difference():
    result = summary(1, rates=lambda arm, c: c * (500.0 if arm == "eagle3" else 100.0))
    assert {v["verdict"] for v in result["verdicts"]} == {"inconclusive"}
    assert {p["verdict"] for v in result["verdicts"] for p in v["points"]} == {"inconclusive"}
    assert "p" not in verdict(result, "eagle3")


def test_the_change_is_the_mean_over_points_of_the_log_ratios():
    result = summary(3, noise=1e-6)
    expected = [math.log(1.35 * c**-0.13) for c in SWEEP]
    assert verdict(result, "eagle3")["change"] == pytest.approx(math.exp(sum(expected) / 6) - 1, abs=1e-4)


def test_two_arms_with_the_same_settings_are_a_test_of_the_noise_not_a_comparison():
    arms = (*ARMS[:2], Arm("baseline-again", {}, {}))
    result = summary(3, arms=arms, rates=lambda arm, c: 100.0 * c)
    assert [(v["arm"], v["against"]) for v in result["twins"]] == [("baseline-again", "baseline")]
    assert result["noise_floor"] == 0.0
    assert ("baseline-again", "baseline") not in [(v["arm"], v["against"]) for v in result["verdicts"]]


def test_twins_that_differ_take_small_differences_of_other_arms_back():
    arms = (*ARMS[:2], Arm("baseline-again", {}, {}))
    levels = {"baseline": 100.0, "baseline-again": 110.0, "eagle3": 106.0}
    result = summary(3, arms=arms, noise=0.002, rates=lambda arm, c: levels[arm] * c)
    assert result["noise_floor"] == pytest.approx(0.10, abs=0.02)
    assert verdict(result, "eagle3")["verdict"] == "inconclusive"
    assert {c["kind"] for c in result["crossover"] if c["metric"] == "output_tps"} == {"noise"}


def test_roles_come_from_settings_and_never_from_names():
    arms = (
        Arm("plain-looking", EAGLE3, {}),
        Arm("eagle3", {}, {}),
        Arm("adaptive", {**EAGLE3, "speculative-adaptive": True}, {}),
        Arm(
            "skip", {**EAGLE3, "speculative-adaptive": True}, {"SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND": "1"}
        ),
        Arm("other", {**EAGLE3, "speculative-num-steps": 3, "speculative-disable-batch-threshold": 8}, {}),
    )
    parts = roles(arms)
    assert parts.baseline == "eagle3"
    assert parts.static == ("plain-looking",)
    assert parts.dynamic == ("adaptive", "skip", "other")
    assert parts.static_of == {"adaptive": "plain-looking", "skip": "plain-looking"}
    assert parts.thresholds == {"other": 8}


def test_without_settings_the_arm_called_baseline_is_the_baseline():
    result = summarise(points())
    assert [(v["arm"], v["against"]) for v in result["verdicts"]] == [
        ("eagle3", "baseline"),
        ("dynamic", "baseline"),
    ]


def test_drift_over_the_run_is_reported_when_the_order_of_boots_is_known():
    ordered = order(5)
    place = {key: position for position, key in enumerate(ordered)}
    slower = [
        replace(
            p,
            metrics={**p.metrics, "output_tps": p.metrics["output_tps"] * 0.9 ** (place[p.arm, p.boot] / 14)},
        )
        for p in points(5, noise=0.002)
    ]
    result = summarise(slower, arms=ARMS, boot_order=ordered)
    assert verdict(result, "eagle3")["drift"]["seen"]
    assert verdict(result, "eagle3")["method"] == "detrended"
    assert verdict(summarise(slower, arms=ARMS), "eagle3")["drift"] is None


def test_a_run_that_measured_nothing_has_an_empty_summary():
    result = summarise([], arms=ARMS)
    assert [len(arm["points"]) for arm in result["arms"].values()] == [0, 0, 0]
    assert (result["verdicts"], result["crossover"]) == ([], [])


def test_an_arm_without_a_valid_point_leaves_nothing_to_claim():
    spoiled = summary(invalid={("eagle3", c): ("client_bound: late",) for c in SWEEP})
    assert unclaimable(spoiled) == ("eagle3 has no valid point (client_bound)",)


def test_arms_without_a_common_valid_point_leave_nothing_to_claim():
    halves = {("eagle3", c): ("x: y",) for c in SWEEP[:3]} | {("baseline", c): ("x: y",) for c in SWEEP[3:]}
    assert "eagle3 and baseline have no valid point in common (x)" in unclaimable(summary(invalid=halves))


def test_an_arm_that_was_cut_short_has_points_in_common_and_no_whole_boot():
    reached = [p for p in points(1, 0.005, arms=ARMS[:2]) if p.arm == "baseline" or p.concurrency <= 2]
    assert unclaimable(summarise(reached, arms=ARMS[:2], asked=SWEEP)) == (
        "eagle3 and baseline have no boot in common that has all its points, only points at concurrency 1, 2",
    )


def test_one_boot_and_a_few_invalid_points_are_no_fault():
    assert unclaimable(summary(1, invalid={("eagle3", 70): ("admission_limit: 48",)})) == ()
