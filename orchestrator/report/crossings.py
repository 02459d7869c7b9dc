"""Where an arm starts or stops paying: a place with its interval, or the two points around its own switch. Pure."""

from __future__ import annotations

from typing import Any

from orchestrator.report.text import concurrency, listed

_VERBS = {"worse": "stops", "better": "starts"}
UNIT = " concurrent requests"


def interval(crossing: dict[str, Any]) -> str:
    """Empty where one boot has none."""
    if crossing["low"] is None:
        return ""
    low, high = concurrency(crossing["low"]), concurrency(crossing["high"])
    if low == high:
        low, high = f"{crossing['low']:.1f}", f"{crossing['high']:.1f}"
    return f" (95% interval {low} to {high})"


def place(crossing: dict[str, Any], unit: str = UNIT) -> str:
    return f"about {concurrency(crossing['concurrency'])}{unit}{interval(crossing)}"


def between(turn: dict[str, Any], unit: str = "") -> str:
    """All that measured points tell of a turn beside the arm's own switch."""
    switches = "switches" if turn["seen"] else "may switch"
    return f"between {turn['low']} and {turn['high']}{unit}, where it {switches} by itself"


def turns(item: dict[str, Any]) -> str:
    """Every turn of a crossover, as concurrency grows; empty without any."""
    found = [(crossing["concurrency"], crossing) for crossing in item["crossings"]]
    found += [(turn["low"], turn) for turn in item["across_switch"]]
    found.sort(key=lambda entry: float(entry[0]))
    return listed([_turn(turn, "" if nth else UNIT) for nth, (_, turn) in enumerate(found)])


def _turn(turn: dict[str, Any], unit: str) -> str:
    where = f"at {place(turn, unit)}" if "concurrency" in turn else between(turn, unit)
    return f"{_VERBS[turn['turns']]} paying {where}"
