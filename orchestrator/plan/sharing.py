"""Arms that differ only in their threshold share boots: which they are, and in which order a boot measures them. Pure.

The order is random, so that nothing which changes within a boot favours an arm; it comes from a digest of the seed,
so that a plan is the same value each time it is made. Every second boot runs the reverse of the one before it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from orchestrator.model.experiment import Arm, Sweep
from orchestrator.model.plan import RunPoint
from orchestrator.model.speculation import DYNAMIC_PATCH, SWITCH_FLAG, THRESHOLD_FLAG, threshold

T = TypeVar("T")
Group = tuple[Arm, ...]
Block = tuple[Arm, tuple[RunPoint, ...]]


def share_boots(arms: Iterable[Arm]) -> tuple[Group, ...]:
    """Arms in groups that one server can be: it is started as the first arm of its group, able to switch."""
    groups: list[list[Arm]] = []
    for arm in arms:
        mates = next((group for group in groups if _may_share(group[0], arm)), None)
        if mates is None:
            groups.append([arm])
        else:
            mates.append(arm)
    return tuple(_switching(group) if len(group) > 1 else tuple(group) for group in groups)


def _may_share(one: Arm, other: Arm) -> bool:
    if DYNAMIC_PATCH not in one.patches or threshold(one) is None or threshold(other) is None:
        return False
    return (_rest(one), one.env, one.patches) == (_rest(other), other.env, other.patches)


def _rest(arm: Arm) -> dict[str, object]:
    return {key: value for key, value in arm.args.items() if key not in (THRESHOLD_FLAG, SWITCH_FLAG)}


def _switching(group: Sequence[Arm]) -> Group:
    return tuple(replace(arm, args={**arm.args, SWITCH_FLAG: True}) for arm in group)


def arm_blocks(group: Group, sweep: Sweep, boot: int, seed: int) -> Iterator[Block]:
    """One block of points an arm: the whole sweep at its threshold."""
    for arm in _order(group, seed, boot):
        yield arm, tuple(_point(arm, boot, sweep, index) for index in range(len(sweep.concurrency)))


def point_blocks(group: Group, sweep: Sweep, blocks: int, seed: int) -> Iterator[Block]:
    """One point a block: `blocks` times over the sweep in random order, with all arms side by side at each position.

    A repetition counts as a boot of its own (the number in its points), all of them in one server's life.
    """
    for block in range(1, blocks + 1):
        for index in shuffled(range(len(sweep.concurrency)), f"{seed} {block}"):
            for arm in _order(group, f"{seed} {index}", block):
                yield arm, (_point(arm, block, sweep, index),)


def _point(arm: Arm, boot: int, sweep: Sweep, index: int) -> RunPoint:
    return RunPoint(arm.name, boot, index, sweep.concurrency[index])


def _order(group: Group, key: object, boot: int) -> list[Arm]:
    """Boots 1 and 2 have one random order to and fro, boots 3 and 4 the next."""
    names = shuffled((arm.name for arm in group), f"{key} {(boot + 1) // 2}")
    by_name = {arm.name: arm for arm in group}
    return [by_name[name] for name in (names if boot % 2 else reversed(names))]


def shuffled(items: Iterable[T], key: str) -> list[T]:
    """A random order that the key decides."""
    return sorted(items, key=lambda item: hashlib.sha256(f"{key} {item}".encode()).digest())
