"""A run that is measured in parts: the arms that it began with, and what a part of other arms leaves to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from orchestrator.errors import PartLeft, UsageError
from orchestrator.model.experiment import Experiment
from orchestrator.model.plan import RunPoint
from orchestrator.plan import Done, share_boots
from orchestrator.records.begun import goes_on_with
from orchestrator.records.lockfile import stored_lock
from orchestrator.records.planned import plan_left
from orchestrator.records.served import planned_arms, served_arms
from orchestrator.report.text import listed, plural
from orchestrator.store import RunStore


def begun_arms(store: RunStore) -> frozenset[str]:
    """Arms that the parts so far planned and could serve; empty where nothing is left that tells."""
    plan = plan_left(store)
    served = {arm["name"] for arm in plan.get("arms") or ()}
    locked = stored_lock(store).get("arms")
    return frozenset({*served, *planned_arms(plan), *(locked if isinstance(locked, dict) else ())})


def not_begun(store: RunStore, asked: Iterable[str], done: Done) -> tuple[str, ...]:
    """Those of the arms that were asked for which the run began without; none where nothing is left that tells."""
    begun = begun_arms(store)
    known = {*begun, *_unsupported(store), *(arm for arm, _, _ in done.points)}
    return tuple(arm for arm in dict.fromkeys(asked) if begun and arm not in known)


def _unsupported(store: RunStore) -> Collection[str]:
    """Arms that it was to measure and that its SGLang could not serve."""
    return plan_left(store).get("unsupported") or ()


def arms_to_go_on_with(store: RunStore, experiment: Experiment, asked: tuple[str, ...]) -> tuple[str, ...]:
    """Those that were asked for, else those that the run began with; empty: all.

    Raises UsageError for a choice that divides arms of one server.
    """
    if asked:
        _refuse_divided(store, experiment, asked)
        return tuple(dict.fromkeys(asked))
    begun = {*begun_arms(store), *_unsupported(store)}
    names = tuple(arm.name for arm in experiment.arms if arm.name in begun)
    return names if len(names) < len(experiment.arms) else ()


def _refuse_divided(store: RunStore, experiment: Experiment, asked: Collection[str]) -> None:
    """Fewer arms in a boot are another server, whose numbers are not those of the boots before."""
    if not experiment.sweep.share_boot:
        return
    begun = begun_arms(store)
    served = served_arms(plan_left(store), experiment)
    for group in share_boots(arm for arm in served if arm.name in begun):
        names = [arm.name for arm in group]
        missing = [name for name in names if name not in asked]
        if missing and len(missing) < len(names):
            raise UsageError(
                f"{listed(names)} share boots in run {store.run_id}, so it cannot go on with some of them alone",
                help=f"add {' '.join(f'--arm {name}' for name in missing)}, or leave --arm away",
            )


def left_points(
    store: RunStore, experiment: Experiment, arms: Collection[str], done: Done
) -> tuple[RunPoint, ...]:
    """What the run has not measured of arms that it began with and that are not among `arms` (empty: all are)."""
    others = begun_arms(store) - set(arms) if arms else ()
    return tuple(
        RunPoint(arm.name, boot, index, concurrency)
        for arm in experiment.arms
        if arm.name in others
        for boot in range(1, experiment.sweep.repeats + 1)
        for index, concurrency in enumerate(experiment.sweep.concurrency)
        if (arm.name, boot, index) not in done.points
    )


def left_words(points: Iterable[RunPoint]) -> str:
    """2 boots of baseline and 1 boot of eagle3."""
    boots = Counter(arm for arm, _ in dict.fromkeys((point.arm, point.boot) for point in points))
    return listed([f"{plural(count, 'boot')} of {arm}" for arm, count in boots.items()])


def part_left(store: RunStore, points: Collection[RunPoint]) -> PartLeft:
    """How a part ends that measured all it was to."""
    verb = "is" if len({(point.arm, point.boot) for point in points}) == 1 else "are"
    return PartLeft(
        f"the chosen arms are measured, and {left_words(points)} {verb} still to do", help=goes_on_with(store)
    )
