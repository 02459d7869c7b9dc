"""plan.json of a run folder: the plan that was stored, or nothing where any of it has a wrong shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.store import PLAN, RunStore

LEFT_KEY = "left"  # points that a part of a run leaves to a later one
_POINT = {"arm": str, "boot": int, "index": int}
_ROWS: Mapping[str, Mapping[str, type]] = {
    "arms": {"name": str, "args": dict, "patches": list},
    "boots": {"arm": str, "boot": int},
    "steps": {},
    LEFT_KEY: _POINT,
}
_MAPPINGS = ("modes", "unsupported", "worker_paths")


def plan_left(store: RunStore) -> dict[str, Any]:
    """Empty where it is lost or of a wrong shape further in, for who says so (`records.damage`)."""
    plan = store.section_left(PLAN, "plan")
    return plan if is_whole(plan) else {}


def is_whole(plan: Mapping[str, Any]) -> bool:
    """Whether what is read of it is of the right types. Keys may be absent: earlier versions had fewer."""
    try:
        return all(_checks(plan))
    except (AttributeError, KeyError, TypeError):
        return False


def _checks(plan: Mapping[str, Any]) -> Iterator[bool]:
    """Raises where a list or mapping is something else."""
    for key, fields in _ROWS.items():
        for row in plan.get(key) or ():
            yield _has(row, fields)
    for boot in plan.get("boots") or ():
        yield all(isinstance(arm, str) for arm in boot.get("shares") or ())
    for step in plan.get("steps") or ():
        do = step.get("do") or {}
        yield do.get("type") != "RunPoint" or _has(do, _POINT)
    for key in _MAPPINGS:
        yield isinstance(plan.get(key) or {}, dict)
    yield all(isinstance(path, dict) for path in (plan.get("worker_paths") or {}).values())
    yield isinstance(plan.get("warnings") or [], list)


def _has(row: Any, fields: Mapping[str, type]) -> bool:
    return isinstance(row, dict) and all(isinstance(row[key], kind) for key, kind in fields.items())
