"""Which arms share boots, and that the order inside a boot is random, the same each time, and balanced."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.model.experiment import Arm, Sweep
from orchestrator.plan.sharing import arm_blocks, point_blocks, share_boots

THRESHOLD, SWITCH = "speculative-disable-batch-threshold", "enable-speculative-threshold-switch"


def arm(name, threshold=None, patches=("dynamic_disable",), env=None, **args):
    own = {} if threshold is None else {THRESHOLD: threshold}
    return Arm(name, {"speculative-algorithm": "EAGLE3", **args, **own}, env or {}, patches)


def names(*arms):
    return [[item.name for item in group] for group in share_boots(arms)]


def test_arms_that_differ_only_in_the_threshold_are_one_group_whatever_stands_between_them():
    assert names(arm("a", 2), arm("static", patches=()), arm("b", 9)) == [["a", "b"], ["static"]]


def test_any_other_difference_keeps_boots_apart():
    others = [
        arm("b", 9, steps=2),
        arm("c", 9, env={"A": "1"}),
        arm("d", 9, patches=("spec_banner", "dynamic_disable")),
        arm("e", None),
        arm("f", 9, patches=()),
    ]
    assert names(arm("a", 2), *others) == [["a"], ["b"], ["c"], ["d"], ["e"], ["f"]]


def test_only_a_server_that_is_shared_is_started_with_the_switch():
    shared, (alone,) = share_boots([arm("a", 2), arm("b", 9), arm("c", 9, steps=2)])
    assert [item.args[SWITCH] for item in shared] == [True, True]
    assert SWITCH not in alone.args


GROUP = share_boots([arm(name, place) for place, name in enumerate("abcd")])[0]
SWEEP = Sweep(concurrency=(1, 10, 70))


def order(boot, seed=7):
    return [item.name for item, _ in arm_blocks(GROUP, SWEEP, boot, seed)]


@given(st.integers(0, 2**31), st.integers(1, 40))
def test_two_boots_run_one_random_order_to_and_fro(seed, half):
    there, back = order(2 * half - 1, seed), order(2 * half, seed)
    assert there == back[::-1]
    assert sorted(there) == ["a", "b", "c", "d"]
    assert there == order(2 * half - 1, seed)


def test_orders_differ_between_pairs_of_boots_and_no_arm_is_always_first():
    firsts = Counter(order(boot)[0] for boot in range(1, 401, 2))
    assert set(firsts) == {"a", "b", "c", "d"}
    assert max(firsts.values()) < 80


def test_a_block_of_an_arm_is_its_whole_sweep():
    for item, points in arm_blocks(GROUP, SWEEP, 3, 7):
        assert [(point.arm, point.boot, point.index, point.concurrency) for point in points] == [
            (item.name, 3, 0, 1),
            (item.name, 3, 1, 10),
            (item.name, 3, 2, 70),
        ]


@given(st.integers(1, 6), st.integers(0, 1000))
def test_repetitions_inside_a_boot_measure_everything_once_each_with_all_arms_side_by_side(count, seed):
    blocks = list(point_blocks(GROUP, SWEEP, count, seed))
    points = [(point.arm, point.boot, point.index) for _, items in blocks for point in items]
    assert sorted(points) == sorted(
        (name, boot, index) for name in "abcd" for boot in range(1, count + 1) for index in range(3)
    )
    for start in range(0, len(points), 4):
        assert len({(boot, index) for _, boot, index in points[start : start + 4]}) == 1
