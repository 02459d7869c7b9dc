"""Repeats are boots; nothing is called from one; wrong verdicts stay as rare as promised."""

from __future__ import annotations

import math
import random
import subprocess
import sys

import pytest

from orchestrator.analysis import stats
from orchestrator.analysis.verdict import Side, compare, noise_floor
from tests.bench import verdicts


def logs(*values: float) -> list[float]:
    return [math.log(value) for value in values]


def test_welch_agrees_with_scipy_on_logs():
    from scipy.stats import ttest_ind

    a, b = logs(101.0, 103.5, 99.2, 104.1), logs(95.0, 97.5, 99.9)
    ours, theirs = stats.welch(a, b), ttest_ind(a, b, equal_var=False)
    low, high = theirs.confidence_interval(0.95)
    assert ours.p == pytest.approx(theirs.pvalue)
    assert (ours.low, ours.high) == pytest.approx((math.exp(low), math.exp(high)))
    assert ours.df == pytest.approx(theirs.df)


def test_pairs_agree_with_scipy():
    from scipy.stats import ttest_rel

    a, b = logs(101.0, 103.5, 99.2), logs(95.0, 97.5, 94.9)
    assert stats.paired(a, b).p == pytest.approx(ttest_rel(a, b).pvalue)


def test_an_interval_is_the_t_interval_of_the_logs_and_never_negative():
    from scipy.stats import t

    values = [90.0, 100.0, 115.0]
    result = stats.interval(values)
    centre, sd = stats.mean(logs(*values)), math.sqrt(stats.variance(logs(*values)))
    half = t.ppf(0.975, 2) * sd / math.sqrt(3)
    assert (result.low, result.high) == pytest.approx((math.exp(centre - half), math.exp(centre + half)))
    assert result.low > 0


def test_one_value_has_no_interval_and_no_values_are_refused():
    one = stats.interval([5.0])
    assert (one.value, one.low, one.high, one.n) == (5.0, None, None, 1)
    with pytest.raises(ValueError, match="leave the metric out"):
        stats.interval([])


def test_a_metric_with_zeros_gets_an_interval_on_the_values():
    result = stats.interval([0.0, 0.1, 0.2])
    assert result.value == pytest.approx(0.1)


def test_one_boot_is_never_tested():
    contrast = stats.welch(logs(200.0), logs(100.0, 101.0, 99.0))
    assert contrast.ratio == pytest.approx(2.0, rel=0.01)
    assert (contrast.low, contrast.high, contrast.p) == (None, None, None)
    assert stats.call(contrast.ratio, contrast.p, higher_is_better=True) == "inconclusive"


def test_repeats_that_are_copies_of_each_other_are_no_evidence():
    contrast = stats.welch(logs(100.0, 100.0, 100.0), logs(90.0, 90.0, 90.0))
    assert contrast.p is None
    assert "not independent" in contrast.why_no_test


@pytest.mark.parametrize(
    ("p_values", "expected"),
    [
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),  # the textbook example
        ([0.02], [0.02]),
        ([0.9, None, 0.5], [1.0, None, 1.0]),
        ([], []),
    ],
)
def test_holm(p_values, expected):
    assert stats.holm(p_values) == pytest.approx(expected)


def test_lower_latency_is_better_and_lower_throughput_is_worse():
    fast, slow = Side("a", boots(0.9)), Side("b", boots(1.0))
    assert compare("tpot_p50", fast, slow).call == "better"
    assert compare("output_tps", fast, slow).call == "worse"


def boots(
    level: float, n: int = 5, points: int = 3, noise: float = 0.005, seed: int = 0
) -> dict[int, dict[int, float]]:
    rng = random.Random(f"{level} {seed}")
    return {
        boot: {index: level * 2**index * math.exp(rng.gauss(0, noise)) for index in range(points)}
        for boot in range(1, n + 1)
    }


def test_the_headline_weighs_each_point_alike_whatever_its_size():
    """Twice as fast at the small point, half as fast at the large one: no difference on the mean."""
    arm = {boot: {0: 20.0 * wobble, 1: 5000.0 / wobble} for boot, wobble in ((1, 1.01), (2, 0.99))}
    base = {boot: {0: 10.0 * wobble, 1: 10000.0 * wobble} for boot, wobble in ((1, 1.02), (2, 0.98))}
    headline = compare("output_tps", Side("a", arm), Side("b", base)).headline
    assert headline.ratio == pytest.approx(1.0, abs=0.001)


def test_a_point_missing_in_one_boot_leaves_the_headline_on_both_sides():
    arm, base = boots(1.0), boots(1.0, seed=1)
    del arm[2][1]
    assert compare("output_tps", Side("a", arm), Side("b", base)).headline_points == (0, 2)


def test_a_boot_that_crashed_early_leaves_the_headline_instead_of_taking_the_points_with_it():
    arm, base = boots(1.0, points=7), boots(1.0, points=7, seed=1)
    arm[3] = {0: 1.0}
    result = compare("output_tps", Side("a", arm), Side("b", base))
    assert result.headline_points == tuple(range(7))
    assert result.headline.n_a == 4
    assert result.notes == ("a boot 3 has 1 of 7 valid points: not in the headline",)


def test_arms_without_a_common_valid_point_are_not_compared():
    result = compare("output_tps", Side("a", {1: {0: 1.0}}), Side("b", {1: {1: 1.0}}))
    assert (result.headline, result.call, result.points) == (None, "inconclusive", ())


def test_drift_is_seen_and_taken_out_of_the_comparison():
    """Everything slows by 20 %; the arm that ran mostly later is not slower for that."""
    rng = random.Random(4)
    places = {"a": (1, 2, 5, 7), "b": (0, 3, 4, 6)}
    sides = {
        name: Side(
            name,
            {
                boot: {0: 100 * 0.8 ** (place / 7) * math.exp(rng.gauss(0, 0.002))}
                for boot, place in enumerate(own, 1)
            },
            {boot: float(place) for boot, place in enumerate(own, 1)},
        )
        for name, own in places.items()
    }
    result = compare("output_tps", sides["a"], sides["b"])
    assert result.method == "detrended"
    assert result.drift.total == pytest.approx(0.8, abs=0.01)
    assert result.headline.ratio == pytest.approx(1.0, abs=0.005)
    assert result.call == "inconclusive"


def test_detrending_agrees_with_least_squares_on_arm_and_order():
    import numpy as np

    a, b = {0.0: 1.00, 3.0: 1.07, 4.0: 1.11}, {1.0: 1.20, 2.0: 1.21, 5.0: 1.33}
    result = stats.detrended(a, b)
    rows = [(1.0, order, 1.0, value) for order, value in a.items()] + [
        (0.0, order, 1.0, value) for order, value in b.items()
    ]
    table = np.array(rows)
    design, target = table[:, :3], table[:, 3]
    solution, residual, *_ = np.linalg.lstsq(design, target, rcond=None)
    error = math.sqrt(residual[0] / 3 * np.linalg.inv(design.T @ design)[0, 0])
    assert math.log(result.ratio) == pytest.approx(solution[0])
    assert math.log(result.high / result.ratio) == pytest.approx(stats.t_quantile(3, 0.975) * error)


def test_drift_needs_enough_boots_and_known_order():
    assert stats.drift([("a", 0.0, 1.0), ("b", 1.0, 1.0), ("b", 2.0, 1.1)]) is None
    assert compare("output_tps", Side("a", boots(1.0)), Side("b", boots(1.0, seed=1))).drift is None


@pytest.mark.parametrize(
    ("effect_size", "per_group", "expected"), [(0.5, 64, 0.801), (0.8, 26, 0.807), (0.2, 394, 0.80)]
)
def test_power_agrees_with_cohens_tables(effect_size, per_group, expected):
    assert stats.power(1.0, per_group, math.exp(effect_size)) == pytest.approx(expected, abs=0.002)


def test_boots_needed_and_the_smallest_difference_fit_together():
    needed = stats.boots_needed(0.02)
    assert stats.power(0.02, needed) >= 0.80 > stats.power(0.02, needed - 1)
    assert stats.detectable(0.02, needed) <= stats.EFFECT < stats.detectable(0.02, needed - 1)


@pytest.mark.parametrize("sd", [0.004, 0.02])
def test_the_boots_that_are_said_to_be_needed_find_3_percent_as_often_as_said(sd):
    """By simulation: arms that truly differ by 3 %, each with as many boots as were asked for, and with fewer."""
    rng, tries = random.Random(5), 1000

    def found(boots: int) -> float:
        hits = 0
        for _ in range(tries):
            arms = [[rng.gauss(level, sd) for _ in range(boots)] for level in (math.log(1.03), 0.0)]
            hits += stats.welch(*arms).p < stats.ALPHA
        return hits / tries

    needed, chance = stats.boots_needed(sd), 1.96 * math.sqrt(0.8 * 0.2 / tries)
    assert found(needed) == pytest.approx(stats.power(sd, needed), abs=chance)
    assert found(needed - 1) == pytest.approx(stats.power(sd, needed - 1), abs=chance)


def test_a_hopelessly_noisy_node_needs_more_boots_than_anyone_will_run():
    assert stats.boots_needed(0.5) is None
    assert stats.power(0.02, 1) is None


def test_power_stays_a_probability_for_huge_differences():
    assert stats.power(0.0001, 5, 2.0) == pytest.approx(1.0)


def test_identical_arms_that_differ_raise_the_floor_under_every_other_verdict():
    twins = compare("output_tps", Side("base-2", boots(1.02)), Side("base", boots(1.0)))
    floor = noise_floor([twins])
    assert floor == pytest.approx(max(twins.headline.high, 1 / twins.headline.low))
    small, large = Side("s", boots(0.99)), Side("l", boots(1.2))
    assert compare("output_tps", small, Side("base", boots(1.0))).call == "worse"
    assert compare("output_tps", small, Side("base", boots(1.0)), floor=floor).call == "inconclusive"
    assert compare("output_tps", large, Side("base", boots(1.0)), floor=floor).call == "better"


def test_identical_arms_inside_the_noise_raise_no_floor():
    assert noise_floor([compare("output_tps", Side("b2", boots(1.0, seed=1)), Side("b", boots(1.0)))]) == 1.0


def test_arms_that_shared_their_boots_are_compared_within_boots():
    """Boots differ by 20 %, the arms by 1 %: only the pairing sees it."""
    base = {boot: {0: 100.0 * 1.2**boot} for boot in range(1, 5)}
    arm = {boot: {0: points[0] * (1.01 + boot / 2000)} for boot, points in base.items()}
    assert compare("output_tps", Side("a", arm), Side("b", base), shared_boots=True).call == "better"
    assert compare("output_tps", Side("a", arm), Side("b", base)).call == "inconclusive"


def test_verdicts_are_wrong_as_rarely_as_promised_and_find_what_is_there():
    """2,000 simulated experiments each: see tests/bench/verdicts.py for the worlds."""
    rng, n = random.Random(1), 2000
    null = verdicts.run(verdicts.NULL, n, rng)
    assert null.headline / n <= verdicts.most(0.05, n)
    assert null.any_point / n <= verdicts.most(0.05, n)
    assert verdicts.run(verdicts.TRUE_5, n, rng).headline / n >= 0.90


def test_importing_the_module_does_not_import_scipy():
    code = "import sys, orchestrator.analysis.summary; print({'scipy', 'numpy', 'rich'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert out.stdout.strip() == "set()"
