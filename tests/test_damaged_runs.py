"""A run folder that was damaged after the run is never read as a good one."""

import json

import pytest

from orchestrator.errors import UsageError
from orchestrator.runner.resume import begun_experiment
from orchestrator.runner.run_info import is_simulated
from orchestrator.runner.run_summary import make_summary
from tests.run_folders import write_run


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path, "20260101-000000-trial-0001")


def points_of(run):
    summary = make_summary(run, begun_experiment(run))
    return [point for arm in summary["arms"].values() for point in arm["points"]]


def test_whole_records_are_valid(run):
    assert all(point["valid"] for point in points_of(run))


def test_records_cut_after_the_run_make_their_points_invalid_by_name(run):
    for path in run.folder.glob("arms/*/*/point-*.jsonl"):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[: len(lines) // 2]))
    for point in points_of(run):
        assert not point["valid"]
        assert any(reason.startswith("records_damaged") for reason in point["reasons"])


@pytest.mark.parametrize("place", ["facts", "point", "server"])
def test_a_simulated_run_is_known_from_any_of_the_places_that_say_so(run, place):
    assert not is_simulated(run)
    if place == "facts":
        facts = run.read_json("facts.json")
        facts["facts"]["gpus"] = [{"name": "Simulated H200"}]
        (run.folder / "facts.json").write_text(json.dumps(facts))
    elif place == "point":
        path = next(iter(run.folder.glob("arms/*/*/point-*.meta.json")))
        path.write_text(json.dumps({**json.loads(path.read_text()), "simulated": True}))
    else:
        path = next(iter(run.folder.glob("arms/*/boot-*"))) / "server_info.json"
        path.write_text(json.dumps({"simulated": True}))
    assert is_simulated(run)


@pytest.mark.parametrize("content", [b"\xff\x00", b""])
def test_a_damaged_lock_file_is_named_and_not_traced(run, content):
    (run.folder / "experiment.lock.yaml").write_bytes(content)
    with pytest.raises(UsageError, match=r"experiment\.lock\.yaml"):
        begun_experiment(run)


def test_a_damaged_server_info_is_named_and_not_traced(run):
    path = next(iter(run.folder.glob("arms/*/boot-*"))) / "server_info.json"
    path.write_text('{"simulated": tr')
    with pytest.raises(UsageError, match=r"server_info\.json is damaged"):
        is_simulated(run)
