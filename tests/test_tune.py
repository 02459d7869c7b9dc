"""A threshold from the repetitions of one boot: one, never, always, or not told."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.analysis.summary import summarise
from orchestrator.analysis.tune import PLAIN, SPECULATING, tuned
from orchestrator.cli.tune import answer_lines, tune
from orchestrator.cli.words import lock_wait_s
from orchestrator.config import load_experiment
from orchestrator.errors import UsageError
from orchestrator.model.experiment import Arm
from orchestrator.model.result import PointResult, RunInfo
from orchestrator.native_adaptive import captured_batch_sizes
from orchestrator.report.answer import answer
from orchestrator.runner.tuning import tuned_json, tuning_overrides, undecided, without_own_notes

SWEEP = (1, 4, 16, 64)
ARM = Arm("a", {"speculative-num-steps": 3, "speculative-eagle-topk": 1, "cuda-graph-max-bs": 64}, {})


def points(gains, blocks=5, noise=0.01, spoiled=()):
    """`gains`: per concurrency speculating / plain."""
    rng = random.Random(7)
    found = []
    for block in range(1, blocks + 1):
        for index, concurrency in enumerate(SWEEP):
            plain = 100.0 * concurrency**0.8
            for arm, rate in ((PLAIN, plain), (SPECULATING, plain * gains[index])):
                metrics = {"output_tps": rate * (1 + noise * rng.uniform(-1, 1))}
                valid = (arm, concurrency) not in spoiled
                reasons = () if valid else ("client_bound: late",)
                found.append(
                    PointResult(arm, block, index, concurrency, metrics, 8, 0, 8, 0, "x", valid, reasons)
                )
    return found


def test_a_crossing_becomes_a_threshold_with_its_interval_and_configuration():
    found = tuned(points([1.8, 1.4, 1.1, 0.7]), ARM, "output_tps")
    advice = found.recommendation
    assert advice.advice == "threshold"
    assert 16 < advice.threshold < 30
    assert advice.low <= advice.threshold <= advice.high
    lines = answer_lines(found)
    assert lines[0].startswith(
        f"threshold {advice.threshold} (95% interval {advice.low} to {advice.high}): up to there"
    )
    assert undecided(found) is None
    assert lines[-1].startswith('{"1": {"candidate_steps": [3]}')


@pytest.mark.parametrize(
    ("gains", "says"),
    [
        ([1.8, 1.4, 1.1, 0.7], "Threshold {0.threshold} (95% interval {0.low} to {0.high}): up to there"),
        ([0.9, 0.8, 0.7, 0.6], "Never speculate: no measured concurrency gains"),
        ([1.8, 1.4, 1.3, 1.2], "Always speculate: no measured concurrency loses"),
        ([1.0, 1.0, 1.0, 1.0], "No threshold: "),
    ],
)
def test_the_report_of_the_run_itself_begins_with_the_answer(gains, says):
    arms = [
        replace(ARM, name=name, args={**ARM.args, "speculative-algorithm": "EAGLE3"})
        for name in (SPECULATING, PLAIN)
    ]
    summary = summarise(points(gains), arms=arms, shared=[{SPECULATING, PLAIN}])
    found = tuned(points(gains), arms[0], "output_tps").recommendation
    assert answer(summary, RunInfo()).startswith(says.format(found))


def test_the_native_configuration_of_a_threshold_is_ready_and_says_where_it_has_to_differ():
    ready = tuned(points([1.8, 1.4, 1.1, 0.7]), ARM, "output_tps").recommendation
    sizes = captured_batch_sizes(ARM)
    assert ready.threshold not in sizes
    nearest = max(size for size in sizes if size < ready.threshold)
    assert list(ready.native_config) == ["1", str(nearest + 1)]
    said = f"{ready.threshold} is no captured CUDA graph batch size, so SGLang's own adaptive mode gets {nearest}"
    assert ready.why.endswith(said)
    unpadded = Arm("a", {**ARM.args, "disable-cuda-graph-padding": True}, {})
    exact = tuned(points([1.8, 1.4, 1.1, 0.7]), unpadded, "output_tps").recommendation
    assert list(exact.native_config) == ["1", str(exact.threshold + 1)]
    assert "captured" not in exact.why


@pytest.mark.parametrize(
    ("gains", "advice", "first"),
    [
        ([0.9, 0.8, 0.6, 0.5], "off", "never speculate: no measured concurrency gains from speculation"),
        ([1.9, 1.8, 1.6, 1.5], "on", "always speculate: no measured concurrency loses from speculation"),
    ],
)
def test_never_and_always_are_answers(gains, advice, first):
    found = tuned(points(gains), ARM, "output_tps")
    assert found.recommendation.advice == advice
    assert answer_lines(found)[0].startswith(first)
    assert undecided(found) is None


def test_nothing_but_noise_is_no_answer():
    error = undecided(tuned(points([1.0, 1.0, 1.0, 1.0], noise=0.05), ARM, "output_tps"))
    assert error is not None
    assert error.exit_code == 6


def test_always_is_not_said_where_a_concurrency_has_no_valid_pair():
    found = tuned(points([1.9, 1.8, 1.6, 0.5], spoiled={(PLAIN, 64)}), ARM, "output_tps")
    assert found.recommendation.advice == "none"
    assert "concurrency 64 has no valid pair" in found.recommendation.why
    assert len(found.invalid) == 5
    assert [line for line in answer_lines(found) if "not counted" in line] == [
        "  not counted: always-plain at concurrency 64: 5 of 5 repetitions (client_bound)"
    ]
    error = undecided(found)
    assert (error.details, error.help) == ((), "run again while it is idle")


def test_one_repetition_is_too_few_and_not_the_one_boot_that_tuning_takes_by_design():
    spoiled = [p for p in points([1.9, 1.8, 1.6, 1.5], spoiled={(PLAIN, c) for c in SWEEP}) if p.boot > 1]
    found = tuned([*(p for p in points([1.9, 1.8, 1.6, 1.5]) if p.boot == 1), *spoiled], ARM, "output_tps")
    assert found.recommendation.why == "one repetition that counts is no evidence"
    assert undecided(found).help == "run again while it is idle"


def test_always_is_not_said_where_a_concurrency_looks_the_other_way_round():
    spoiled = points([1.9, 1.8, 1.6, 0.8])
    kept = [point for point in spoiled if point.concurrency != 64 or point.boot == 1]
    found = tuned(kept, ARM, "output_tps")
    assert found.recommendation.advice == "none"
    assert "concurrency 64 looks the other way round" in found.recommendation.why


def test_every_concurrency_of_the_evidence_is_told_with_its_verdict():
    found = tuned_json(tuned(points([1.8, 1.4, 1.1, 0.7]), ARM, "output_tps"), "output_tps")
    assert [(item["concurrency"], item["verdict"]) for item in found["changes"]] == [
        (1, "better"),
        (4, "better"),
        (16, "better"),
        (64, "worse"),
    ]


# -- the experiment that is run


TEXT = """
schema: 1
name: trial
node: {host: gpu-1, python: /opt/venv/bin/python3}
server:
  args: {model-path: /m, mem-fraction-static: 0.90, trust-remote-code: true, cuda-graph-bs: [1, 2, 4]}
  env: {HF_TOKEN: {from_env: HF_TOKEN}, A: b}
arms:
  baseline: {}
  eagle3: {args: {speculative-algorithm: EAGLE3, speculative-draft-model: /d, trust-remote-code: null}, env: {A: null}}
  dynamic: {extends: eagle3, patches: [spec_banner, dynamic_disable], args: {speculative-disable-batch-threshold: 5}}
sweep: {concurrency: [1, 8], repeats: 3}
gate: {metric: output_tps}
"""


def retold(name=None, *words):
    written = load_experiment(TEXT, name="x.yaml", overrides=words).experiment
    overrides = (*words, *tuning_overrides(written, name))
    return written, load_experiment(TEXT, name="x.yaml", overrides=overrides).experiment


def test_two_arms_of_one_server_are_made_and_everything_else_is_kept():
    written, made = retold()
    assert made.name == "trial-tune"
    assert (made.sweep.share_boot, made.sweep.repeats, made.gate) == (True, 1, None)
    assert made.server == written.server
    original = written.arm("dynamic")
    for arm, threshold in zip(made.arms, (1_000_000, 0), strict=True):
        assert arm.args == {**original.args, "speculative-disable-batch-threshold": threshold}
        assert (arm.env, arm.patches) == (original.env, original.patches)


def test_an_arm_without_the_patch_gets_it():
    _, made = retold("eagle3")
    assert [arm.patches for arm in made.arms] == [("dynamic_disable",)] * 2


def test_the_made_experiment_can_be_read_again_from_its_own_text():
    _, made = retold()
    again = load_experiment(made.source, name="lock.yaml").experiment
    assert again.arms == made.arms


@pytest.mark.parametrize(
    ("name", "says"),
    [("baseline", "baseline is no arm that speculates"), ("none", "none is no arm that speculates")],
)
def test_an_arm_that_cannot_be_tuned_is_named(name, says):
    with pytest.raises(UsageError, match=says):
        retold(name)


def test_the_two_thresholds_that_nobody_wrote_are_not_warned_of():
    words = tuning_overrides(load_experiment(TEXT, name="x.yaml").experiment, None)
    warnings = load_experiment(TEXT, name="x.yaml", overrides=words).warnings
    assert "threshold" in " ".join(warnings)
    kept = without_own_notes((*warnings, "x.yaml:3: another note"))
    assert "always-speculate" not in " ".join(kept)
    assert kept[-1] == "x.yaml:3: another note"


@pytest.mark.parametrize("blocks", [101, 1_000_000])
def test_more_repetitions_than_a_sweep_may_have_are_refused_before_a_plan_is_made(blocks):
    with pytest.raises(UsageError, match=f"--blocks {blocks}: 2 to 100 repetitions"):
        tune(Path("read-only-after-the-count.yaml"), blocks=blocks)


def test_a_wait_for_a_busy_node_has_the_bounds_of_the_file():
    assert (lock_wait_s("0s"), lock_wait_s("168h")) == (0.0, 7 * 86400.0)
    with pytest.raises(UsageError, match="--lock-wait 169h: at most 168h is wanted"):
        lock_wait_s("169h")
