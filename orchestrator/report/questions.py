"""The first sentence of runs that ask something else: what do steps cost, which threshold is best, how fast is one arm?

Each answer comes in two parts, for a title and a line below it; None where the run does not ask that, or cannot tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.report.lost import lost, uncounted
from orchestrator.report.shapes import Parts, Summary
from orchestrator.report.stepping import BELOW, MADE_OF_TWO_RUNS
from orchestrator.report.text import half_width, listed, number, percent, percent_range, plural

_MOST_LEVELS = 3  # more concurrencies are told by the first and the last


def stepping_answer(summary: Summary) -> Parts | None:
    """Of a load that steps across a threshold: the arm that switches, of several the fastest that can tell most."""
    load, switching = summary.get("straddle"), summary["roles"]["dynamic"]
    arms = [arm for arm in (load or {}).get("arms", ()) if arm["arm"] in switching and "output_tps" in arm]
    if not load or not arms:
        return None
    arm = max(arms, key=lambda item: ("steady" in item, item["output_tps"]))
    lead = f"Under steps between {load['low']} and {load['high']} requests in flight {arm['arm']} gives "
    lead += _rate(summary, arm)
    if steady := arm.get("steady"):
        mean = f"the time-weighted mean of the two steady loads ({number(steady['expected_tps'])}; {MADE_OF_TWO_RUNS})"
        lead += f", {percent(steady['change'])} against {mean}{BELOW.get(steady['verdict'], '')}"
    elif others := arm.get("against"):
        lead += f", {listed([_against(other) for other in others])}"
    return lead, _course(load, arm)


def _rate(summary: Summary, arm: Mapping[str, Any]) -> str:
    points = summary["arms"][arm["arm"]]["points"]
    spread = next(
        (half_width(p["metrics"].get("output_tps")) for p in points if p["index"] == arm["index"]), ""
    )
    return f"{number(arm['output_tps'])} tokens/s" + (f" ({spread})" if spread else "")


def _against(other: Mapping[str, Any]) -> str:
    told = other.get("output_tps")
    if told is None:
        return f"of unknown rate against {other['arm']}"
    spread = percent_range(told.get("low"), told.get("high"))
    sure = f"95% interval {spread}" if spread else f"an estimate from {plural(told['n'], 'boot')} an arm"
    return f"{percent(told['change'])} against {other['arm']} ({sure})"


def _course(load: Mapping[str, Any], arm: Mapping[str, Any]) -> str:
    """How the load went, and what is not known."""
    told = [f"a step every {load['period_s'] / 2:g} s"]
    if "share_above" in arm:
        told.append(f"{percent(arm['share_above'], signed=False)} of the time above {load['around']}")
    if "transitions_per_s" in arm:
        told.append(f"{number(arm['transitions_per_s'])} transitions per second")
    if arm.get("steady"):
        return listed(told)
    levels = f"{load['low']} and at {load['high']}"
    return (
        f"{listed(told)}; what the steps cost is unknown without a run of steady load at {levels} beside it"
    )


def tune_answer(summary: Summary) -> Parts | None:
    """Of a run of `dynspec tune`."""
    advice = summary.get("tune")
    return tune_words(advice) if advice else None


def tune_words(advice: Mapping[str, Any]) -> Parts:
    """`advice`: the fields of an `analysis.recommend.Recommendation`."""
    if advice["advice"] == "threshold":
        low, high = advice["low"], advice["high"]
        between = "" if low is None else f" (95% interval {low} to {high})"
        return f"Threshold {advice['threshold']}{between}", advice["why"]
    leads = {"off": "Never speculate", "on": "Always speculate", "none": "No threshold"}
    return leads[advice["advice"]], advice["why"]


def one_arm_answer(summary: Summary) -> Parts | None:
    """Of a run with a single arm: what was measured, without a verdict that nobody asked for."""
    if len(summary["arms"]) != 1:
        return None
    ((name, arm),) = summary["arms"].items()
    valid = {point["concurrency"]: point for point in reversed(arm["points"]) if point["valid"]}
    rates = {
        level: point["metrics"]["output_tps"]
        for level, point in sorted(valid.items())
        if "output_tps" in point["metrics"]
    }
    if not rates:
        return _nothing_counts(summary, name)
    gone = uncounted(summary, (name,), sorted({point["concurrency"] for point in arm["points"]} - set(valid)))
    told = f"{name} gives {_rates(rates)}"
    return "One arm, no comparison", f"{told}; {gone}" if gone else told


def _rates(rates: Mapping[int, Mapping[str, Any]]) -> str:
    words = [f"{_with_spread(rate)} at {level}" for level, rate in rates.items()]
    words[0] = words[0].replace(" at ", " output tokens/s at concurrency ")
    return listed(words) if len(words) <= _MOST_LEVELS else f"{words[0]} up to {words[-1]}"


def _with_spread(rate: Mapping[str, Any]) -> str:
    spread = half_width(dict(rate))
    return f"{number(rate['value'])} ({spread})" if spread else number(rate["value"])


def _nothing_counts(summary: Summary, name: str) -> Parts | None:
    gone = lost(summary, (name,))
    return None if gone is None else (f"No number counts, {gone.cause}", f"{gone.count}; {gone.advice}")
