"""A run folder that was damaged after the run is never read as a good one."""

import gzip
import json
import os
import shutil
from html import unescape

import pytest

from orchestrator.errors import UsageError
from orchestrator.records.begun import begun_experiment
from orchestrator.records.damage import damage
from orchestrator.records.gating import setup_of_run
from orchestrator.records.info import is_simulated
from orchestrator.records.kept import look
from orchestrator.records.results import write_reports
from orchestrator.records.summary import make_summary
from orchestrator.report import html, terminal
from orchestrator.runner.collect import collected_files
from tests.run_folders import write_run

BOOT = "arms/eagle3/boot-1"


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


@pytest.mark.parametrize("digest", [True, False], ids=["digest", "early version"])
def test_records_that_are_no_records_any_more_spoil_their_point_and_nothing_else(tmp_path, digest):
    run = write_run(tmp_path, "20260101-000000-trial-0001", sweep=(1,), arms=("baseline", "eagle3"))
    damage = [b"\xff", b"7\n", b"}\n", b"{}\n"][
        : 4 if digest else 3
    ]  # a whole object is told by the digest alone
    paths = sorted(run.folder.glob("arms/*/*/point-00-c1.jsonl"))
    for path, added in zip(paths, damage, strict=False):
        path.write_bytes(added + path.read_bytes())
    for meta in run.folder.glob("arms/*/*/*.meta.json") if not digest else ():
        kept = {key: value for key, value in json.loads(meta.read_text()).items() if key != "records_sha256"}
        meta.write_text(json.dumps(kept))
    boots = [boot for point in points_of(run) for boot in point["boots"]]
    damaged = [any("records_damaged" in reason for reason in boot["reasons"]) for boot in boots]
    assert damaged == [n < len(damage) for n in range(6)]


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


@pytest.mark.parametrize("content", [b"\xff\x00", b"", b"\n"])
def test_a_damaged_lock_file_is_named_and_not_traced(run, content):
    (run.folder / "experiment.lock.yaml").write_bytes(content)
    with pytest.raises(UsageError, match=r"experiment\.lock\.yaml"):
        begun_experiment(run)


LOSSES = (
    ("facts.json", "the node, its GPUs, driver and SGLang tree are unknown"),
    ("plan.json", "it is unknown which boots, patches and workers were planned"),
    ("outcome.json", "it is unknown how the run ended"),
    ("events.jsonl", "the order of boots is unknown"),
    ("gate.json", "it is unknown what the gate said"),
    (f"{BOOT}/server_info.json", "its boot's server arguments, admission limit and worker are unknown"),
    (f"{BOOT}/server.log", "nothing of this boot over time is known"),
    (f"{BOOT}/server.log.gz", "nothing of this boot over time is known"),
    (f"{BOOT}/gpu.csv", "clocks, throttling and other processes on the GPUs"),
    (f"{BOOT}/point-00-c1.meta.json", "this measurement is left out"),
    (f"{BOOT}/point-00-c1.jsonl", "this measurement has no request, and does not count"),
)


def reports(run):
    summary, info = write_reports(run, begun_experiment(run), formats=("html", "md"))
    return summary, info, (terminal.to_text(summary, info, width=5000), unescape(html.render(summary, info)))


@pytest.mark.parametrize("content", [b"", b'{"facts', b"\x1f\x8b\xff"], ids=["empty", "cut", "not text"])
def test_every_lost_file_is_named_in_the_report_with_what_cannot_be_said(run, content):
    for name, _ in LOSSES:
        (run.folder / name).write_bytes(content)
    summary, info, texts = reports(run)
    for name, loss in LOSSES:
        if content and name.endswith((".log", ".csv", "c1.jsonl")):
            continue  # any text is a log; records that are not what was stored are a reason against their point
        assert [
            line for line in info.damage if line.startswith((f"{name} is empty", f"{name} is damaged"))
        ], name
        assert all(loss in text for text in texts), name
    assert all("DAMAGED RUN FOLDER" in text for text in texts)
    assert "unknown: facts.json is lost" in texts[1]
    assert summary["arms"]["eagle3"]["points"][0]["ok"] == 8  # of boots 2 and 3


WRONG_PLANS = (
    {"arms": 3},
    {"arms": [3]},
    {"arms": [{"name": "eagle3"}]},
    {"boots": "eagle3"},
    {"boots": [{"arm": "eagle3", "boot": 1, "shares": 1}]},
    {"steps": {"a": 1}},
    {"steps": [{"do": {"type": "RunPoint", "arm": "eagle3"}}]},
    {"left": [["eagle3", 1, 0]]},
    {"unsupported": ["eagle3"]},
    {"worker_paths": {"eagle3": "v2"}},
    {"warnings": "a"},
)


@pytest.mark.parametrize(
    "value",
    [
        "{}",
        "[]",
        "null",
        "[" * 100_000,
        '{"facts": null, "plan": [], "outcome": 1}',
        *(json.dumps({"plan": plan}) for plan in WRONG_PLANS),
    ],
    ids=lambda value: value[:60],
)
def test_files_of_the_wrong_shape_are_as_good_as_lost(run, value):
    for name in ("facts.json", "plan.json", "outcome.json"):
        (run.folder / name).write_text(value)
    damage = reports(run)[1].damage
    assert [line.split()[0] for line in damage] == ["facts.json", "plan.json", "outcome.json"]


WRONG_VALUES = [
    {"concurrency": "4"},
    {"concurrency": -4},
    {"index": -1},
    {"boot": True},
    {"server_before": "x"},
    {"server_after": [1]},
    {"load": [1]},
    {"load": {"client": {"lag_ns": {"p99": "1"}}}},
    {"load": {"summary": {"chunk_gap_ns": {"mean": []}}}},
    *({key: {"a": []}} for key in ("concurrency", "index", "boot", "arm", "warmup_requests", "shared_boot")),
]


def test_a_measurement_with_a_value_of_a_wrong_type_is_as_good_as_lost(tmp_path):
    run = write_run(tmp_path, "20260101-000000-trial-0001", sweep=(1,), arms=("baseline", "eagle3"))
    path = run.folder / BOOT / "point-00-c1.meta.json"
    good = json.loads(path.read_text())
    lost = f"{path.relative_to(run.folder)} is damaged: this measurement is left out"
    for wrong in WRONG_VALUES:
        path.write_text(json.dumps(good | wrong))
        assert lost in damage(run), wrong
        assert len(list(run.points())) == 5, wrong
        assert [dropped.why for dropped in look(run).dropped] == [f"{path.name} cannot be read"], wrong
    summary, info = write_reports(run, begun_experiment(run), formats=())
    assert lost in info.damage
    assert summary["arms"]["eagle3"]["points"][0]["ok"] == 8  # of boots 2 and 3


def test_a_pipe_under_the_name_of_a_file_is_damage_and_waited_for_by_nobody(run):
    for name in ("facts.json", "plan.json"):
        (run.folder / name).unlink()
        os.mkfifo(run.folder / name)
    damage = reports(run)[1].damage
    assert [line.split(":")[0] for line in damage] == ["facts.json is damaged", "plan.json is damaged"]


def test_files_that_are_missing_are_named_too(run):
    for name in (
        "facts.json",
        "plan.json",
        "events.jsonl",
        f"{BOOT}/server_info.json",
        f"{BOOT}/point-00-c1.jsonl",
    ):
        (run.folder / name).unlink()
    damage = reports(run)[1].damage
    assert [" ".join(line.split(":")[0].split()) for line in damage] == [
        "facts.json is missing",
        "plan.json is missing",
        "outcome.json is missing",
        "events.jsonl is missing",
        f"{BOOT}/point-00-c1.jsonl is missing",
        f"{BOOT}/server_info.json is missing",
    ]


def test_a_whole_folder_has_nothing_to_name_and_the_torn_last_line_of_a_killed_run_is_no_damage(run):
    with (run.folder / "events.jsonl").open("a") as events:
        events.write('{"event": "poi')
    assert damage(run, ended=True) == ()


def test_events_with_values_of_wrong_types_are_passed_over(run):
    whole = make_summary(run, begun_experiment(run))
    wrong = {"arm": [], "boot": "x", "index": "x", "concurrency": {}}
    right = {"arm": "eagle3", "boot": 1, "index": 0, "concurrency": 1}
    with (run.folder / "events.jsonl").open("a") as events:
        for event in ("started", "point", "point_done", "collected", "switched"):
            for key, value in wrong.items():
                events.write(
                    json.dumps({"event": event, "t": "2026-01-01T00:00:00Z", **right, key: value}) + "\n"
                )
        events.write('{"event": []}\n{"event": "collected", "file": 3}\n{"event": "point", "arm": null}\n')
    assert make_summary(run, begun_experiment(run)) == whole
    write_reports(run, begun_experiment(run), formats=())
    assert collected_files(run) == frozenset()


def test_a_comparison_refuses_a_folder_whose_facts_are_lost(run):
    (run.folder / "facts.json").write_text("{}")
    with pytest.raises(UsageError, match=r"facts\.json is damaged: it has no facts"):
        setup_of_run(run, begun_experiment(run), make_summary(run, begun_experiment(run)))


def measured_as_told(run):
    """The events that a run writes of its points, which `write_run` leaves out."""
    for point in run.points():
        where = {"arm": point.arm, "boot": point.boot, "index": point.index, "concurrency": point.concurrency}
        run.event("point_done", where)


def test_the_folder_of_an_arm_that_is_gone_is_named_and_its_loss_is_the_answer(run):
    measured_as_told(run)
    shutil.rmtree(run.folder / "arms/baseline")
    shutil.rmtree(run.folder / "arms/eagle3/boot-2")
    for path in (run.folder / "arms/dynamic/boot-1").glob("point-00-c1.*"):
        path.unlink()
    _, info, texts = reports(run)
    assert [line.split(":")[0] for line in info.damage if line.startswith("arms")] == [
        "arms/baseline is missing",
        "arms/dynamic/boot-1/point-00-c1.meta.json is missing",
        "arms/eagle3/boot-2 is missing",
    ]
    assert "arms/baseline is missing: 9 measurements are left out" in texts[0]
    assert texts[0].startswith("No verdict, the records of baseline are lost: ")


def collected(run, *names):
    for name in names:
        path = run.folder / BOOT / name
        path.write_text(f"{name}\n" * 9)
        run.event("collected", {"file": f"{BOOT}/{name}", "bytes": path.stat().st_size})


def test_logs_and_samples_that_came_over_and_are_gone_are_named(run):
    collected(run, "server.log", "gpu.csv")
    log, samples = (run.folder / BOOT / name for name in ("server.log", "gpu.csv"))
    (run.folder / BOOT / "server.log.gz").write_bytes(gzip.compress(log.read_bytes()))
    log.unlink()
    assert damage(run, ended=True) == ()  # packed
    (run.folder / BOOT / "server.log.gz").unlink()
    samples.write_text("gpu")
    assert [line.split(": ")[0] for line in damage(run, ended=True)] == [
        f"{BOOT}/gpu.csv is cut short",
        f"{BOOT}/server.log is missing",
    ]
    samples.unlink()
    assert [line.split(",")[0] for line in damage(run, ended=True)] == [
        f"{BOOT}/gpu.csv is missing: clocks",
        f"{BOOT}/server.log is missing: nothing of this boot over time is known",
    ]
    run.event("started", {"arm": "eagle3", "boot": 1})
    assert damage(run, ended=True) == ()  # the next start's did not come over yet


def test_events_that_are_cut_though_the_run_told_its_end_are_named(run):
    run.write_json("outcome.json", {"outcome": {"state": "ok"}})
    assert damage(run) == ()
    events = run.folder / "events.jsonl"
    events.write_bytes(events.read_bytes()[:-9])
    assert [line.split(":")[0] for line in damage(run)] == ["events.jsonl is cut short"]


@pytest.mark.parametrize("told", [True, False], ids=["told", "untold"])
def test_a_file_in_the_place_of_a_boots_folder_is_named(run, told):
    if told:
        measured_as_told(run)
    shutil.rmtree(run.folder / BOOT)
    (run.folder / BOOT).touch()
    (run.folder / "arms/eagle3/boot-1.tar").touch()  # somebody's own
    count = "3 measurements are left out, and " if told else ""
    logs = "the server logs and samples of its boots are unknown"
    assert damage(run, ended=True) == (f"{BOOT} is no folder: {count}{logs}",)


def test_a_report_of_a_run_without_any_record_left_is_refused_and_replaces_nothing(run):
    measured_as_told(run)
    reports(run)
    before = (run.folder / "summary.json").read_bytes()
    shutil.rmtree(run.folder / "arms")
    with pytest.raises(
        UsageError, match=r"no measurement is left in .*: 27 that were made are gone"
    ) as error:
        reports(run)
    assert "Lost: arms is missing: 27 measurements are left out" in "\n".join(error.value.details)
    assert (run.folder / "summary.json").read_bytes() == before


def test_boots_that_an_ended_run_planned_are_missed_without_its_events_too(run):
    run.write_json("outcome.json", {"outcome": {"state": "ok"}})
    (run.folder / "events.jsonl").unlink()
    shutil.rmtree(run.folder / "arms/eagle3/boot-2")
    assert [line.split(":")[0] for line in damage(run)] == [
        "events.jsonl is missing",
        "arms/eagle3/boot-2 is missing",
    ]


def test_points_that_were_measured_in_the_server_of_another_boot_miss_no_file_of_their_own(run):
    for path in run.folder.glob("arms/*/boot-*/point-*.meta.json"):
        shared = {"shared_boot": {"started_as": "eagle3", "boot": 1}}
        path.write_text(json.dumps({**json.loads(path.read_text()), **shared}))
    for path in run.folder.glob("arms/*/boot-*/server_info.json"):
        if path.parent != run.folder / BOOT:
            path.unlink()
    assert damage(run, ended=True) == ()
    (run.folder / BOOT / "server_info.json").unlink()
    assert [line.split()[0] for line in damage(run, ended=True)] == [f"{BOOT}/server_info.json"]


def test_files_that_cannot_be_written_are_told_and_the_others_are(run):
    (run.folder / "summary.json").mkdir()
    refused = []
    summary, _ = write_reports(run, begun_experiment(run), formats=("md",), unwritten=refused.append)
    assert summary["arms"]["eagle3"]["points"]
    assert [type(error) for error in refused] == [IsADirectoryError]
    assert (run.folder / "report.md").is_file()
    with pytest.raises(IsADirectoryError):
        write_reports(run, begun_experiment(run))
