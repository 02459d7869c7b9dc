"""A failure card names the first error's class, its likely cause and fix, and shows twenty lines of the right rank."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from orchestrator.analysis.failure import CLASSES, failure_card, replay_command
from orchestrator.demo.engine.resolve import model_config

LOGS = yaml.safe_load((Path(__file__).parent / "failure" / "logs.yaml").read_text())


def card(case: dict):
    return failure_card(
        case["log"],
        arm="eagle3",
        boot=1,
        exit_code=case.get("exit_code"),
        signal=case.get("signal"),
        reason=case.get("reason", ""),
        patched=case.get("patched"),
    )


@pytest.mark.parametrize("case", LOGS, ids=[case["title"] for case in LOGS])
def test_each_failure_is_known_by_its_class(case):
    found = card(case)
    assert found.failure == case["failure"]
    if "rank" in case:
        assert found.rank == case["rank"]
    assert case.get("says", "") in "\n".join((found.title, found.cause, found.fix))
    assert found.cause
    assert found.fix
    assert "{" not in found.title


def test_an_arm_without_a_patch_is_never_advised_to_run_without_one():
    found = [(case["title"], card({**case, "patched": False}).fix) for case in LOGS]
    assert [title for title, fix in found if "without the" in fix or "without its" in fix] == []


def test_the_words_of_the_demos_engine_for_a_wrong_model_path_are_known():
    with pytest.raises(ValueError, match="nowhere") as error:
        model_config("/nowhere/at-all")
    assert failure_card(f"ValueError: {error.value}", arm="a", boot=1).failure == "model_path"


def test_every_class_has_a_log():
    assert {case["failure"] for case in LOGS} == set(CLASSES)


def test_the_excerpt_is_at_most_twenty_lines_of_the_failing_rank_around_the_error():
    noise = "".join(
        f"[2026-01-02 03:06:00 TP{rank}] Decode batch, step {step}\n" for step in range(50) for rank in (0, 1)
    )
    log = noise + "[2026-01-02 03:07:00 TP1] Scheduler hit an exception: Traceback (most recent call last):\n"
    log += "ValueError: too many values to unpack (expected 2)\n"
    log += "[2026-01-02 03:07:01 TP0] still fine\n"
    found = failure_card(log, arm="eagle3", boot=1)
    assert len(found.excerpt) == 20
    assert found.excerpt[-1].startswith("ValueError: too many values")
    assert found.line == 102
    assert "still fine" not in "\n".join(found.excerpt)
    assert all("step" in line or "exception" in line or "ValueError" in line for line in found.excerpt)


def test_a_line_of_a_megabyte_is_cut():
    found = failure_card("RuntimeError: " + "x" * 1_000_000, arm="eagle3", boot=1)
    assert len(found.title) == len(found.excerpt[0]) == 300


def test_without_an_error_the_last_lines_are_shown():
    found = failure_card([f"line {i}" for i in range(30)], arm="a", boot=2, exit_code=3)
    assert found.excerpt[-1] == "line 29"
    assert len(found.excerpt) == 20
    assert found.title == "the server exited with code 3 and logged no error"


def test_the_replay_runs_one_boot_of_one_arm_at_one_concurrency_and_can_be_pasted():
    assert (
        replay_command("my experiments/k25.yaml", "eagle3", 10)
        == "dynspec run 'my experiments/k25.yaml' --arm eagle3 --set sweep.repeats=1 --set 'sweep.concurrency=[10]'"
    )
    assert (
        replay_command("k25.yaml", "eagle3", None)
        == "dynspec run k25.yaml --arm eagle3 --set sweep.repeats=1"
    )


def test_what_was_logged_into_a_progress_bars_line_stands_apart():
    bar = "Loading safetensors:   0% | 0/4 [00:00<00:04, 1.0it/s]\r"
    bar += "Loading safetensors:  50% | 2/4 [00:02<00:02, 1.0it/s]"
    log = [
        "[2026-01-02 03:04:05] Load weight begin. avail mem=139.82 GB\n",
        f"{bar}[2026-01-02 03:04:06] Scheduler hit an exception: Traceback (most recent call last):\n",
        "torch.OutOfMemoryError: CUDA out of memory.\n",
    ]
    card = failure_card(log, arm="eagle3", boot=1)
    assert card.failure == "oom_load"
    assert card.line == 3  # of the file
    assert card.excerpt[1:3] == (
        "Loading safetensors:  50% | 2/4 [00:02<00:02, 1.0it/s]",
        "Scheduler hit an exception: Traceback (most recent call last):",
    )
