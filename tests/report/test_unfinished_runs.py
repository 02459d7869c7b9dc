"""A report of a run that has not come to its end says so, and blames nothing else for what is missing."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from orchestrator.analysis.summary import summarise
from orchestrator.analysis.tune import PLAIN, SPECULATING
from orchestrator.errors import NothingToClaim
from orchestrator.model.result import RunInfo, Unfinished
from orchestrator.records.begun import begun_experiment
from orchestrator.records.damage import damage
from orchestrator.records.driver import Driver, driver_of
from orchestrator.records.gating import cut_short, require_finished
from orchestrator.records.info import run_info
from orchestrator.records.summary import make_summary
from orchestrator.report import html, markdown, terminal
from orchestrator.report.answer import answer, banners
from orchestrator.runner.runlock import FILE_NAME, RunLock
from tests.report.example_runs import ARMS, CARD, points, rate
from tests.run_folders import write_run

PAIR = ARMS[:2]
RESUME = "dynspec run e.yaml --resume RUN"


def end(state: str = "interrupted", *, under_way: str = "", message: str = "", **missing: int) -> RunInfo:
    """Of a run with three boots of each arm."""
    boots = {arm.name: 3 for arm in PAIR}
    return RunInfo(
        state=state, message=message, unfinished=Unfinished(under_way, boots, missing, resume=RESUME)
    )


def measured(wanted, arms=PAIR, **options):
    """`wanted`: whether a point was measured; all arms were planned."""
    return summarise([p for p in points(3, arms=arms, **options) if wanted(p)], arms=arms)


def nothing(p):
    return False


def no_baseline(p):
    return p.arm != "baseline"


def first_boots(p):
    return p.boot == 1


def other_levels(p):
    return (p.arm == "baseline") == (p.concurrency == 1)


@pytest.mark.parametrize(
    ("wanted", "info", "says"),
    [
        (
            nothing,
            end(baseline=3, eagle3=3),
            "Interrupted before anything was measured: 3 of 3 boots of baseline and 3 of 3 boots of eagle3 ",
        ),
        (
            no_baseline,
            end(baseline=3),
            f"Interrupted before baseline was measured: 3 of 3 boots of baseline are missing; go on with: {RESUME}",
        ),
        (
            lambda p: p.arm == "baseline",
            end(eagle3=3, baseline=1),
            "Interrupted before eagle3 was measured: 1 of 3 boots of baseline and 3 of 3 boots of eagle3 are missing; ",
        ),
        (
            other_levels,
            end(eagle3=3, baseline=3),
            "Interrupted, no verdict: no point is valid both with and without speculation; 3 of 3 boots of baseline ",
        ),
        (
            first_boots,
            end(eagle3=2, baseline=2),
            "Interrupted, no verdict from 1 server boot an arm: speculation seems to pay up to about ",
        ),
        (
            no_baseline,
            end("failed", message="node gpu-1: gone.\nmore", baseline=3),
            "Failed before baseline was measured: node gpu-1: gone; 3 of 3 boots of baseline are missing; go on with:",
        ),
        (
            no_baseline,
            end("", baseline=3),
            "The run did not come to its end, baseline was not measured: 3 of 3 boots of baseline are missing; go on",
        ),
        (
            nothing,
            end("", under_way="pid 7 on here", baseline=3, eagle3=3),
            "The run is under way (pid 7 on here), nothing is measured yet.",
        ),
        (
            no_baseline,
            end("", under_way="pid 7 on here", baseline=3),
            "The run is under way (pid 7 on here), baseline is not measured yet: 3 of 3 boots of baseline are missing.",
        ),
    ],
    ids=[
        *("nothing", "no baseline", "no speculation", "no pair", "one boot", "failed", "killed", "begun"),
        "under way",
    ],
)
def test_the_first_sentence_says_that_the_run_has_not_come_to_its_end(wanted, info, says):
    shown = measured(wanted)
    assert answer(shown, info).startswith(says)
    for text in (
        terminal.to_text(shown, info, width=900),
        markdown.render(shown, info).replace("\\", ""),
        html.render(shown, info),
    ):
        assert "reasons are below" not in text
        assert "sweep.repeats" not in text
        assert "INTERRUPTED" not in text  # said once


def test_the_command_that_goes_on_is_whole_on_a_narrow_terminal():
    lines = terminal.to_text(measured(nothing), end(baseline=3), width=40).splitlines()
    assert f"  {RESUME}" in lines


def test_a_point_that_does_not_count_is_not_the_reason_for_arms_that_were_never_started():
    bad = {("eagle3", 1): ("client_bound: late",)}
    text = answer(measured(no_baseline, invalid=bad), end(baseline=3))
    assert text.startswith("Interrupted before baseline was measured: ")
    assert "too busy" not in text


@pytest.mark.parametrize(
    ("info", "beside"),
    [
        (
            end(eagle3=1),
            "INTERRUPTED: what is said here is of what was measured; 1 of 3 boots of eagle3 is missing; "
            f"go on with: {RESUME}",
        ),
        (end(), "INTERRUPTED: all that was planned is measured."),
        (
            end("", under_way="pid 7 on here", eagle3=1),
            "UNDER WAY (pid 7 on here): what is said here is of what was measured so far; 1 of 3 boots of eagle3 is "
            "missing.",
        ),
        (end("", eagle3=1), "NOT AT ITS END: what is said here is of what was measured; 1 of 3 "),
    ],
)
def test_a_claim_stands_and_the_missing_boots_are_told_beside_it(info, beside):
    def wanted(p):
        return p.boot < 3 or p.arm == "baseline"

    shown = measured(wanted, noise=0.001)
    for text in (
        terminal.to_text(shown, info, width=900),
        markdown.render(shown, info).replace("\\", ""),
        html.render(shown, info),
    ):
        assert "Turn speculation off above about 10" in text
        assert beside in text


@pytest.mark.parametrize("state", ["failed", "dirty"])
def test_a_run_without_a_failed_arm_says_why_it_ended(state):
    info = replace(end(state, message="the connection to the node was lost: gone\nmore", eagle3=3))
    said = answer(measured(lambda p: p.arm == "baseline"), info)
    assert "the connection to the node was lost: gone" in said
    assert "more" not in said


def test_an_arm_that_failed_is_still_the_answer():
    shown = measured(lambda p: p.arm == "baseline")
    info = replace(end("failed", message="it died", eagle3=3), failures=(CARD,))
    assert answer(shown, info).startswith("No verdict, eagle3 failed at concurrency 10: ")


def test_an_interrupted_tune_counts_repetitions_and_is_run_again():
    arms = tuple(replace(ARMS[2], name=name) for name in (SPECULATING, PLAIN))
    boots = {arm.name: 3 for arm in arms}
    again = "dynspec tune EXPERIMENT.yaml (it is repeated as a whole)"
    info = RunInfo(state="interrupted", unfinished=Unfinished("", boots, {PLAIN: 2}, True, again))
    shown = measured(lambda p: p.boot == 1, arms, rates=lambda arm, c: rate("baseline", c))
    text = terminal.to_text(shown, info, width=900)
    lacking = "2 of 3 repetitions of always-plain are incomplete or missing"
    assert f"INTERRUPTED: what is said here is of what was measured; {lacking}; go on with: {again}" in text


# -- run folders


@pytest.fixture
def run(tmp_path):
    return write_run(
        tmp_path, "20260101-000000-trial-0001", boots=2, sweep=(1, 4), arms=("baseline", "eagle3")
    )


def planned_points(run, sweep=(1, 4)):
    """The plan as a run writes it, with the steps that `write_run` leaves out."""
    plan = run.read_json("plan.json")
    steps = [
        {"do": {"type": "RunPoint", "arm": boot["arm"], "boot": boot["boot"], "index": i, "concurrency": c}}
        for boot in plan["plan"]["boots"]
        for i, c in enumerate(sweep)
    ]
    plan["plan"]["steps"] = [{"do": {"type": "Guard"}}, *steps]
    (run.folder / "plan.json").write_text(json.dumps(plan))


def without(run, boot: str, stem: str = "point-"):
    for path in (run.folder / "arms" / boot).glob(f"{stem}*"):
        path.unlink()


def of(run) -> Unfinished | None:
    return run_info(run, begun_experiment(run)).unfinished


def ended(run, state: str):
    told = {"message": "", "node_restored": True, "started_utc": "", "ended_utc": ""}
    run.write_json("outcome.json", {"outcome": {"exit_code": 0, "state": state, **told}})


def test_a_run_that_left_its_node_changed_tells_the_command_that_reaches_it(run):
    without(run, "baseline/boot-2")
    ended(run, "dirty")
    began = begun_experiment(run)
    node = replace(began.node, host="ci@gpu-1:2222", ssh_config="/etc/lab")
    info = run_info(run, replace(began, node=node))
    says = "put it back first: dynspec restore ci@gpu-1:2222 --ssh-config /etc/lab"
    assert answer(measured(no_baseline), info).endswith(says)


def test_what_a_run_lacks_is_counted_by_planned_measurements(run):
    planned_points(run)
    without(run, "baseline/boot-2")
    without(run, "eagle3/boot-2", "point-01")
    found = of(run)
    assert (found.boots, found.missing) == ({"baseline": 2, "eagle3": 2}, {"baseline": 1, "eagle3": 1})
    assert found.partly
    assert found.resume == f"dynspec run {run.folder}/experiment.lock.yaml --resume {run.folder}"
    ended(run, "interrupted")
    assert of(run) == found
    for state in ("ok", "nothing-to-claim", "regression"):
        ended(run, state)
        assert of(run) is None


def test_a_plan_that_names_boots_alone_tells_the_missing_ones_too(run):
    without(run, "baseline/boot-1")
    assert of(run).missing == {"baseline": 1}
    assert not of(run).partly


def test_a_run_that_was_killed_has_no_damage_for_it(run):
    where = {"arm": "eagle3", "boot": 2, "index": 1, "concurrency": 4}
    run.event("point", where)
    (run.folder / "arms/eagle3/boot-2/point-01-c4.meta.json").unlink()  # its records come first
    (run.folder / "arms/eagle3/boot-1/point-01-c4.partial.jsonl").write_text("{}\n")
    assert damage(run) == ()
    run.event("point_done", where)
    assert [line.split(":")[0] for line in damage(run)] == [
        "arms/eagle3/boot-2/point-01-c4.meta.json is missing"
    ]


def test_an_outcome_that_the_run_told_of_is_lost_where_it_is_not_there(run):
    run.event("outcome", {"exit_code": 0, "state": "ok"})
    assert [line.split(":")[0] for line in damage(run)] == ["outcome.json is missing"]
    assert of(run) is None
    with RunLock() as lock:
        lock.take(run.folder)
        assert damage(run) == ()  # it is about to be written
    run.event("planned", {})
    assert damage(run) == ()  # gone on with, and cut short again


@pytest.mark.parametrize("outcome", [None, "{}", "junk"])
def test_a_run_whose_outcome_is_lost_tells_what_it_lacks_all_the_same(run, outcome):
    without(run, "baseline/boot-1")
    without(run, "baseline/boot-2")
    run.event("outcome", {"state": "interrupted"})
    if outcome is not None:
        (run.folder / "outcome.json").write_text(outcome)
    began = begun_experiment(run)
    info = run_info(run, began)
    says = "It is unknown how the run ended, baseline was not measured: 2 of 2 boots of baseline are missing; go on"
    assert answer(make_summary(run, began), info).startswith(says)


@pytest.mark.parametrize("plan", [None, b"{}", b"\xff\x00"])
def test_nothing_is_called_complete_where_it_is_unknown_what_was_planned(run, plan):
    ended(run, "interrupted")
    (run.folder / "plan.json").unlink() if plan is None else (run.folder / "plan.json").write_bytes(plan)
    info = run_info(run, begun_experiment(run))
    told = "INTERRUPTED: what is said here is of what was measured, and it is unknown what was planned; go on with: "
    assert banners(make_summary(run, begun_experiment(run)), info)[0].startswith(told)


def test_a_run_under_way_is_named_by_its_controller_and_never_resumed(run):
    assert driver_of(run.folder) is None
    with RunLock() as lock:
        lock.take(run.folder)
        driver = driver_of(run.folder)
        assert of(run).under_way == f"pid {driver.pid} on {driver.host}"
        with pytest.raises(NothingToClaim, match=rf"is under way \(pid {driver.pid} on ") as refused:
            require_finished(run)
        assert "--resume" not in refused.value.help
        assert cut_short(run).startswith("it is under way, pid ")
        for told in ("{", "[]", '{"pid": "7", "host": 3}'):
            (run.folder / FILE_NAME).write_text(told)
            assert driver_of(run.folder) == Driver()
    assert of(run).under_way == ""
    with pytest.raises(NothingToClaim) as refused:
        require_finished(run)
    assert "--resume" in refused.value.help
