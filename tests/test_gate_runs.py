"""Stored runs against each other, as a CI job calls it: what is compared, what is refused, which exit code."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import main
from orchestrator.errors import UsageError
from orchestrator.model.result import Outcome
from orchestrator.records.begun import begun_experiment
from orchestrator.records.gating import good_runs, pointer, remember_good, require_reference
from orchestrator.records.results import conclude, keep_as_good, write_reports
from orchestrator.redact import Redactor
from orchestrator.runner.events import Events
from orchestrator.runner.finish import Ending
from orchestrator.store import RunStore
from tests.run_folders import plain_rate
from tests.run_folders import write_run as write_records

GATE = "gate: {metric: output_tps, max_drop: 3%, against: last-good}\n"
RUN_2 = "20260102-000000-trial-0002"
OK = Outcome(0, "ok", "", True, "", "")


def dynspec(results_folder: Path, *words: str, results: bool = True) -> subprocess.CompletedProcess[str]:
    """The command line from its words to its exit code, inside this process: starting one costs most of a second."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["dynspec", *words, *(["--results", str(results_folder)] if results else [])]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as ended:
        return subprocess.CompletedProcess(sys.argv, int(ended.code or 0), out.getvalue(), err.getvalue())
    finally:
        sys.argv = before
    raise AssertionError("main always exits")


def dynspec_process(results: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The same as a process of its own, as a CI job sees it."""
    source = "from orchestrator.cli import main; main()"
    command = [sys.executable, "-c", source, *words, "--results", str(results)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def slower(arm: str, concurrency: int) -> float:
    return plain_rate(arm, concurrency) * (0.9 if arm == "eagle3" else 1.0)


def write_run(results: Path, run_id: str, outcome: Outcome | None = OK, **options: Any) -> RunStore:
    """A run as it ended; `outcome` None: it was cut short."""
    store = write_records(results, run_id, **options)
    if outcome is not None:
        store.write_json("outcome.json", {"outcome": outcome})
    return store


@pytest.fixture
def good(tmp_path: Path) -> RunStore:
    """The reference: a run that was accepted."""
    store = write_run(tmp_path, "20260101-000000-trial-0001")
    remember_good(store, begun_experiment(store))
    return store


class TestGate:
    def test_an_equal_run_passes_and_becomes_the_reference(self, good, tmp_path):
        store = write_run(tmp_path, "20260102-000000-trial-0002")
        done = dynspec(tmp_path, "gate", store.run_id)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"gate passed: output_tps of {store.run_id} against {good.run_id}")
        assert (tmp_path / "last-good" / "trial@gpu-1").read_text() == f"{store.run_id}\n"

    def test_a_slower_arm_is_a_regression_and_the_reference_stays(self, good, tmp_path):
        store = write_run(tmp_path, "20260102-000000-trial-0002", rate=slower)
        done = dynspec_process(tmp_path, "gate", store.run_id, "--against", "last-good")
        assert done.returncode == 5
        assert "eagle3: REGRESSION, 10." in done.stdout
        assert "baseline: passed" in done.stdout
        assert pointer(tmp_path, begun_experiment(store)).read_text().strip() == good.run_id

    def test_one_boot_proves_nothing(self, good, tmp_path):
        store = write_run(tmp_path, "20260102-000000-trial-0002", boots=1)
        assert dynspec(tmp_path, "gate", store.run_id).returncode == 6

    def test_unequal_work_is_not_compared_and_the_difference_is_named(self, good, tmp_path):
        store = write_run(tmp_path, "20260102-000000-trial-0002", model="/models/other")
        done = dynspec(tmp_path, "gate", store.run_id)
        assert done.returncode == 6
        assert "model: /models/m / /models/other" in done.stderr

    def test_the_first_run_says_how_it_becomes_the_reference(self, tmp_path):
        store = write_run(tmp_path, "20260102-000000-trial-0002")
        done = dynspec(tmp_path, "gate", store.run_id)
        assert done.returncode == 6
        assert f"dynspec gate {store.folder} --accept" in done.stderr
        assert dynspec(tmp_path, "gate", store.run_id, "--accept").returncode == 0
        assert good_runs(tmp_path, begun_experiment(store)) == [store.run_id]

    def test_the_advice_names_a_run_as_short_as_it_can_be_typed(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        for folder, word in (("results", RUN_2), ("small runs", f"'small runs/{RUN_2}'")):
            write_run(tmp_path / folder, RUN_2)
            done = dynspec(tmp_path / folder, "gate", f"{folder}/{RUN_2}", results=False)
            assert f"dynspec gate {word} --accept" in done.stderr

    @pytest.mark.parametrize("words", [(), ("--against", "rolling")])
    def test_the_only_reference_is_not_told_to_become_one(self, good, tmp_path, words):
        done = dynspec(tmp_path, "gate", good.run_id, *words)
        assert done.returncode == 6
        assert f"{good.run_id} is itself the reference (last-good)" in done.stderr
        assert "the next run of trial on gpu-1 is set against it" in done.stderr
        assert "--accept" not in done.stderr

    def test_a_run_that_claims_nothing_cannot_be_accepted(self, tmp_path):
        store = write_run(tmp_path, "20260102-000000-trial-0002", acts=False)
        assert dynspec(tmp_path, "gate", store.run_id, "--accept").returncode == 6
        done = dynspec(tmp_path, "gate", store.run_id)
        assert (done.returncode, "--accept" in done.stderr) == (6, False)
        assert "this run claims nothing, so it cannot be one" in done.stderr
        assert good_runs(tmp_path, begun_experiment(store)) == []

    @pytest.mark.parametrize("outcome", [None, Outcome(130, "interrupted", "", True, "", "")])
    @pytest.mark.parametrize("words", [(), ("--accept",)])
    def test_a_run_that_was_cut_short_neither_passes_nor_is_accepted(self, good, tmp_path, outcome, words):
        store = write_run(tmp_path, "20260102-000000-trial-0002", outcome)
        done = dynspec(tmp_path, "gate", store.run_id, *words)
        assert done.returncode == 6
        assert "did not come to its end" in done.stderr
        assert good_runs(tmp_path, begun_experiment(store)) == [good.run_id]

    @pytest.mark.parametrize("outcome", [None, Outcome(130, "interrupted", "", True, "", "")])
    def test_nor_is_it_a_reference_that_is_named(self, good, tmp_path, outcome):
        store = write_run(tmp_path, RUN_2, outcome)
        done = dynspec(tmp_path, "gate", good.run_id, "--against", store.run_id)
        assert done.returncode == 6
        assert f"{store.run_id} did not come to its end" in done.stderr
        assert "cannot be a reference" in done.stderr

    def test_a_run_is_no_reference_for_itself(self, good, tmp_path):
        done = dynspec(tmp_path, "gate", good.run_id, "--against", good.run_id)
        assert done.returncode == 2
        assert "is the run itself" in done.stderr

    def test_the_allowed_drop_can_be_said_on_the_command_line(self, good, tmp_path):
        store = write_run(tmp_path, "20260102-000000-trial-0002", rate=slower)
        assert dynspec(tmp_path, "gate", store.run_id, "--max-drop", "15%").returncode == 0
        refused = dynspec(tmp_path, "gate", store.run_id, "--max-drop", "15")
        assert refused.returncode == 2
        assert "write for example --max-drop 3%" in refused.stderr

    def test_a_latency_that_rises_is_a_drop(self, good, tmp_path):
        store = write_run(tmp_path, "20260102-000000-trial-0002", rate=slower)
        done = dynspec(tmp_path, "gate", store.run_id, "--metric", "tpot_p50", "--json")
        assert done.returncode == 5
        arms = {arm["arm"]: arm for arm in json.loads(done.stdout)["arms"]}
        assert arms["eagle3"]["drop"] == pytest.approx(0.11, abs=0.01)

    def test_rolling_takes_all_runs_that_passed(self, good, tmp_path):
        for day in range(2, 6):
            store = write_run(tmp_path, f"2026010{day}-000000-trial-000{day}")
            remember_good(store, begun_experiment(store))
        last = write_run(tmp_path, "20260109-000000-trial-0009", rate=slower)
        done = dynspec(tmp_path, "gate", last.run_id, "--against", "rolling", "--json")
        assert done.returncode == 5
        assert len(json.loads(done.stdout)["references"]) == 5

    def test_a_reference_that_was_deleted_is_no_reference(self, good, tmp_path):
        store = write_run(tmp_path, "20260102-000000-trial-0002")
        shutil.rmtree(good.folder)
        assert "has passed yet" in dynspec(tmp_path, "gate", store.run_id).stderr


class TestThePointer:
    """`last-good/<experiment>@<host>`, as other hands and full or read-only disks leave it."""

    @pytest.fixture
    def blocked(self, tmp_path):
        (tmp_path / "last-good").write_text("no folder\n")
        return write_run(tmp_path, RUN_2)

    def test_a_run_that_cannot_be_accepted_yet_is_told_what_could_not_be_written(self, blocked, tmp_path):
        done = dynspec(tmp_path, "gate", RUN_2, "--accept")
        assert (done.returncode, done.stdout) == (1, "")
        assert (
            f"{RUN_2} is not the reference (last-good): {tmp_path}/last-good/trial@gpu-1 cannot be"
            in done.stderr
        )
        assert f"dynspec gate {blocked.folder} --accept" in done.stderr

    def test_a_gate_that_passes_stays_passed_where_nothing_can_be_written(self, blocked, tmp_path):
        before = write_run(tmp_path, "20260101-000000-trial-0001")
        (blocked.folder / "gate.json").mkdir()
        done = dynspec(tmp_path, "gate", RUN_2, "--against", before.run_id)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("gate passed")
        assert f"dynspec gate {blocked.folder} --accept" in done.stderr
        assert f"gate.json of {RUN_2} cannot be written" in done.stderr

    def test_a_run_that_passes_keeps_its_report_and_outcome_where_the_pointer_cannot_be_written(
        self, tmp_path
    ):
        before = write_run(tmp_path, "20260101-000000-trial-0001")
        store = write_run(tmp_path, RUN_2, more=GATE.replace("last-good", before.run_id))
        (tmp_path / "last-good").write_text("no folder\n")
        heard = []
        events = Events((heard.append,), Redactor({}))
        finished = Ending(begun_experiment(store), store, events, "2026-01-02T00:00:00Z", True).finish(
            None, None
        )
        assert (finished.outcome.exit_code, finished.outcome.state) == (0, "ok")
        assert finished.summary is not None
        (warning,) = [event["text"] for event in heard if event["event"] == "warning"]
        assert "cannot be written" in warning
        assert warning.endswith(f"dynspec gate {store.folder} --accept")

    @pytest.mark.parametrize(
        ("left", "says"),
        [
            ("", "is empty"),
            ("\x00\x1b[31m", "names"),
            ("20250101-000000-gone-0000\n", "names 20250101-000000-gone-0000, and there is no such run"),
            ("../elsewhere\n", "names ../elsewhere, and there is no such run"),
            ("x" * 5000, "and there is no such run"),
            (None, "is gone"),
        ],
    )
    def test_one_that_names_no_run_is_told_with_what_is_taken_instead(self, good, tmp_path, left, says):
        store = write_run(tmp_path, RUN_2)
        path = pointer(tmp_path, begun_experiment(store))
        path.write_text(left) if left is not None else path.unlink()
        done = dynspec(tmp_path, "gate", RUN_2)
        assert done.returncode == 0, done.stderr
        assert done.stderr.startswith(f"dynspec: note: {path} ")
        assert says in done.stderr
        assert f"; the last run before it that passed is {good.run_id}\n" in done.stderr
        assert "\x1b" not in done.stderr

    def test_of_a_first_run_it_is_not_missed(self, tmp_path):
        write_run(tmp_path, RUN_2)
        assert "note" not in dynspec(tmp_path, "gate", RUN_2).stderr


class TestANamedReference:
    """`gate.against` is looked for before anything is measured."""

    @pytest.mark.parametrize("against", ["nosuchrun", "../../etc"])
    @pytest.mark.parametrize("command", ["run", "plan", "validate"])
    def test_that_is_no_run_is_refused_before_connecting(self, tmp_path, command, against):
        words = (f"gate={{against: {against}}}", "node.host=nobody@127.0.0.1:1")
        sets = [word for value in words for word in ("--set", value)]
        done = dynspec(tmp_path, command, "experiments/demo.yaml", *sets)
        assert done.returncode == 2, done.stderr
        assert "gate.against: " in done.stderr
        assert against in done.stderr

    def test_is_not_the_run_that_goes_on(self, good, tmp_path):
        experiment = begun_experiment(write_run(tmp_path, RUN_2, more=GATE.replace("last-good", good.run_id)))
        require_reference(tmp_path, experiment, RUN_2)
        with pytest.raises(UsageError, match="is the run itself"):
            require_reference(tmp_path, experiment, good.run_id)


class TestGateOfAnExperiment:
    def test_it_is_judged_at_the_end_of_the_run_and_keeps_the_run(self, good, tmp_path):
        store = write_run(tmp_path, "20260102-000000-trial-0002", more=GATE)
        experiment = begun_experiment(store)
        done = conclude(store, experiment)
        assert (done.error, done.gate.state) == (None, "pass")
        keep_as_good(store, experiment, done, OK)
        assert good_runs(tmp_path, experiment) == [store.run_id, good.run_id]

    def test_every_report_says_what_the_gate_said_and_keeps_saying_it(self, good, tmp_path):
        store = write_run(tmp_path, "20260102-000000-trial-0002", rate=slower, more=GATE)
        experiment = begun_experiment(store)
        write_reports(store, experiment, conclusion=conclude(store, experiment), formats=("html", "junit"))
        remember_good(
            write_run(tmp_path, "20260103-000000-trial-0003", rate=slower), experiment
        )  # another reference now
        assert dynspec(tmp_path, "report", store.run_id, "--html", "--md", "--junit").returncode == 0
        for name in ("report.html", "report.md", "junit.xml"):
            text = (store.folder / name).read_text().replace("\\", "")
            assert good.run_id in text, name
        assert "**gate REGRESSION: output_tps" in (store.folder / "report.md").read_text().replace("\\", "")

    def test_a_regression_outranks_a_missing_claim(self, good, tmp_path):
        store = write_run(tmp_path, "20260102-000000-trial-0002", rate=slower, acts=False, more=GATE)
        assert conclude(store, begun_experiment(store)).error.exit_code == 5

    @pytest.mark.parametrize("against", ["last-good", "20250101-000000-gone-0000"])
    def test_without_its_reference_what_was_measured_stays_measured(self, tmp_path, against):
        more = GATE.replace("last-good", against)
        store = write_run(tmp_path, "20260102-000000-trial-0002", more=more)
        done = conclude(store, begun_experiment(store))
        assert (done.error.exit_code, done.gate) == (6, None)
        assert len(done.summary["arms"]) == 3

    def test_an_interrupted_run_never_becomes_the_reference(self, good, tmp_path):
        store = write_run(tmp_path, "20260102-000000-trial-0002", more=GATE)
        experiment = begun_experiment(store)
        keep_as_good(
            store, experiment, conclude(store, experiment), Outcome(130, "interrupted", "", True, "", "")
        )
        assert good_runs(tmp_path, experiment) == [good.run_id]


def test_accept_is_not_given_with_what_it_would_leave_out(tmp_path):
    done = dynspec(tmp_path, "gate", "any", "--accept", "--max-drop", "3%")
    assert (done.returncode, "--accept compares nothing" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (("--ssh-config", "nope"), "--ssh-config: no file nope"),
        (("--ssh-config", "~nobody-here/x"), "--ssh-config: no file ~nobody-here/x"),
        (("--host-key", "foo"), "--host-key: 'foo' is no public key"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused_by_its_own_name(tmp_path, option, says):
    done = dynspec(tmp_path, "doctor", "gpu-x", *option, results=False)
    assert (done.returncode, says in done.stderr, "node." in done.stderr) == (2, True, False)


@pytest.mark.parametrize("command", [("gate", "none"), ("report", "none"), ("status", "gpu-x:0")])
def test_a_refusal_is_an_answer_for_programs_too(tmp_path, command):
    node = command[0] == "status"
    done = dynspec(tmp_path, *command, "--json", results=not node)
    error = json.loads(done.stdout)["error"]
    assert error["exit_code"] == done.returncode == 2
    assert f"dynspec: {error['message']}" in done.stderr


class TestCompare:
    def test_each_arm_is_better_worse_or_inside_the_noise(self, good, tmp_path):
        store = write_run(tmp_path, "20260102-000000-trial-0002", rate=slower)
        done = dynspec(tmp_path, "compare", store.run_id, good.run_id)
        assert done.returncode == 0, done.stderr
        assert "eagle3: worse, -10%" in done.stdout
        assert "baseline: inside the noise" in done.stdout

    def test_what_differs_in_the_set_ups_comes_first(self, good, tmp_path):
        store = write_run(tmp_path, "20260102-000000-trial-0002")
        facts = json.loads((store.folder / "facts.json").read_text())
        facts["facts"]["tree"]["version"] = "0.5.12"
        (store.folder / "facts.json").write_text(json.dumps(facts))
        lines = dynspec(tmp_path, "compare", good.run_id, store.run_id).stdout.splitlines()
        assert lines[1:3] == ["unlike in (A / B):", "  tree: sglang 0.5.11 / sglang 0.5.12"]

    def test_as_json_it_has_each_point(self, good, tmp_path):
        store = write_run(tmp_path, "20260102-000000-trial-0002", rate=slower)
        done = json.loads(dynspec(tmp_path, "compare", store.run_id, good.run_id, "--json").stdout)
        assert done["arms"]["eagle3"]["verdict"] == "worse"
        assert [point["concurrency"] for point in done["arms"]["eagle3"]["points"]] == [1, 4, 16]

    def test_without_a_point_that_counts_in_both_nothing_is_claimed(self, good, tmp_path):
        store = write_run(tmp_path, "20260102-000000-trial-0002", outcome=None, sweep=(1,), boots=1)
        for records in store.folder.glob("arms/*/*/point-*.jsonl"):
            records.write_bytes(b"\xff")
        done = dynspec(tmp_path, "compare", store.run_id, good.run_id)
        assert done.returncode == 6, done.stdout
        assert "eagle3: nothing to compare" in done.stdout
        assert f"{store.run_id} did not come to its end (it has no outcome)" in done.stdout
        assert "no arm has a point that counts in both runs" in done.stderr

    def test_a_run_is_not_compared_with_itself_by_whatever_name(self, good, tmp_path):
        done = dynspec(tmp_path, "compare", good.run_id, str(good.folder))
        assert done.returncode == 2
        assert "are one run" in done.stderr

    def test_an_unknown_metric_is_refused_with_those_there_are(self, good, tmp_path):
        done = dynspec(tmp_path, "compare", good.run_id, good.run_id, "--metric", "tps")
        assert done.returncode == 2
        assert "one of: output_tps" in done.stderr
