"""A point is shown always and claimed only if nothing speaks against it; each reason has a name."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from orchestrator.analysis.acceptance import spec_share
from orchestrator.analysis.evidence import (
    admission_limit,
    evidence_of,
    expected_mode,
    step_counts,
    unmoved,
)
from orchestrator.analysis.likeness import across_arms, argument_findings, unintended
from orchestrator.analysis.validity import Evidence, Finding, GpuWindow, judge, judged
from orchestrator.metrics import PointMetrics
from orchestrator.model.experiment import Arm
from tests.report.example_runs import EAGLE3, points

TABLE = yaml.safe_load((Path(__file__).parent / "validity" / "findings.yaml").read_text())


def evidence(change: dict) -> Evidence:
    fields = {**TABLE["base"], **change, "metrics": {**TABLE["base"]["metrics"], **change.get("metrics", {})}}
    if "gpu" in fields:
        gpu = fields["gpu"]
        fields["gpu"] = GpuWindow(
            frozenset(gpu.get("throttle", ())), tuple(gpu.get("xids", ())), tuple(gpu.get("foreign_pids", ()))
        )
    return Evidence(**fields)


@pytest.mark.parametrize("case", TABLE["cases"], ids=[case["title"] for case in TABLE["cases"]])
def test_each_fault_of_a_point_has_its_name(case):
    findings = judge(evidence(case["change"]))
    assert [f.name for f in findings if f.fatal] == case.get("fatal", [])
    assert [f.name for f in findings if not f.fatal] == case.get("notes", [])
    assert case.get("says", "") in "; ".join(map(str, findings))


def test_the_table_has_a_case_for_every_finding():
    source = (Path(__file__).parents[1] / "orchestrator" / "analysis" / "validity.py").read_text()
    named = set(re.findall(r'Finding\(\s*"(\w+)"', source))
    tested = {name for case in TABLE["cases"] for name in (*case.get("fatal", []), *case.get("notes", []))}
    assert named == tested


def test_a_fatal_finding_makes_the_point_invalid_and_a_note_does_not():
    point = points(1)[0]
    noted = judged(point, [Finding("cached_tokens", "34%", fatal=False)])
    assert (noted.valid, noted.reasons, noted.notes) == (True, (), ("cached_tokens: 34%",))
    spoiled = judged(noted, [Finding("client_bound", "late")])
    assert (spoiled.valid, spoiled.reasons) == (False, ("client_bound: late",))
    assert spoiled.notes == noted.notes


# -- across arms ---------------------------------------------------------------------------------------------


def test_arms_that_sent_the_same_bodies_are_alike():
    assert all(point.valid for point in across_arms(points(2), "baseline"))


def test_other_request_bodies_than_the_baselines_are_not_compared():
    measured = [
        replace(p, bodies_sha256="cd" * 32) if (p.arm, p.index) == ("eagle3", 3) else p for p in points(1)
    ]
    found = [p for p in across_arms(measured, "baseline") if not p.valid]
    assert [(p.arm, p.index) for p in found] == [("eagle3", 3)]
    assert found[0].reasons == ("bodies_differ: request bodies differ from those of baseline boot 1",)


def test_an_arm_served_from_the_cache_is_not_compared_with_one_that_was_not():
    measured = [
        replace(p, metrics={**p.metrics, "cached_share": 0.5 if p.arm == "eagle3" else 0.0})
        for p in points(1)
    ]
    found = across_arms(measured, "baseline")
    assert {p.arm for p in found if not p.valid} == {"eagle3"}
    assert (
        found[6]
        .reasons[0]
        .startswith("cache_differs: 50.0% of the prompt tokens were cached, 0.0% in baseline")
    )


def test_200_against_140_tokens_for_the_same_prompts_is_noted_as_unequal_work_and_does_not_fail():
    measured = [
        replace(p, metrics={**p.metrics, "output_tokens": 200.0 if p.arm == "baseline" else 140.0})
        for p in points(1)
    ]
    found = across_arms(measured, "baseline")
    assert all(p.valid for p in found)
    assert found[6].notes == ("output_gap: 140 output tokens, 200 in baseline boot 1: unequal work",)


def test_server_arguments_that_differ_beyond_the_intended_are_named():
    baseline = {"max_running_requests": 4096, "chunked_prefill_size": 8192, "random_seed": 1, "tp_size": 8}
    eagle3 = {
        **baseline,
        "max_running_requests": 48,
        "random_seed": 2,
        "speculative_algorithm": "EAGLE3",
        "attention_backend": "fa3",
        "disable_overlap_schedule": True,
    }
    differing = unintended(eagle3, baseline, ["speculative-algorithm", "attention-backend"])
    assert differing == {"max_running_requests": (48, 4096), "disable_overlap_schedule": (True, None)}
    findings = argument_findings(differing, "baseline")
    assert {f.text.split()[0]: f.fatal for f in findings} == {
        "max_running_requests": True,
        "disable_overlap_schedule": False,
    }


# -- evidence from what a run stores -------------------------------------------------------------------------

DYNAMIC = Arm("dynamic", {**EAGLE3, "speculative-disable-batch-threshold": 5}, {})


def states(plain: int, spec: int, ranks: int = 1) -> list[dict]:
    stats = {"plain_steps": plain, "spec_steps": spec, "worker": "v2"}
    return [{"dynspec_stats": dict(stats), "effective_max_running_requests_per_dp": 48} for _ in range(ranks)]


def measured(**changes) -> PointMetrics:
    fields = {
        "metrics": {"accept_length": 2.0},
        "attempted": 40,
        "ok": 40,
        "failed": 0,
        "warmup_requests": 0,
        "warmup_failed": 0,
        "short_outputs": 0,
        "tokens_unknown": 0,
        "window_s": 9.0,
        "window_reason": None,
    }
    return PointMetrics(**{**fields, **changes})


def test_evidence_is_gathered_from_the_servers_own_words():
    found = evidence_of(
        measured(),
        arm=DYNAMIC,
        concurrency=10,
        load="closed",
        server={"speculative_num_steps": 2, "dp_size": 1},
        before=states(100, 50),
        after=states(180, 52),
        client={"client": {"cpu_share": 0.2}},
        warmup_requests=10,
        expected_worker="v1",
    )
    assert (found.plain_steps, found.spec_steps, found.expected) == (80, 2, "plain")
    assert (found.admission_limit, found.max_accept_length, found.client_cpu_share) == (48, 3.0, 0.2)
    assert [f.name for f in judge(found)] == ["silent_fallback"]


def test_the_start_up_log_counts_where_the_server_keeps_no_counters():
    server = {"worker_seen": {"worker": "v1", "problem": "1 of 2 ranks logged the patch's start-up line"}}
    found = evidence_of(
        measured(),
        arm=Arm("eagle3", EAGLE3, {}),
        concurrency=1,
        load="closed",
        server=server,
        before=[],
        after=[],
        client={},
        warmup_requests=10,
        expected_worker="v1",
    )
    assert (found.actual_worker, found.worker_problem) == ("v1", server["worker_seen"]["problem"])
    assert "worker_contradicted" in [f.name for f in judge(found)]


def test_steps_are_summed_over_ranks_and_unknown_without_counters():
    assert step_counts(states(0, 0, ranks=2), states(3, 9, ranks=2)) == (6, 18)
    assert spec_share(states(0, 0), states(3, 9)) == pytest.approx(0.75)
    assert step_counts([{}], [{}]) is None
    assert step_counts([], []) is None
    assert step_counts(states(50, 0), states(3, 0)) is None  # restarted between
    assert spec_share(states(1, 1), states(1, 1)) is None


@pytest.mark.parametrize(
    ("server", "ranks", "expected"),
    [
        ({}, 1, 48),
        ({"dp_size": 4}, 4, 192),
        ({"dp_size": 4}, 1, 192),
        ({"max_running_requests": 128}, 0, 128),
        ({}, 0, None),
    ],
)
def test_the_admission_limit_counts_all_data_parallel_ranks(server, ranks, expected):
    assert admission_limit(server, states(0, 0, ranks)) == expected


@pytest.mark.parametrize(
    ("concurrency", "load", "expected"),
    [(5, "closed", "speculate"), (6, "closed", "plain"), (6, "straddle", None), (None, "open", None)],
)
def test_a_threshold_says_what_a_point_must_show(concurrency, load, expected):
    assert expected_mode(DYNAMIC, concurrency, load) == expected
    assert expected_mode(Arm("eagle3", EAGLE3, {}), concurrency, load) is None


@pytest.mark.parametrize(
    ("looks", "told"),
    [
        ([(5, (0, 8)), (6, (7, 2)), (10, (9, 1)), (1, (0, 8))], ()),
        ([(5, (0, 8)), (6, (0, 9)), (10, (4, 1)), (1, (0, 8))], ()),  # six short ones did not all run at once
        (
            [(5, (0, 8)), (6, (0, 9)), (10, (0, 9))],
            ("at concurrency 6, 10 no step was plain, as the threshold asks",),
        ),
        ([(5, (8, 0)), (1, (8, 0))], ("at concurrency 5, 1 no step was speculative, as the threshold asks",)),
        ([(5, None), (6, None)], ()),  # a server that does not count
    ],
)
def test_the_canary_tells_of_a_threshold_that_does_not_act(looks, told):
    assert DYNAMIC.args["speculative-disable-batch-threshold"] == 5
    assert unmoved(DYNAMIC, looks) == told
    assert unmoved(Arm("eagle3", EAGLE3, {}), looks) == ()


def test_native_adaptive_that_the_server_turned_off_is_seen_in_its_arguments():
    arm = Arm("adaptive", {**EAGLE3, "speculative-adaptive": True}, {"SGLANG_SIMULATE_ACC_LEN": "2.0"})
    found = evidence_of(
        measured(),
        arm=arm,
        concurrency=10,
        load="closed",
        server={"speculative_adaptive": False, "speculative_num_steps": 3},
        before=[],
        after=[],
        client={},
        warmup_requests=10,
    )
    assert [f.name for f in judge(found)] == ["silent_fallback", "synthetic_acceptance"]
    assert found.max_accept_length is None
