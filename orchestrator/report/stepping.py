"""A load that steps across a threshold, and requests that were taken back, in sentences. Pure."""

from __future__ import annotations

from typing import Any

from orchestrator.report.text import listed, number, percent, percent_range, plural

_METRICS = (
    ("output_tps", "output tokens/s"),
    ("tpot_p50", "median time per output token"),
    ("e2e_p50", "median time per request"),
)
MADE_OF_TWO_RUNS = "boots of two runs, so an estimate without an interval"
BELOW = {"collapse": ", below even the slower of the two", "cost": ", more than 3% short of it"}


def stepping_lines(summary: dict[str, Any]) -> list[str]:
    """Empty for other loads, and for summaries that know of none."""
    load = summary.get("straddle")
    if not load:
        return []
    if not load["arms"]:
        return [f"{_head(load)}: no valid point, so nothing is known of it."]
    lines = [_time_line(load, arm) for arm in load["arms"]]
    lines += [_steady_line(load, arm) for arm in load["arms"] if arm.get("steady")]
    if not any(arm.get("steady") for arm in load["arms"]):
        lines.append(
            f"No run beside this one has steady load at {load['low']} and at {load['high']} with the same set-up and a "
            "valid point, so what the steps themselves cost is unknown."
        )
    lines += [_against_line(arm["arm"], other) for arm in load["arms"] for other in arm.get("against", ())]
    return lines + [line for arm in load["arms"] for line in _resume_lines(arm)]


def _head(load: dict[str, Any]) -> str:
    half_s = load["period_s"] / 2
    return f"Load that steps between {load['low']} and {load['high']} requests in flight every {half_s:g} s"


def _time_line(load: dict[str, Any], arm: dict[str, Any]) -> str:
    told = []
    if "output_tps" in arm:
        told.append(f"{number(arm['output_tps'])} output tokens/s")
    if "share_above" in arm:
        told.append(f"{percent(arm['share_above'], signed=False)} of the time above {load['around']}")
    if "transitions_per_s" in arm:
        told.append(f"{number(arm['transitions_per_s'])} transitions per second")
    return f"{_head(load)}: {arm['arm']} has {listed(told) if told else 'no rate'}."


def _steady_line(load: dict[str, Any], arm: dict[str, Any]) -> str:
    steady = arm["steady"]
    change = f"{percent(steady['change'])}{BELOW.get(steady['verdict'], '')}"
    return (
        f"Steps against steady load: {arm['arm']} gives {number(arm['output_tps'])} tokens/s, and the mean of steady "
        f"{load['low']} ({number(steady['low_tps'])}) and {load['high']} ({number(steady['high_tps'])}) by the time on "
        f"each side is {number(steady['expected_tps'])}: {change}. "
        f"Steady loads of run {load['steady_run']}; {MADE_OF_TWO_RUNS}."
    )


def _against_line(name: str, other: dict[str, Any]) -> str:
    parts = [f"{_change(other[key])} {words}" for key, words in _METRICS if key in other]
    boots = min(other[key]["n"] for key, _ in _METRICS if key in other)
    sure = "an estimate from 1 boot an arm" if boots < 2 else plural(boots, "boot") + " an arm"
    return f"Under the same steps {name} has {listed(parts)} against {other['arm']} ({sure})."


def _change(told: dict[str, Any]) -> str:
    spread = percent_range(told.get("low"), told.get("high"))
    return percent(told["change"]) + (f" ({spread})" if spread else "")


def _resume_lines(arm: dict[str, Any]) -> list[str]:
    lines = []
    if accept := arm.get("accept"):
        lines.append(
            f"Resume penalty: speculative steps of {arm['arm']} give {accept['length']:.2f} tokens each, those of "
            f"{accept['against']}, which never switches, {accept['theirs']:.2f}: {_penalty(accept['change'])}."
        )
    if seen := arm.get("resume"):
        lines.append(
            f"Around {plural(seen['resumes'], 'resume')} in the log of {arm['arm']} the accept length is "
            f"{seen['first']:.2f} in the first whole line after, {seen['before']:.2f} in the last before: "
            f"{_penalty(seen['change'])}."
        )
    return lines


def _penalty(change: float) -> str:
    return percent(change) if change < 0 else f"{percent(change)}, so no penalty is seen"


def retraction_lines(summary: dict[str, Any]) -> list[str]:
    """One sentence an arm, with the count of each boot whose log has any."""
    counts: dict[str, list[str]] = {}
    for item in summary.get("kv_retractions") or ():
        counts.setdefault(item["arm"], []).append(f"{item['requests']} in boot {item['boot']}")
    return [
        f"{arm}: the KV cache was full, and the server sent requests back to its queue, warm-up and canary included: "
        f"{listed(told)}. Their time counts in the latencies."
        for arm, told in counts.items()
    ]
