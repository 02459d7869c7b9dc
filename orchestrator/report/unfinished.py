"""Of a run that has not come to its end: what it lacks, and how to go on. Pure."""

from __future__ import annotations

from typing import Any

from orchestrator.model.result import RunInfo, Unfinished
from orchestrator.report.claims import TESTABLE, estimate, gain
from orchestrator.report.lost import lost
from orchestrator.report.shapes import Parts, Summary
from orchestrator.report.text import listed, sentence

_ENDS = {"interrupted": "interrupted", "failed": "failed", "dirty": "failed", "refused": "refused"}


def unmeasured(summary: Summary, info: RunInfo) -> Parts | None:
    """Where an arm that the answer needs has no measurement, for want of an end."""
    wanted = needed(summary)
    empty = [arm for arm in wanted if not summary["arms"].get(arm, {}).get("points")]
    if info.unfinished is None or not (empty or not wanted):
        return None
    some, several = listed(empty) if empty != wanted else "", len(empty) > 1
    if info.unfinished.under_way:
        told = f"{some} {'are' if several else 'is'} not measured" if some else "nothing is measured"
        return f"{_lead(info)}, {told} yet", _rest(summary, info)
    was = "were" if some and several else "was"
    if info.state in _ENDS:
        return f"{_lead(info)} before {some or 'anything'} {was} measured", _rest(summary, info)
    return f"{_lead(info)}, {f'{some} {was} not' if some else 'nothing was'} measured", _rest(summary, info)


def without_pair(summary: Summary, info: RunInfo) -> Parts | None:
    """Where both sides were measured, not at the same points, and more was to come."""
    if info.unfinished is None or not _lacks(info.unfinished) or summary["roles"]["baseline"] is None:
        return None
    gone = lost(summary, needed(summary))
    why = f"; {gone.count}, as {gone.cause}" if gone else ""
    none = f"no point is valid both with and without speculation{why}"
    return f"{_lead(info)}, no verdict{_yet(info)}", f"{none}; {_rest(summary, info)}"


def too_early(summary: Summary, info: RunInfo, item: dict[str, Any]) -> Parts | None:
    """Where boots that are missing would have told: more repeats than were asked for are no advice then."""
    boots = min(change["n"] for change in item["changes"])
    pair = {item["arm"], item["against"]}
    if info.unfinished is None or not pair & info.unfinished.missing.keys() or boots >= TESTABLE:
        return None
    lead = f"{_lead(info)}, no verdict{_yet(info)} from {boots} server boot{'s' if boots > 1 else ''} an arm"
    if item["kind"] == "untested":
        told = f"{estimate(item)}: {item['arm']} against {item['against']} is {gain(item)}"
    else:
        told = f"they do not tell {item['arm']} and {item['against']} apart ({gain(item)})"
    return lead, f"{told}; {_rest(summary, info)}"


def beside(summary: Summary, info: RunInfo) -> str:
    """One line for a report whose first sentence speaks of something else; empty where there is nothing to say."""
    end = info.unfinished
    if end is None:
        return ""
    unended = "NO OUTCOME" if end.untold else "NOT AT ITS END"
    head = _ENDS.get(info.state, info.state).upper() or unended
    if end.under_way:
        head = f"UNDER WAY ({end.under_way})"
    told = f"what is said here is of what was measured{_yet(info)}"
    if not _measured(summary):
        told = f"nothing was measured{_yet(info)}"
    elif not end.planned:
        told += ", and it is unknown what was planned"
    elif not end.missing:
        told = "all that was planned is measured"
    return sentence(f"{head}: {'; '.join(filter(None, (told, _rest(summary, info))))}")


def needed(summary: Summary) -> list[str]:
    """The arms that the answer is about."""
    parts = summary["roles"]
    speculating = [*parts["static"], *parts["dynamic"]]
    base = [parts["baseline"]] if parts["baseline"] else []
    return [*speculating, *base] if speculating else list(summary["arms"])


def _lead(info: RunInfo) -> str:
    if info.unfinished is not None and info.unfinished.under_way:
        return f"The run is under way ({info.unfinished.under_way})"
    if info.unfinished is not None and info.unfinished.untold:
        return "It is unknown how the run ended"
    ended = _ENDS.get(info.state)
    return ended.capitalize() if ended else "The run did not come to its end"


def _yet(info: RunInfo) -> str:
    return " so far" if info.unfinished is not None and info.unfinished.under_way else ""


def _rest(summary: Summary, info: RunInfo) -> str:
    """Why it failed, what is missing, what to do."""
    end = info.unfinished or Unfinished()
    why = info.message.partition("\n")[0].rstrip(". ") if info.state in ("failed", "dirty", "refused") else ""
    return "; ".join(part for part in (why, _missing(summary, end), _advice(info, end)) if part)


def _missing(summary: Summary, end: Unfinished) -> str:
    """2 of 3 boots of baseline and the only boot of eagle3 are missing; empty while nothing is measured yet."""
    order = [arm for arm in summary["arms"] if arm in end.missing] or sorted(end.missing)
    if not order or (end.under_way and not _measured(summary)):
        return ""
    word = "repetition" if summary["tune"] else "boot"
    told = [
        f"the only {word} of {arm}"
        if end.boots[arm] == 1
        else f"{end.missing[arm]} of {end.boots[arm]} {word}s of {arm}"
        for arm in order
    ]
    one = len(order) == 1 and end.missing[order[0]] == 1
    return f"{listed(told)} {'is' if one else 'are'} {'incomplete or ' if end.partly else ''}missing"


def _measured(summary: Summary) -> bool:
    return any(arm["points"] for arm in summary["arms"].values())


def _advice(info: RunInfo, end: Unfinished) -> str:
    if end.under_way:
        return ""
    if info.state == "dirty":
        return f"the node is not as it was: put it back first: {info.restore}"
    return f"go on with: {end.resume}" if end.resume and _lacks(end) else ""


def _lacks(end: Unfinished) -> bool:
    """Something is missing, or may be."""
    return bool(end.missing) or not end.planned
