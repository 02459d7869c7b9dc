"""From a run folder to its report: every point is judged, every failed boot explained; a real run reads the same."""

from __future__ import annotations

import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.model.result import Outcome
from orchestrator.records.begun import begun_experiment
from orchestrator.records.boots import failed_boots
from orchestrator.records.info import run_info
from orchestrator.records.results import claim_error, conclude, write_reports
from orchestrator.records.summary import make_summary
from orchestrator.report import html
from orchestrator.store import RunStore
from tests.run_folders import write_run

EXAMPLE = Path(__file__).parents[1] / "results" / "examples" / "h200-correct-0.5.11"


@pytest.fixture
def example(tmp_path: Path) -> RunStore:
    """The committed run of a real GPU, in a folder that may be written to."""
    shutil.copytree(EXAMPLE, tmp_path / EXAMPLE.name)
    return RunStore.open(tmp_path, EXAMPLE.name)


def summary(store: RunStore) -> dict:
    return make_summary(store, begun_experiment(store))


def markdown(store: RunStore) -> str:
    return (store.folder / "report.md").read_text()


def point(found: dict, arm: str, index: int) -> dict:
    return next(item for item in found["arms"][arm]["points"] if item["index"] == index)


class TestARealRun:
    def test_every_point_of_it_is_valid(self, example):
        found = summary(example)
        assert all(item["valid"] for arm in found["arms"].values() for item in arm["points"])
        assert claim_error(found) is None

    def test_plain_points_have_no_accept_length_although_requests_say_one(self, example):
        plain = point(summary(example), "v2-step", 2)["metrics"]
        assert "accept_length" not in plain
        assert plain["spec_share"]["value"] == 0

    def test_speculative_points_have_the_patchs_own_accept_length(self, example):
        metrics = point(summary(example), "v2-step", 1)["metrics"]
        assert metrics["accept_length"]["value"] == pytest.approx(3.51, abs=0.01)
        assert metrics["spec_share"]["value"] == 1

    def test_the_clients_own_lag_is_known(self, example):
        assert point(summary(example), "none", 0)["metrics"]["client_lag_p99"]["value"] < 0.005

    def test_greedy_text_is_set_against_the_baselines(self, example):
        equal = {item["arm"]: item["share"] for item in summary(example)["equality"]}
        assert equal["v2-step"] == equal["v1-step"] == 1.0
        assert equal["v2-lazy"] == pytest.approx(183 / 184)
        assert "gives the baseline's output in 183 of 184 comparisons (99.4%)" in markdown(example)

    def test_arguments_that_speculation_sets_are_notes_on_the_arm(self, example):
        notes = summary(example)["arms"]["v1-step"]["notes"]
        assert any(note.startswith("disable_overlap_schedule is True") for note in notes)

    def test_provenance_names_the_gpu_the_tree_and_the_patches(self, example):
        info = run_info(example, begun_experiment(example))
        assert info.provenance["GPUs"] == "1 x NVIDIA H200 (driver 580.159.04): GPU 0 of the node's 2"
        assert info.provenance["tree"].startswith("sglang 0.5.11")
        assert info.provenance["patches of v2-step"] == "dynamic_disable"
        assert info.workers["v1-step"].startswith("v1: ")

    def test_its_packed_logs_give_the_switches_over_time(self, example):
        traces = {trace.arm: trace for trace in run_info(example, begun_experiment(example)).traces}
        assert len(traces["v2-step"].switches) == 12
        assert traces["none"].switches == ()
        assert max(traces["none"].running.values) == 48

    def test_the_committed_report_is_what_the_code_makes_of_the_records(self, example):
        """Byte for byte but for the folder's place; `dynspec report results/examples/...` renews it."""
        write_reports(example, begun_experiment(example), formats=("html", "md", "junit"))
        for name in ("report.md", "summary.json", "summary.csv", "bench_serving.jsonl", "junit.xml"):
            assert (example.folder / name).read_text() == (EXAMPLE / name).read_text(), name


class TestClaims:
    def test_a_good_run_can_be_claimed_and_has_all_its_files(self, tmp_path):
        store = write_run(tmp_path, "r1")
        experiment = begun_experiment(store)
        done = conclude(store, experiment)
        assert (done.error, done.gate) == (None, None)
        write_reports(store, experiment, conclusion=done, formats=("html", "junit"))
        names = {
            "summary.json",
            "summary.csv",
            "bench_serving.jsonl",
            "report.md",
            "report.html",
            "junit.xml",
        }
        assert names <= {path.name for path in store.folder.iterdir()}

    def test_one_boot_an_arm_is_an_estimate_and_no_fault(self, tmp_path):
        store = write_run(tmp_path, "r1", boots=1)
        assert conclude(store, begun_experiment(store)).error is None

    def test_a_patch_that_never_switched_spoils_its_whole_arm(self, tmp_path):
        store = write_run(tmp_path, "r1", acts=False)
        found = summary(store)
        low = point(found, "dynamic", 0)  # there it speculated, as it should
        assert not low["valid"]
        assert (
            "patch_never_acted: the sweep crosses the threshold, and no step of this boot was plain"
            in low["reasons"]
        )
        assert point(found, "eagle3", 2)["valid"]

    def test_an_arm_without_a_valid_point_leaves_nothing_to_claim(self, tmp_path):
        store = write_run(tmp_path, "r1", acts=False)
        error = conclude(store, begun_experiment(store)).error
        assert error.exit_code == 6
        assert error.details[0] == "dynamic has no valid point (patch_never_acted)"

    def test_arms_that_were_left_out_on_purpose_are_not_missed(self, tmp_path):
        store = write_run(tmp_path, "r1", arms=("baseline", "eagle3"))
        assert list(summary(store)["arms"]) == ["baseline", "eagle3"]
        assert conclude(store, begun_experiment(store)).error is None

    def test_a_server_argument_that_nobody_asked_for_spoils_the_points(self, tmp_path):
        store = write_run(tmp_path, "r1", boots=1)
        path = store.folder / "arms/eagle3/boot-1/server_info.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "max_running_requests": 48}))
        assert (
            "max_running_requests is 48 here and 64 in baseline"
            in point(summary(store), "eagle3", 0)["reasons"][0]
        )

    def test_a_torn_record_and_a_torn_event_cost_nothing_else(self, tmp_path):
        store = write_run(tmp_path, "r1", boots=1)
        with (store.folder / "events.jsonl").open("a") as file:
            file.write('{"t": "2026-01-0')
        with (store.folder / "arms/eagle3/boot-1/point-02-c16.jsonl").open("a") as file:
            file.write('{"i": 64, "phase"')
        assert point(summary(store), "eagle3", 2)["attempted"] == 64


OUTCOME = Outcome(1, "failed", "arm eagle3, boot 2: the server died", True, "", "2026-01-02T03:04:05Z")


class TestFailures:
    def crashed(self, tmp_path: Path, *events: tuple[str, dict], log: str = "") -> RunStore:
        store = write_run(tmp_path, "r1", boots=1)
        store.event("started", {"arm": "eagle3", "boot": 2})
        for kind, data in events:
            store.event(kind, {"arm": "eagle3", "boot": 2, **data})
        path = store.boot_path("eagle3", 2, "server.log.gz")
        store.write_bytes(path, gzip.compress(log.encode()))
        return store

    def test_a_crash_at_a_point_has_a_card_with_cause_and_replay(self, tmp_path):
        log = CRASH
        ended = ("boot_failed", {"exit_code": None, "signal": 9})
        store = self.crashed(tmp_path, ("point", {"index": 1, "concurrency": 10}), ended, log=log)
        (card,) = run_info(store, begun_experiment(store), OUTCOME).failures
        assert (card.arm, card.boot, card.concurrency, card.failure) == ("eagle3", 2, 10, "graph_size")
        assert card.replay.endswith("--arm eagle3 --set sweep.repeats=1 --set 'sweep.concurrency=[10]'")
        assert "experiment.lock.yaml" in card.replay

    def test_a_kill_without_a_word_is_told_by_its_signal(self, tmp_path):
        store = self.crashed(tmp_path, ("boot_failed", {"exit_code": None, "signal": 9}))
        (card,) = run_info(store, begun_experiment(store), OUTCOME).failures
        assert (card.failure, card.concurrency) == ("oom_killer", None)

    def test_a_boot_that_was_up_when_the_run_failed_is_one(self, tmp_path):
        store = self.crashed(tmp_path, ("point", {"index": 1, "concurrency": 4}))
        assert [(b.arm, b.boot, b.concurrency) for b in failed_boots(store, failed=True)] == [
            ("eagle3", 2, 4)
        ]

    def test_a_boot_that_was_up_when_a_signal_came_is_none(self, tmp_path):
        assert failed_boots(self.crashed(tmp_path), failed=False) == ()

    def test_a_boot_that_was_up_when_the_connection_was_lost_is_none(self, tmp_path):
        lost = {"text": "the connection to the node was lost: gpu-1: gone"}
        store = self.crashed(tmp_path, ("point", {"index": 1, "concurrency": 4}), ("connection_lost", lost))
        assert failed_boots(store, failed=True) == ()

    def test_a_run_that_left_its_node_dirty_says_why_it_ended(self, tmp_path):
        store = self.crashed(tmp_path, ("failed", {"text": "the connection to the node was lost"}))
        dirty = replace(OUTCOME, state="dirty", message="the node could not be given back")
        assert (
            run_info(store, begun_experiment(store), dirty).message == "the connection to the node was lost"
        )
        store.event("planned", {})
        assert run_info(store, begun_experiment(store), dirty).message == ""

    def test_a_boot_without_a_log_or_a_reason_leads_to_the_logs_of_its_own_run(self, tmp_path):
        store = write_run(tmp_path, "r1", boots=1)
        store.event("started", {"arm": "eagle3", "boot": 2})
        (card,) = run_info(store, begun_experiment(store), OUTCOME).failures
        assert card.fix.endswith("dynspec logs r1")

    def test_a_boot_that_a_resumed_run_brought_to_its_end_is_none(self, tmp_path):
        store = self.crashed(tmp_path, ("boot_failed", {}), ("started", {}), ("stopped", {}))
        assert failed_boots(store, failed=False) == ()

    def test_a_run_that_never_measured_has_a_report_too(self, tmp_path):
        store = self.crashed(tmp_path, ("boot_failed", {"exit_code": 1, "signal": None}), log=CRASH)
        for path in store.folder.glob("arms/*/boot-*/point-*"):
            path.unlink()
        found, info = write_reports(store, begun_experiment(store), outcome=OUTCOME, formats=("html",))
        assert "No verdict, eagle3 failed" in html.render(found, info)


CRASH = """\
[2026-01-02 03:04:05] Capture cuda graph end. Time elapsed: 3 s
[2026-01-02 03:04:06] The server is fired up and ready to roll!
[2026-01-02 03:04:07 TP0] Scheduler hit an exception: Traceback (most recent call last):
  File "eagle_worker.py", line 1, in forward
RuntimeError: The size of tensor a (160) must match the size of tensor b (10) at non-singleton dimension 0
"""
