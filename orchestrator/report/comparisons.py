"""Each comparison of two arms in a sentence, what its boots could have shown, and what moved meanwhile. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Any

from orchestrator.report.lost import lost
from orchestrator.report.shapes import Summary
from orchestrator.report.text import levels, listed, percent, percent_range, plural


def _all_count(summary: Summary, verdict: dict[str, Any]) -> bool:
    return lost(summary, (verdict["arm"], verdict["against"])) is None


def verdict_line(summary: Summary, verdict: dict[str, Any]) -> str:
    head = f"{verdict['arm']} against {verdict['against']}"
    if "change" not in verdict:
        return f"{head}: nothing to compare ({'; '.join(verdict['notes'])})."
    spread = percent_range(verdict.get("low"), verdict.get("high"))
    size = f"{percent(verdict['change'])} output tokens/s" + (f" ({spread})" if spread else "")
    boots = plural(verdict["n"], "boot" if _all_count(summary, verdict) else "valid boot")
    over = f"{_mean_over(summary, verdict)}, {boots} an arm"
    if verdict["n"] < 2:
        return f"{head}: {size}, an estimate without a verdict ({over})."
    within = f", so no difference beyond {effect}" if (effect := bounded(verdict)) else ""
    return f"{head}: {verdict['verdict']}, {size}{within}; {over}."


def _mean_over(summary: Summary, verdict: dict[str, Any]) -> str:
    """The means of two comparisons over unlike points do not compare, so what is left out is named."""
    without = _left_out(summary, verdict)
    points = plural(len(verdict["points_in_headline"]), "point")
    return f"mean over {points}{f' (without concurrency {levels(without)})' if without else ''}"


def _left_out(summary: Summary, verdict: dict[str, Any]) -> list[int]:
    """Concurrencies of the sweep that the mean lacks, also in one of several passes."""
    pair = [summary["arms"][verdict[side]]["points"] for side in ("arm", "against")]
    wanted: Counter[int] = Counter(summary["asked"])
    for points in pair:
        wanted |= Counter(point["concurrency"] for point in points)
    return sorted(wanted - Counter(verdict["points_in_headline"]))


def shorter_lines(summary: Summary) -> list[str]:
    """Which points a mean lacks, for where a table shows the rest of each comparison."""
    return [
        f"{verdict['arm']} against {verdict['against']}: {_mean_over(summary, verdict)}."
        for verdict in summary["verdicts"]
        if "change" in verdict and _left_out(summary, verdict)
    ]


def bounded(verdict: dict[str, Any]) -> str:
    """The effect inside of which the whole interval lies, which says more than "inconclusive" does; else empty."""
    effect = verdict["power"]["effect"]
    low, high = verdict.get("low"), verdict.get("high")
    if verdict["verdict"] != "inconclusive" or low is None or high is None or max(-low, high) > effect:
        return ""
    return percent(effect, signed=False)


def twin_line(verdict: dict[str, Any]) -> str:
    head = f"A/A check, {verdict['arm']} and {verdict['against']} have the same settings"
    if verdict.get("low") is None:
        return f"{head}: not tested ({'; '.join(verdict['notes']) or 'one boot that counts'})."
    spread = percent_range(verdict["low"], verdict["high"])
    if verdict["verdict"] == "inconclusive":
        return f"{head}: they differ by {percent(verdict['change'])} ({spread}), inside the noise."
    far = percent(max(abs(verdict["low"]), abs(verdict["high"])), signed=False)
    return (
        f"{head} and yet differ by {percent(verdict['change'])} ({spread}): something beside the settings moves the "
        f"numbers, so no difference up to {far} is called."
    )


def power_lines(summary: Summary) -> list[str]:
    """What these boots could have shown, for the comparison that could show least."""
    known = [v for v in summary["verdicts"] if v["power"]["power"] is not None]
    if not known:
        return []
    verdict = min(known, key=lambda v: float(v["power"]["power"]))
    power, effect = verdict["power"], percent(verdict["power"]["effect"], signed=False)
    found = "over 99%" if power["power"] > 0.99 else f"{power['power']:.0%}"
    head = f"Power: {plural(power['at_boots'], 'boot')} an arm find a true {effect} difference {found} of the time"
    head += f" (noisiest pair: {verdict['arm']} and {verdict['against']})"
    if power["more_boots"] is None:
        return [f"{head}; more than 100 boots would be needed to see {effect}."]
    more = power["more_boots"]
    return [f"{head}; it needs {plural(more, 'more boot')} an arm to see {effect}." if more else f"{head}."]


def drift_line(verdict: dict[str, Any]) -> str:
    drift = verdict["drift"]
    if not drift or not drift["seen"]:
        return ""
    return (
        f"Drift: over the run {verdict['arm']} and {verdict['against']} changed together by "
        f"{percent(drift['total'] - 1)}; a straight trend over the order of boots is taken out of their comparison."
    )


def loss_lines(summary: Summary) -> list[str]:
    """Where a dynamic arm loses to one of the arms that it should match."""
    lines = []
    for verdict in summary["verdicts"]:
        worse = [p for p in verdict["points"] if p["verdict"] == "worse"]
        if verdict["arm"] in summary["roles"]["dynamic"] and worse:
            at = listed([f"{p['concurrency']} ({percent(p['change'])})" for p in worse])
            lines.append(f"{verdict['arm']} loses to {verdict['against']} at concurrency {at}.")
    return lines
