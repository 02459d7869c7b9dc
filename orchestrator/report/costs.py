"""What switching costs, what one user sees, whether text and load are the same, in sentences. Pure."""

from __future__ import annotations

import json
import math
from typing import Any

from orchestrator.model.result import RunInfo
from orchestrator.report.crossings import turns
from orchestrator.report.text import levels, listed, percent, percent_range, plural, sentence

_SIDES = (
    ("above", "above its threshold", "disabled tax"),
    ("up_to", "up to its threshold", "cost of being able to switch"),
)


def advice_lines(summary: dict[str, Any]) -> list[str]:
    """The recommended threshold, where there is one."""
    advice = summary["recommendation"]
    if not advice or advice["advice"] != "threshold":
        return []
    spread = "" if advice["low"] is None else f" (95% interval {advice['low']} to {advice['high']})"
    lead = f"For a server that switches by itself, threshold {advice['threshold']}{spread}: "
    lead = sentence(f"{lead}{advice['why']}")
    if advice["native_config"]:
        lead += f" As --speculative-adaptive-config of SGLang 0.5.14 and later: {json.dumps(advice['native_config'])}"
    elif advice["native_why_not"]:
        lead += sentence(f" SGLang's own adaptive mode cannot do the same: {advice['native_why_not']}")
    return [lead]


def cost_lines(summary: dict[str, Any]) -> list[str]:
    """Disabled tax and cost of being able to switch of each arm with a threshold, then output equality."""
    lines = [line for cost in summary["costs"] for line in _both_sides(summary, cost)]
    return lines + [_equality(item) for item in summary["equality"]]


def _was_to_be_measured(summary: dict[str, Any], cost: dict[str, Any], side: str) -> bool:
    """A threshold outside of the sweep has one side only; that is no gap."""
    above = {point["concurrency"] > cost["threshold"] for point in summary["arms"][cost["arm"]]["points"]}
    return (side == "above") in above


def _both_sides(summary: dict[str, Any], cost: dict[str, Any]) -> list[str]:
    head = f"{cost['arm']} (threshold {cost['threshold']})"
    lines = []
    for key, where, name in _SIDES:
        part = cost[key]
        if part is None or not _was_to_be_measured(summary, cost, key):
            continue
        if "change" not in part:
            lines.append(
                f"{head}: {_lacking(summary, cost, part['against'], key)} {where}, so its {name} is unknown."
            )
            continue
        spread = percent_range(part.get("low"), part.get("high")) or "1 boot"
        at = f"at concurrency {listed(part['at'])}"
        lines.append(
            f"{name.capitalize()}: {head} against {part['against']} {where}, {at}: "
            f"{percent(part['change'])} ({spread})."
        )
    return lines


def _lacking(summary: dict[str, Any], cost: dict[str, Any], against: str, side: str) -> str:
    """Which of the two arms has no valid point on this side of the threshold; both may, at different concurrencies."""
    arms = (cost["arm"], against)
    empty = [
        arm
        for arm in arms
        if not any(
            point["valid"] and (point["concurrency"] > cost["threshold"]) == (side == "above")
            for point in summary["arms"][arm]["points"]
        )
    ]
    if len(empty) == 1:
        return f"{empty[0]} has no valid point"
    return f"{' and '.join(arms)} have no valid point" + ("" if empty else " in common")


def _equality(item: dict[str, Any]) -> str:
    base, pairs = item["baseline_share"], item["pairs"]
    if not pairs:
        return f"Same text: {item['arm']} has no output in common with the baseline to compare."
    beside = "the baseline ran in one boot, so its agreement with itself is unknown"
    if base is not None:
        beside = f"the baseline agrees with itself in {_of_all(base)}"
    called = " This is less than noise explains." if item["differs"] else ""
    return (
        f"Same text: {item['arm']} gives the baseline's output in {round(item['share'] * pairs)} of "
        f"{plural(pairs, 'comparison')} ({_of_all(item['share'])}); "
        f"{beside}.{called}"
    )


def _of_all(share: float) -> str:
    """A share in percent, rounded down: 279 of 280 are not 100%."""
    return f"{math.floor(share * 1000) / 10:g}%"


def latency_lines(summary: dict[str, Any]) -> list[str]:
    """The same question for one user: where the time per output token crosses the baseline's."""
    found = []
    for item in summary["crossover"]:
        if item["metric"] != "tpot_p50" or item["against"] != summary["roles"]["baseline"]:
            continue
        head = f"For one user's speed (median time per output token) {item['arm']}"
        if item["kind"] in ("untested", "noise", "nothing"):
            continue
        if told := turns(item):
            found.append(f"{head} {told}.")
        else:
            sides = (("faster", item["better_at"]), ("slower", item["worse_at"]))
            found.append(f"{head} is {listed([f'{word} at {levels(at)}' for word, at in sides if at])}.")
    return found


def load_lines(summary: dict[str, Any], info: RunInfo) -> list[str]:
    """What was sent, from where, and whether every arm got the same."""
    lines = []
    if info.prompts_random:
        lines.append(
            "The prompts are random tokens: how many drafts are accepted on them says nothing about real text."
        )
    kind = {"closed": "closed (a new request when one ends, so no claim on a request rate)"}.get(
        info.load, info.load
    )
    prompts = f"; prompts: {info.prompts}" if info.prompts else ""
    lines.append(f"Load: {kind}, generated on the {info.load_from}{prompts}{_bodies(summary)}.")
    return lines


def _bodies(summary: dict[str, Any]) -> str:
    digests: dict[int, set[str]] = {}
    for arm in summary["arms"].values():
        for point in arm["points"]:
            digests.setdefault(point["index"], set()).update(boot["bodies_sha256"] for boot in point["boots"])
    if not digests or "" in set().union(*digests.values()):
        return ""
    if any(len(own) > 1 for own in digests.values()):
        return "; NOT the same request bodies for all arms"
    first = min(digests)
    return f"; the same request bodies in the same order for all arms (first point: sha256 {min(digests[first])[:12]})"
