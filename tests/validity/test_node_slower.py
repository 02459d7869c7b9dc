"""A boot that was slower because the node was: the load generator's own processor time is the witness."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from orchestrator.analysis.summary import summarise
from orchestrator.analysis.witness import across_boots, client_work
from orchestrator.config import load_experiment
from orchestrator.model.result import PointResult
from orchestrator.records.points import read_points
from orchestrator.report.footnotes import footnotes
from tests.report.example_runs import points
from tests.run_folders import EXPERIMENT, write_run

CASES = yaml.safe_load((Path(__file__).parent / "node_slower.yaml").read_text())["cases"]
SLOW_AND_QUICK = CASES[0]["boots"][::2]


def summary(cpu_s: object, gaps: object, ticks: object) -> dict:
    return {"chunk_gap_ns": {"n": gaps}, "client": {"cpu_s": cpu_s, "lag_ns": {"n": ticks}}}


def judged(boots: Sequence[Sequence[float]], **changes: object) -> list[PointResult]:
    like = next(point for point in points(1) if point.arm == "dynamic")
    found = [
        replace(like, boot=boot, metrics={"output_tps": tps}, **changes)
        for boot, (*_, tps) in enumerate(boots, 1)
    ]
    return across_boots(
        found, [client_work(summary(cpu_s, gaps, ticks), ok) for cpu_s, gaps, ok, ticks, _ in boots]
    )


@pytest.mark.parametrize("case", CASES, ids=[case["title"] for case in CASES])
def test_a_boot_that_was_slower_while_the_node_was_is_noted_and_counts(case):
    found = judged(case["boots"])
    assert [point.boot for point in found if point.notes] == case["noted"]
    assert all(point.valid and not point.reasons for point in found)
    notes = [note for point in found for note in point.notes]
    assert all(note.startswith("node_slower: ") for note in notes)
    assert case.get("says", "") in "".join(notes)


def test_a_point_that_does_not_count_is_neither_noted_nor_a_measure_for_others():
    assert not any(point.notes for point in judged(SLOW_AND_QUICK, valid=False))


def test_boots_of_other_arms_and_points_are_no_measure():
    slow, quick = points(1)[:2]
    works = [client_work(summary(cpu_s, gaps, ticks), ok) for cpu_s, gaps, ok, ticks, _ in SLOW_AND_QUICK]
    slow, quick = replace(slow, metrics={"output_tps": 1.0}), replace(quick, metrics={"output_tps": 2.0})
    other_arm = replace(quick, arm="other", boot=2, index=slow.index, concurrency=slow.concurrency)
    assert not any(
        point.notes for other in (quick, other_arm) for point in across_boots([slow, other], works)
    )


def test_the_report_names_a_boot_that_was_slow_at_several_points_and_the_range():
    found = [
        replace(point, index=index, concurrency=case["boots"][0][2] // 8)
        for index, case in enumerate(CASES[:2])
        for point in judged(case["boots"])
    ]
    whole = summarise(found)
    told = footnotes(whole, [("dynamic", point) for point in whole["arms"]["dynamic"]["points"]])
    assert told.numbered == (
        "node_slower: the load generator took 22.0 to 29.0 us of processor time a streamed chunk here, "
        "14.0 to 20.4 us in boots 2 and 3 of dynamic: the node's processors were slower or shared, "
        "so this speed is likely too low (boot 1, 2 points)",
    )


@pytest.mark.parametrize("wrong", [None, True, "1", -1, 10**400, float("inf"), float("nan")])
@pytest.mark.parametrize("place", range(3))
def test_a_figure_that_is_missing_or_cannot_be_one_says_nothing(place, wrong):
    figures: list[object] = [0.3, 10240, 631]
    assert client_work(summary(*figures), ok=128) is not None
    figures[place] = wrong
    assert client_work(summary(*figures), ok=128) is None


@pytest.mark.parametrize(
    ("load_from", "simulated", "noted"),
    [("node", False, [1]), ("controller", False, []), ("node", True, [])],
    ids=["on the node", "on the controller", "of a simulated engine"],
)
def test_only_a_load_generator_beside_a_real_server_is_asked(tmp_path, load_from, simulated, noted):
    rates = iter([100.0, 110.0])
    store = write_run(
        tmp_path,
        "20260101-000000-trial-0001",
        boots=2,
        rate=lambda arm, concurrency: next(rates),
        arms=("baseline",),
        sweep=(4,),
    )
    for boot, (cpu_s, gaps, _, ticks, _) in enumerate(SLOW_AND_QUICK, 1):
        (path,) = store.folder.glob(f"arms/baseline/boot-{boot}/*.meta.json")
        meta = {**json.loads(path.read_text()), "simulated": simulated}
        path.write_text(json.dumps({**meta, "load": {"summary": summary(cpu_s, gaps, ticks)}}))
    text = EXPERIMENT.format(model="/models/m", boots=2, more="", sweep=[4], load="closed")
    experiment = load_experiment(text, name="e.yaml").experiment
    experiment = replace(experiment, sweep=replace(experiment.sweep, load_from=load_from))
    found = read_points(store, experiment).points
    assert [point.boot for point in found if "node_slower" in str(point.notes)] == noted
