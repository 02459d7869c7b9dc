"""What switching costs and whether the text is the same, in sentences. Pure; from `summary.json`."""

from __future__ import annotations

from typing import Any

from orchestrator.report.text import listed, percent, percent_range, plural

_SIDES = (
    ("above", "above its threshold", "disabled tax"),
    ("up_to", "up to its threshold", "cost of being able to switch"),
)


def cost_lines(summary: dict[str, Any]) -> list[str]:
    """Disabled tax and cost of being able to switch of each arm with a threshold, then output equality."""
    lines = [line for cost in summary["costs"] for line in _both_sides(cost)]
    return lines + [_equality(item) for item in summary["equality"]]


def _both_sides(cost: dict[str, Any]) -> list[str]:
    head = f"{cost['arm']} (threshold {cost['threshold']})"
    lines = []
    for key, where, name in _SIDES:
        part = cost[key]
        if part is None:
            continue
        if "change" not in part:
            lines.append(f"{head}: no valid point {where}, so its {name} is unknown.")
            continue
        spread = percent_range(part.get("low"), part.get("high")) or "1 boot"
        at = f"at concurrency {listed(part['at'])}"
        lines.append(
            f"{name.capitalize()}: {head} against {part['against']} {where}, {at}: "
            f"{percent(part['change'])} ({spread})."
        )
    return lines


def _equality(item: dict[str, Any]) -> str:
    own, base = percent(item["share"], signed=False), item["baseline_share"]
    beside = f"the baseline agrees with itself in {percent(base, signed=False)}"
    if base is None:
        beside = "the baseline ran in one boot, so its agreement with itself is unknown"
    called = " This is less than noise explains." if item["differs"] else ""
    return (
        f"Same text: {item['arm']} gives the baseline's output in {own} of {plural(item['pairs'], 'comparison')}; "
        f"{beside}.{called}"
    )
