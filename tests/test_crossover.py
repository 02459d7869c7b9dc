"""Where speculation stops paying: one place with an interval, or never, always, several places, no telling."""

from __future__ import annotations

import math
import random

import pytest

from orchestrator.analysis.crossover import AcrossSwitch, by_concurrency, crossover
from orchestrator.analysis.own_switch import OwnSwitch
from orchestrator.analysis.verdict import Side

SWEEP = (1, 2, 5, 10, 30, 70)


def arm(name: str, rate, boots: int = 5, noise: float = 0.01, seed: int = 0, sweep=SWEEP) -> Side:
    rng = random.Random(f"{name} {seed}")
    values = {
        boot: {c: rate(c) * math.exp(rng.gauss(0, noise)) for c in sweep} for boot in range(1, boots + 1)
    }
    return Side(name, values)


def base(**options) -> Side:
    return arm("baseline", lambda c: 100.0 * c, **options)


def crossing_at_12(c: float) -> float:
    return 100.0 * c * (c / 12) ** -0.2


def test_one_crossing_with_its_interval():
    found = crossover("output_tps", arm("eagle3", crossing_at_12), base())
    assert found.kind == "crosses"
    (crossing,) = found.crossings
    assert crossing.turns == "worse"
    assert crossing.low < crossing.concurrency < crossing.high
    assert crossing.concurrency == pytest.approx(12, rel=0.1)
    assert crossing.low >= 10
    assert crossing.high <= 15


def test_the_interval_holds_the_truth_as_often_as_it_says():
    held = total = 0
    for seed in range(300):
        found = crossover(
            "output_tps", arm("e", crossing_at_12, noise=0.02, seed=seed), base(noise=0.02, seed=seed)
        )
        for crossing in found.crossings[:1]:
            total += 1
            held += crossing.low <= 12 <= crossing.high
    assert total >= 295
    assert held / total >= 0.95 - 1.96 * math.sqrt(0.05 * 0.95 / total)


def test_less_noise_makes_a_narrower_interval():
    def width(noise: float) -> float:
        found = crossover("output_tps", arm("e", crossing_at_12, noise=noise), base(noise=noise))
        return found.crossings[0].high / found.crossings[0].low

    assert width(0.003) < width(0.03)


@pytest.mark.parametrize(
    ("rate", "kind"),
    [
        (lambda c: 80.0 * c, "never"),
        (lambda c: 120.0 * c, "always"),
        (lambda c: 100.0 * c, "noise"),
        (lambda c: 100.0 * c * (0.8 if c > 20 else 1.0), "never"),
        (lambda c: 100.0 * c * (1.2 if c < 4 else 1.0), "always"),
    ],
)
def test_never_always_and_noise_are_answers(rate, kind):
    found = crossover("output_tps", arm("eagle3", rate), base())
    assert (found.kind, found.crossings) == (kind, ())


def test_a_point_inside_the_noise_makes_no_crossing():
    """1 % up at concurrency 2 between points that are surely better is the noise's, not a crossing."""
    found = crossover("output_tps", arm("e", lambda c: 100.0 * c * (0.999 if c == 2 else 1.2)), base())
    assert found.kind == "always"
    assert found.unclear_at == (2,)


def test_several_crossings_are_all_told():
    found = crossover("output_tps", arm("e", lambda c: 100.0 * c * (0.8 if c in (5, 10) else 1.2)), base())
    assert [crossing.turns for crossing in found.crossings] == ["worse", "better"]
    assert 2 < found.crossings[0].concurrency < 5
    assert 10 < found.crossings[1].concurrency < 30


def test_one_boot_gives_estimates_without_interval_or_call():
    found = crossover("output_tps", arm("e", crossing_at_12, boots=1), base(boots=1))
    assert found.kind == "untested"
    assert (found.better_at, found.worse_at) == ((), ())
    (crossing,) = found.crossings
    assert (crossing.low, crossing.high) == (None, None)


def test_latency_crosses_the_other_way_round():
    found = crossover("tpot_p50", arm("e", lambda c: 0.01 * (c / 12) ** 0.2), arm("b", lambda c: 0.01))
    assert [crossing.turns for crossing in found.crossings] == ["worse"]
    assert found.better_at == (1, 2, 5, 10)


def test_a_tax_on_plain_steps_moves_the_crossing_up():
    """Above the threshold a dynamic arm runs 6 % below the baseline, so speculation pays up to a higher load."""
    eagle = arm("e", crossing_at_12)
    plain = crossover("output_tps", eagle, base()).crossings[0]
    taxed = crossover("output_tps", eagle, base(), offset=0.94).crossings[0]
    assert taxed.concurrency > plain.concurrency * 1.2


def test_nothing_in_common_is_nothing():
    assert crossover("output_tps", arm("e", crossing_at_12, sweep=(1,)), base(sweep=(2,))).kind == "nothing"


def test_the_same_concurrency_twice_in_a_sweep_is_one_place_on_the_curve():
    values = {1: {0: 100.0, 1: 200.0, 2: 400.0}}
    assert by_concurrency(values, {0: 1, 1: 10, 2: 1}) == {
        1: {1: pytest.approx(200.0), 10: pytest.approx(200.0)}
    }


def test_a_crossing_comes_from_the_levels_and_not_from_boots_that_come_and_go():
    """Two boots of ten are slow everywhere, and only they have a value at 30: just above 10 nothing happens."""
    eagle, plain = arm("e", crossing_at_12, boots=10, noise=0.001), base(boots=10, noise=0.001)
    for boot, points in eagle.values.items():
        for c in points:
            points[c] *= math.exp(-0.05 if boot <= 2 else 0.0125)
        if boot > 2:
            del points[30]
    (crossing,) = crossover("output_tps", eagle, plain).crossings
    assert crossing.concurrency == pytest.approx(12, rel=0.1)
    assert (crossing.low, crossing.high) == (10, 30)


def test_a_level_that_is_exactly_even_hides_no_crossing():
    eagle = Side("e", {1: {1: 120.0, 10: 1000.0, 100: 8000.0}})
    plain = Side("b", {1: {1: 100.0, 10: 1000.0, 100: 10000.0}})
    (crossing,) = crossover("output_tps", eagle, plain).crossings
    assert 1 < crossing.concurrency < 100


def gains(*shares: float):
    """A rate with these gains over `base` at the levels of the sweep."""
    return lambda c: 100.0 * c * (1 + shares[SWEEP.index(c)])


ABOVE_5 = OwnSwitch(frozenset({10, 30, 70}))
UNTOLD = OwnSwitch(frozenset({30, 70}), anywhere=True)
NEVER_ON = OwnSwitch(frozenset(SWEEP))


@pytest.mark.parametrize("boots", [1, 5])
@pytest.mark.parametrize(
    ("shares", "switch", "crosses_in", "across"),
    [
        pytest.param((0.3, 0.3, 0.2, -0.2, -0.3, -0.3), OwnSwitch(), [(5, 10)], [], id="never switches"),
        pytest.param(
            (0.3, 0.3, 0.2, -0.2, -0.3, -0.3), ABOVE_5, [], [(5, 10, "worse", True)], id="in between"
        ),
        pytest.param(
            (0.3, -0.1, -0.2, -0.2, -0.3, -0.3), ABOVE_5, [(1, 2)], [], id="below its switch: still a line"
        ),
        pytest.param(
            (0.3, 0.3, 0.2, 0.1, -0.1, 0.1),
            ABOVE_5,
            [],
            [],
            id="plain steps on both sides: the noise of boots",
        ),
        pytest.param((0.2, 0.1, -0.1, -0.1, 0.1, 0.1), NEVER_ON, [], [], id="it never speculates"),
        pytest.param(
            (0.3, 0.3, -0.2, -0.2, -0.3, -0.3), UNTOLD, [], [(2, 5, "worse", False)], id="where is not told"
        ),
        pytest.param(
            (0.3, 0.3, -0.2, -0.2, 0.3, 0.3),
            ABOVE_5,
            [(2, 5)],
            [],
            id="a line first, and plain steps that look faster",
        ),
        pytest.param(
            (-0.3, -0.3, -0.2, 0.2, 0.3, 0.3), ABOVE_5, [], [(5, 10, "better", True)], id="faster without"
        ),
    ],
)
def test_nothing_is_interpolated_across_an_arms_own_switch(shares, switch, crosses_in, across, boots):
    found = crossover("output_tps", arm("d", gains(*shares), boots), base(boots=boots), switch=switch)
    assert found.across_switch == tuple(AcrossSwitch(*turn) for turn in across)
    assert len(found.crossings) == len(crosses_in)
    for crossing, (low, high) in zip(found.crossings, crosses_in, strict=True):
        ends = (crossing.concurrency, crossing.low, crossing.high)[: 1 if boots == 1 else 3]
        assert all(low < end < high for end in ends)
    assert found.off_at == tuple(sorted(switch.off_at))
    plain = "crosses" if switch == OwnSwitch() else "switches"
    assert found.kind == ("untested" if boots == 1 else plain)


def test_levels_inside_the_noise_widen_what_is_told_of_a_turn_across_a_switch():
    """As an arm of threshold 16 that was surely faster up to 4, and surely slower at 32."""
    found = crossover("output_tps", arm("d", gains(0.3, 0.3, 0, 0, -0.2, -0.2)), base(), switch=ABOVE_5)
    assert found.across_switch == (AcrossSwitch(2, 30, "worse", True),)


def test_against_an_arm_that_speculates_plain_steps_do_tell():
    switching = arm("d", gains(0.3, 0.3, 0.3, -0.2, 0.3, 0.3))
    found = crossover("output_tps", switching, base(), switch=ABOVE_5, against_speculates=True)
    assert found.across_switch == (AcrossSwitch(5, 10, "worse", True),)
    assert [crossing.turns for crossing in found.crossings] == ["better"]
    assert 10 < found.crossings[0].concurrency < 30
    assert found.off_at == ()
