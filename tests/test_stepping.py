"""A load that steps across a threshold is set against steady load and the other arms; unknown is absent."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.analysis.stepping import Steady, Stepping, unstepped
from orchestrator.analysis.summary import summarise
from orchestrator.analysis.switching import ResumePenalty
from orchestrator.model.experiment import Load
from orchestrator.model.result import PointResult, RunInfo
from orchestrator.records.begun import begun_experiment
from orchestrator.records.points import read_points
from orchestrator.records.summary import make_summary
from orchestrator.report import html, markdown, terminal
from orchestrator.report.answer import answer, supporting
from orchestrator.store import RunStore
from tests.report.example_runs import ARMS
from tests.run_folders import write_run

STEPS = "{straddle: {around: 4, period: 2s}}"
BASE = {"tpot_p50": 0.01, "e2e_p50": 1.0, "share_above": 0.5}
STEPPED = {
    "baseline": {**BASE, "output_tps": 1000.0},
    "eagle3": {**BASE, "output_tps": 1050.0, "accept_length": 2.5},
    "dynamic": {
        **BASE,
        "output_tps": 1100.0,
        "tpot_p50": 0.009,
        "accept_length": 2.0,
        "transitions_per_s": 0.98,
    },
}
RESUME = ResumePenalty(3, 1.5, 2.0, -0.25)


def measured(arm: str, concurrency: int, metrics: dict, **changes) -> PointResult:
    return PointResult(arm, 1, 0, concurrency, metrics, 80, 0, 80, 8, "ab" * 32, **changes)


def stepped(**changes) -> dict:
    """Summary of one boot an arm under steps between 4 and 8. `changes` are to the stepping load."""
    points = [measured(arm, 8, metrics) for arm, metrics in STEPPED.items()]
    load = {"around": 4, "low": 4, "high": 8, "period_s": 2.0, **changes}
    return summarise(points, arms=ARMS, stepping=Stepping(**load))


def steady(low: float = 1000.0, high: float = 1400.0, **changes) -> Steady:
    points = [measured("dynamic", c, {"output_tps": rate}, **changes) for c, rate in ((4, low), (8, high))]
    return Steady("steady-1", points)


def entry(summary: dict, arm: str) -> dict:
    return next(item for item in summary["straddle"]["arms"] if item["arm"] == arm)


def test_the_stepping_rate_is_set_against_the_mean_of_the_steady_rates_by_time():
    found = entry(stepped(steady=steady()), "dynamic")["steady"]
    assert (found["expected_tps"], found["verdict"]) == (1200.0, "cost")
    assert found["change"] == pytest.approx(1100 / 1200 - 1)


@pytest.mark.parametrize(
    "beside", [None, steady(valid=False), Steady("empty", [])], ids=["none", "invalid", "empty"]
)
def test_without_valid_steady_loads_nothing_is_said_of_them(beside):
    summary = stepped(steady=beside)
    assert "steady" not in entry(summary, "dynamic")
    assert any("what the steps themselves cost is unknown" in line for line in supporting(summary, RunInfo()))


def test_an_arm_that_switches_is_set_against_those_that_do_not_under_the_same_steps():
    against = {item["arm"]: item for item in entry(stepped(), "dynamic")["against"]}
    assert against["baseline"]["output_tps"]["change"] == pytest.approx(0.1)
    assert against["eagle3"]["tpot_p50"]["change"] == pytest.approx(-0.1)
    assert "against" not in entry(stepped(), "eagle3")


def test_the_resume_penalty_is_told_by_counters_and_by_the_log():
    found = entry(stepped(resumes={"dynamic": [RESUME]}), "dynamic")
    assert found["accept"]["change"] == pytest.approx(-0.2)
    assert (found["resume"]["resumes"], found["resume"]["change"]) == (3, -0.25)


def test_a_server_that_makes_its_accept_length_up_has_no_resume_penalty():
    found = entry(stepped(resumes={"dynamic": [RESUME]}, made_up=frozenset({"dynamic"})), "dynamic")
    assert not {"accept", "resume"} & set(found)


def test_steps_are_no_steady_load_so_they_tell_no_disabled_tax():
    assert stepped()["costs"] == []


def test_every_report_says_what_was_found():
    summary, info = stepped(steady=steady(), resumes={"dynamic": [RESUME]}), RunInfo()
    for text in (
        terminal.to_text(summary, info, width=500),
        markdown.render(summary, info).replace("\\", ""),
        html.render(summary, info),
    ):
        assert (
            "dynamic has 1100 output tokens/s, 50% of the time above 4 and 0.98 transitions per second"
            in text
        )
        assert "by the time on each side is 1200: -8.3%, more than 3% short of it" in text
        assert "+10% output tokens/s, -10% median time per output token" in text
        assert "which never switches, 2.50: -20%" in text
        assert "Around 3 resumes in the log of dynamic the accept length is 1.50" in text


def first_sentence(**changes) -> str:
    return answer(stepped(**changes), RunInfo())


def test_the_first_sentence_of_a_stepping_load_is_what_the_steps_cost():
    assert first_sentence(steady=steady()) == (
        "Under steps between 4 and 8 requests in flight dynamic gives 1100 tokens/s, -8.3% against the time-weighted "
        "mean of the two steady loads (1200; boots of two runs, so an estimate without an interval), more than 3% "
        "short of it: a step every 1 s, 50% of the time above 4 and 0.98 transitions per second."
    )


def test_without_steady_loads_it_is_set_against_the_other_arms_and_says_what_is_unknown():
    text = first_sentence()
    assert (
        "1100 tokens/s, +10% against baseline (an estimate from 1 boot an arm) and +4.8% against eagle3"
        in text
    )
    assert "unknown without a run of steady load at 4 and at 8 beside it" in text


def test_boots_under_steps_give_the_rate_and_the_comparison_an_interval():
    points = [
        replace(measured(arm, 8, {**metrics, "output_tps": metrics["output_tps"] + boot}), boot=boot)
        for arm, metrics in STEPPED.items()
        for boot in (1, 2, 3)
    ]
    text = answer(summarise(points, arms=ARMS, stepping=Stepping(4, 4, 8, 2.0)), RunInfo())
    assert "dynamic gives 1102 tokens/s (±0.2%), +10% against baseline (95% interval +9.7% to +10%)" in text


def test_where_no_switching_arm_has_a_rate_the_first_sentence_is_that_of_any_run():
    spoiled = [
        measured(
            arm, 8, metrics, valid=arm != "dynamic", reasons=("client_bound: late",) * (arm == "dynamic")
        )
        for arm, metrics in STEPPED.items()
    ]
    text = answer(summarise(spoiled, arms=ARMS, stepping=Stepping(4, 4, 8, 2.0)), RunInfo())
    assert text.startswith("No verdict from one server boot an arm; speculation seems to pay")


def test_retracted_requests_are_a_note_that_names_the_boots():
    points = [measured(arm, 8, metrics) for arm, metrics in STEPPED.items()]
    summary = summarise(
        points, arms=ARMS, retracted={("eagle3", 1): 12, ("eagle3", 2): 3, ("baseline", 1): 0}
    )
    (line,) = [line for line in supporting(summary, RunInfo()) if "KV cache" in line]
    assert line.startswith("eagle3: ")
    assert "12 in boot 1 and 3 in boot 2" in line


def test_a_summary_of_an_earlier_version_reads_as_before():
    summary = {k: v for k, v in stepped().items() if k not in ("straddle", "kv_retractions")}
    assert not any("steps between" in line for line in supporting(summary, RunInfo()))


# -- from run folders -------------------------------------------------------------------------------------------


def finish(store: RunStore) -> RunStore:
    times = {"started_utc": "2026-01-02T03:04:05Z", "ended_utc": "2026-01-02T03:14:05Z"}
    outcome = {"exit_code": 0, "state": "ok", "message": "", "node_restored": True, **times}
    store.write_json("outcome.json", {"outcome": outcome})
    return store


def summary_of(store: RunStore) -> dict:
    return make_summary(store, begun_experiment(store))


def test_the_steady_loads_come_from_the_latest_run_beside_it_with_the_same_set_up(tmp_path: Path):
    for run, model, sweep in (
        ("20260101-a", "/models/m", (4, 8)),
        ("20260102-b", "/models/m", (4, 8)),
        ("20260103-other-model", "/models/x", (4, 8)),
        ("20260104-one-level", "/models/m", (1, 4)),
    ):
        finish(write_run(tmp_path, run, boots=1, model=model, sweep=sweep))
    write_run(tmp_path, "20260105-unfinished", boots=1, sweep=(4, 8))
    (tmp_path / "20260106-damaged").mkdir()
    (tmp_path / "20260106-damaged" / "outcome.json").write_text("{}")
    run = finish(write_run(tmp_path, "20260107-steps", boots=1, sweep=(8,), load=STEPS))
    found = summary_of(run)["straddle"]
    assert found["steady_run"] == "20260102-b"
    assert (found["low"], found["high"], found["period_s"]) == (4, 8, 2.0)
    assert {item["arm"] for item in found["arms"] if item.get("steady")} == {"baseline", "eagle3", "dynamic"}


def test_time_above_and_transitions_are_read_from_records_and_counters(tmp_path: Path):
    run = write_run(tmp_path, "steps", boots=1, sweep=(8,), load=STEPS)
    (path,) = run.folder.glob("arms/dynamic/boot-1/*.meta.json")
    meta = json.loads(path.read_text())
    for key, count in (("server_before", 3), ("server_after", 9)):
        meta[key][0]["dynspec_stats"]["transitions"] = count
    path.write_text(json.dumps(meta))
    by_arm = {item["arm"]: item for item in summary_of(run)["straddle"]["arms"]}
    assert by_arm["dynamic"]["share_above"] > 0.9  # eight at a time, from the first sending to the last
    assert by_arm["dynamic"]["transitions_per_s"] > 0
    assert "transitions_per_s" not in by_arm["baseline"]


def test_retractions_are_counted_from_the_logs_of_the_boots(tmp_path: Path):
    run = write_run(tmp_path, "full", boots=1)
    words = "KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_tokens_gained: 9"
    line = f"[2026-01-02 03:04:05 TP0] {words}"
    run.write("arms/eagle3/boot-1/server.log", f"{line}\n{line}\n")
    found = summary_of(run)
    assert found["kv_retractions"] == [{"arm": "eagle3", "boot": 1, "requests": 4}]
    assert found["straddle"] is None


@pytest.mark.parametrize(
    ("load", "span_s", "share", "says"),
    [
        (Load("straddle", around=3, period_s=1.0), 4.0, 0.0, "at no time were more than 3 in flight"),
        (Load("straddle", around=3, period_s=1.0), 4.0, None, "at no time were more than 3 in flight"),
        (Load("straddle", around=3, period_s=2.0), 1.5, 0.3, "lasted 1.5 s, less than one period of 2 s"),
        (Load("straddle", around=3, period_s=2.0), 2.0, 0.3, ""),
        (Load("straddle", around=3, period_s=2.0), None, None, ""),
        (Load(), 0.1, None, ""),
    ],
)
def test_a_load_that_never_stepped_is_not_taken_for_one_that_did(load, span_s, share, says):
    found = unstepped(load, span_s, share)
    assert (found is None) == (says == "")
    assert found is None or (found.fatal and says in found.text)


def test_a_stored_point_that_never_stepped_does_not_count(tmp_path: Path):
    run = write_run(tmp_path, "still", boots=1, sweep=(2,), load=STEPS)
    experiment = begun_experiment(run)
    points = read_points(run, experiment).points
    assert points
    assert all("at no time were more than 4 in flight" in " ".join(point.reasons) for point in points)
