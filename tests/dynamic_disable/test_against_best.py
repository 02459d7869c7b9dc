"""The row of figures that the patch is judged by, from runs of a known speed."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from orchestrator.analysis.stats import welch
from tests.gpu.against_best import against_best

EXAMPLES = Path(__file__).parents[2] / "results" / "examples"

Speeds = dict[str, dict[int, list[float | None]]]
"""Arm -> concurrency -> tokens/s of each boot; None where the boot has no valid point."""


def run_of(folder: Path, arms: Speeds) -> Path:
    folder.mkdir()
    summary = {
        name: {
            "points": [
                {
                    "index": index,
                    "concurrency": level,
                    "boots": [
                        {"boot": boot, "valid": value is not None, "metrics": {"output_tps": value or 1.0}}
                        for boot, value in enumerate(values, 1)
                    ],
                }
                for index, (level, values) in enumerate(curve.items())
            ]
        }
        for name, curve in arms.items()
    }
    (folder / "summary.json").write_text(json.dumps({"arms": summary, "asked": []}))
    return folder


NODE: Speeds = {
    "none": {1: [100, 102], 8: [400, 408]},
    "static": {1: [150, 151], 8: [300, 303]},
    "dynamic": {1: [147, 150], 8: [396, 392]},
}


def test_each_concurrency_is_set_against_the_arm_that_is_better_there(tmp_path):
    one, eight, _ = against_best("dynamic", ["none", "static"], [run_of(tmp_path / "a", NODE)])
    assert (one.concurrency, one.best, eight.concurrency, eight.best) == (1, "static", 8, "none")
    alone = welch([math.log(x) for x in (147, 150)], [math.log(x) for x in (150, 151)])
    assert (one.ratio.ratio, one.ratio.low, one.ratio.high) == pytest.approx(
        (alone.ratio, alone.low, alone.high)
    )


def test_the_mean_is_over_boots_so_that_what_moves_a_whole_boot_is_not_averaged_away(tmp_path):
    slow_boot: Speeds = {
        "none": {1: [100, 101], 8: [100, 101]},
        "dynamic": {1: [100, 110], 8: [100, 110]},
    }
    *points, whole = against_best("dynamic", ["none"], [run_of(tmp_path / "a", slow_boot)])
    assert whole.ratio.ratio == pytest.approx(points[0].ratio.ratio)
    assert (whole.ratio.low, whole.ratio.high) == pytest.approx((points[0].ratio.low, points[0].ratio.high))


def test_a_second_node_of_another_speed_moves_nothing_and_narrows_the_interval(tmp_path):
    faster = {
        arm: {level: [2 * x for x in speeds] for level, speeds in curve.items()}
        for arm, curve in NODE.items()
    }
    runs = [run_of(tmp_path / "a", NODE), run_of(tmp_path / "b", faster)]
    alone, both = (
        against_best("dynamic", ["none", "static"], runs[:1]),
        against_best("dynamic", ["none", "static"], runs),
    )
    for one, two in zip(alone, both, strict=True):
        assert two.ratio.ratio == pytest.approx(one.ratio.ratio)
        assert two.ratio.high - two.ratio.low < one.ratio.high - one.ratio.low
    assert (both[0].ratio.n_a, both[0].ratio.n_b) == (4, 4)


def test_a_boot_without_one_of_the_points_is_left_out_of_all(tmp_path):
    cut = {**NODE, "dynamic": {1: [147, 150, 300], 8: [396, 392, None]}}
    assert against_best("dynamic", ["none", "static"], [run_of(tmp_path / "a", cut)]) == against_best(
        "dynamic", ["none", "static"], [run_of(tmp_path / "b", NODE)]
    )


def test_what_cannot_be_compared_is_refused(tmp_path):
    run = run_of(tmp_path / "a", NODE)
    with pytest.raises(ValueError, match="no arm tax, but none, static, dynamic"):
        against_best("tax", ["none"], [run])
    other = run_of(tmp_path / "b", {arm: {1: curve[1]} for arm, curve in NODE.items()})
    with pytest.raises(ValueError, match="same concurrencies"):
        against_best("dynamic", ["none"], [run, other])
    single = run_of(tmp_path / "c", {arm: {1: curve[1][:1]} for arm, curve in NODE.items()})
    with pytest.raises(ValueError, match="one boot"):
        against_best("dynamic", ["none"], [single])
    alike = run_of(tmp_path / "d", {arm: {1: [100, 100]} for arm in NODE})
    with pytest.raises(ValueError, match="alike to the last digit"):
        against_best("dynamic", ["none"], [alike])


def test_the_bar_of_the_patch_on_the_committed_runs():
    """Mean 0.98, each 0.96: on the boots of both nodes together, and on the second node by itself."""
    second = EXAMPLES / "h200-timing-again-0.5.11"
    for runs in ([EXAMPLES / "h200-timing-0.5.11", second], [second]):
        *points, whole = against_best("dynamic", ["none", "static"], runs)
        assert [row.concurrency for row in points] == [1, 2, 4, 8, 16, 32, 64]
        assert min(row.ratio.ratio for row in points) >= 0.96
        assert whole.ratio.ratio >= 0.98
