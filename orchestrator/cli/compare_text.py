"""`dynspec compare` as lines and as a JSON value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.analysis.compare import RunComparison
from orchestrator.analysis.summary import contrast_json
from orchestrator.analysis.verdict import Comparison, higher_is_better
from orchestrator.report.gate_text import gate_lines as gate_lines
from orchestrator.report.gate_text import unlike_lines
from orchestrator.report.text import levels, percent, percent_range, plural

_CALLS = {"better": "better", "worse": "worse", "inconclusive": "inside the noise"}


def comparison_lines(a: str, b: str, found: RunComparison, unfinished: Mapping[str, str]) -> list[str]:
    """Unlike set-ups first, then one line an arm: what run A is against run B. `unfinished`: run id -> how it ended."""
    want = "higher is better" if higher_is_better(found.metric) else "lower is better"
    lines = [f"{found.metric} of {a} (A) against {b} (B); {want}"]
    lines += unlike_lines(found.unlike)
    lines += [
        f"  {run} did not come to its end ({state}): what it lacks is not seen here"
        for run, state in unfinished.items()
    ]
    lines += [f"  {line}" for arm in found.arms for line in _arm(arm)]
    lines += [f"  {arm}: only in A" for arm in found.only_a]
    lines += [f"  {arm}: only in B" for arm in found.only_b]
    if not found.arms:
        lines.append("  the runs have no arm in common")
    return lines


def _arm(item: Comparison) -> list[str]:
    if item.headline is None:
        return [f"{item.arm}: nothing to compare ({'; '.join(item.notes)})"]
    change = percent(item.headline.ratio - 1)
    over = plural(len(item.headline_points), "point")
    boots = f"{item.headline.n_a} and {item.headline.n_b} boots"
    if not item.headline.tested:
        return [f"{item.arm}: {change}, an estimate without a verdict ({over}, {boots})"]
    low, high = item.headline.low, item.headline.high
    spread = percent_range(low and low - 1, high and high - 1)
    head = f"{item.arm}: {_CALLS[item.call]}, {change} ({spread}; {over}, {boots})"
    single = [(point.index, point.call) for point in item.points if point.call != "inconclusive"]
    at = [
        f"  {call} at concurrency {levels([c for c, own in single if own == call])}"
        for call in ("better", "worse")
        if any(own == call for _, own in single)
    ]
    return [head, *at]


def comparison_json(a: str, b: str, found: RunComparison) -> dict[str, Any]:
    arms = {
        item.arm: {
            "verdict": item.call,
            **contrast_json(item.headline),
            "points": [
                {"concurrency": point.index, "verdict": point.call, **contrast_json(point.contrast)}
                for point in item.points
            ],
            "notes": list(item.notes),
        }
        for item in found.arms
    }
    return {
        "schema": 1,
        "a": a,
        "b": b,
        "metric": found.metric,
        "arms": arms,
        "only_a": list(found.only_a),
        "only_b": list(found.only_b),
        "unlike": [vars(item) for item in found.unlike],
    }
