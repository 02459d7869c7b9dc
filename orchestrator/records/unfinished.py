"""Whether a run came to its end, who drives it if it did not, and which of its planned measurements it lacks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from orchestrator.model.result import ENDED, Outcome, Unfinished
from orchestrator.records.begun import goes_on_with
from orchestrator.records.driver import driver_of
from orchestrator.records.events import events_of
from orchestrator.records.planned import LEFT_KEY, plan_left
from orchestrator.store import RunStore

_ANY = -1  # position in the sweep, of a plan that names boots alone


def unfinished(store: RunStore, ended: Outcome | None) -> Unfinished | None:
    """`ended`: how the run ended, where that is known. None for a run that came to its end.

    One whose end is lost is taken for unfinished where it lacks something, or may.
    """
    if ended is not None:
        return None if ended.state in ENDED else _lacking(store, "")
    if store.finished or outcome_lost(store):
        found = replace(_lacking(store, ""), untold=True)
        return found if found.missing or not found.planned else None
    return _lacking(store, under_way(store))


def under_way(store: RunStore) -> str:
    """Who drives the run right now: "pid 12 on host"; empty where nobody does."""
    driver = driver_of(store.folder)
    return f"pid {driver.pid or 'unknown'} on {driver.host}" if driver is not None else ""


def outcome_lost(store: RunStore) -> bool:
    """The run says that it ended, or nothing is left that could say it, and its outcome is not there.

    While it is driven, the outcome is about to be written.
    """
    if store.finished or under_way(store):
        return False
    ended = True
    for event in events_of(store):
        ended = event["event"] == "outcome"  # of an earlier part: more follows
    return ended


def _lacking(store: RunStore, driver: str) -> Unfinished:
    measured = {(point.arm, point.boot, point.index) for point in store.points()}
    begun = {(arm, boot) for arm, boot, _ in measured}
    plan = plan_left(store)
    planned = _planned(plan)
    missing = {
        (arm, boot)
        for arm, boot, index in planned
        if ((arm, boot) not in begun if index == _ANY else (arm, boot, index) not in measured)
    }
    boots = Counter(arm for arm, _ in begun | {(arm, boot) for arm, boot, _ in planned})
    lacked = Counter(arm for arm, _ in missing)
    return Unfinished(
        driver,
        {arm: boots[arm] for arm in sorted(boots)},
        {arm: lacked[arm] for arm in sorted(lacked)},
        bool(missing & begun),
        goes_on_with(store),
        planned=bool(plan),
    )


def _planned(plan: dict[str, Any]) -> set[tuple[str, int, int]]:
    """(arm, boot, position in the sweep). A resumed run plans what it had not measured yet, or leaves it."""
    deeds = [*(step.get("do") or {} for step in plan.get("steps") or ()), *(plan.get(LEFT_KEY) or ())]
    points = {(do["arm"], do["boot"], do["index"]) for do in deeds if do.get("type") == "RunPoint"}
    boots = plan.get("boots") or ()
    return points or {
        (arm, boot["boot"], _ANY) for boot in boots for arm in boot.get("shares") or (boot["arm"],)
    }
