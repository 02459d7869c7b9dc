"""The arms of a stored run as they were served, which may differ from how they were written; and whose boot it was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.model.experiment import Arm, Experiment
from orchestrator.model.plan import Plan, RunPoint
from orchestrator.model.result import PointResult
from orchestrator.records.planned import LEFT_KEY, plan_left
from orchestrator.store import RunStore, plain

SHARED_KEY = "shared_boot"  # in the meta file of a point


@dataclass(frozen=True)
class Home:
    """The boot that a point was measured in: its server's log, samples and info lie there."""

    arm: str
    boot: int


def served_arms(plan: Mapping[str, Any], experiment: Experiment) -> tuple[Arm, ...]:
    """From plan.json; an arm that it does not hold is as written (runs of earlier versions hold none)."""
    stored = {arm["name"]: arm for arm in plan.get("arms") or ()}
    return tuple(
        replace(
            arm,
            args={key: _arg(value) for key, value in stored[arm.name]["args"].items()},
            patches=tuple(stored[arm.name]["patches"]),
        )
        if arm.name in stored
        else arm
        for arm in experiment.arms
    )


def stored_plan(plan: Plan, store: RunStore, left: Iterable[RunPoint] = ()) -> dict[str, Any]:
    """For plan.json. Arms of an earlier part of the run that this part leaves alone stay as they were served, and
    what is `left` of them stays to do.

    One that cannot be read is replaced: what it said of the arms of this part is said anew.
    """
    new: dict[str, Any] = plain(plan)
    new[LEFT_KEY] = plain(tuple(left))
    old = plan_left(store)
    for key in ("modes", "unsupported", "worker_paths"):
        new[key] = {**(old.get(key) or {}), **new[key]}
    here = {arm["name"] for arm in new["arms"]}
    new["arms"] = [*new["arms"], *(arm for arm in old.get("arms") or () if arm["name"] not in here)]
    return new


def planned_arms(plan: Mapping[str, Any]) -> Iterator[str]:
    """Of plan.json: the arms of its boots, and of what is left to a later part; some more than once."""
    for boot in plan.get("boots") or ():
        yield boot["arm"]
        yield from boot.get("shares") or ()
    for point in plan.get(LEFT_KEY) or ():
        yield point["arm"]


def _arg(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def home_of(meta: Mapping[str, Any], arm: str, boot: int) -> Home:
    shared = meta.get(SHARED_KEY)
    return Home(shared["started_as"], shared["boot"]) if isinstance(shared, Mapping) else Home(arm, boot)


def home_in(store: RunStore, arm: str, boot: int) -> Home:
    """The same of a boot of an arm, as its points say; of one without points as it was planned."""
    for point in store.points():
        if (point.arm, point.boot) == (arm, boot):
            return home_of(point.meta, arm, boot)
    for planned in plan_left(store).get("boots") or ():
        if arm in (planned.get("shares") or ()) and planned["boot"] == boot:
            return Home(planned["arm"], boot)
    return Home(arm, boot)


def shared_arms(points: Iterable[PointResult]) -> tuple[tuple[str, ...], ...]:
    """Groups of arms that were measured in the same boots, by the marks of their points."""
    groups: dict[str, dict[str, None]] = {}
    for point in points:
        mark = point.extra.get(SHARED_KEY)
        if isinstance(mark, Mapping):
            groups.setdefault(str(mark["started_as"]), {})[point.arm] = None
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)
