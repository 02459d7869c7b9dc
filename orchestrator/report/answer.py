"""The first sentence of every report: should speculation be off, and when? Then what supports it. Pure.

Runs that ask something else have their answers in `questions.py`.

Everything is said from `summary.json`; what was not tested is called an estimate, never a result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from orchestrator.model.result import FailureCard, RunInfo
from orchestrator.report.claims import claim, estimate, gain, says_too_few
from orchestrator.report.comparisons import drift_line, loss_lines, power_lines, twin_line, verdict_line
from orchestrator.report.costs import advice_lines, cost_lines, latency_lines, load_lines
from orchestrator.report.lost import lost, lost_records, uncounted
from orchestrator.report.questions import one_arm_answer, stepping_answer, tune_answer
from orchestrator.report.shapes import Parts, Summary
from orchestrator.report.stepping import retraction_lines, stepping_lines
from orchestrator.report.text import listed, sentence
from orchestrator.report.unfinished import beside, needed, too_early, unmeasured, without_pair

_SYNTHETIC = "synthetic_acceptance"
SIMULATED = (
    "SIMULATED: a stand-in engine answered. These numbers show how the tool works; they are no GPU's speed."
)
OPEN = (
    "OPEN LOAD: requests come at a set rate, so output tok/s is mostly that rate, and comparing it says little; "
    "compare the latencies (ttft, tpot, e2e)."
)


def answer(summary: Summary, info: RunInfo) -> str:
    """One plain sentence, for most runs from the strongest arm with speculation that never switches off."""
    lead, rest = lead_and_rest(summary, info)
    return sentence(f"{lead}: {rest}" if rest else lead)


def lead_and_rest(summary: Summary, info: RunInfo) -> tuple[str, str]:
    """The answer in two parts, for a title and a line below it; the second may be empty."""
    lead, rest = _of_the_end(summary, info) or _of_the_numbers(summary, info)
    return (f"Simulated run: {lead[0].lower()}{lead[1:]}" if info.simulated else lead), rest


def _of_the_numbers(summary: Summary, info: RunInfo) -> Parts:
    found, main = stepping_answer(summary), main_crossover(summary)
    if found is None and main is not None:
        found = _spoiled(summary, main)
        found = found or (_arrivals(summary) if info.load == "open" else _with_uncounted(summary, main))
    return found or _without_crossover(summary, info)


def _arrivals(summary: Summary) -> Parts:
    """Under an open load: what one user sees may be claimed, tokens/s not."""
    why = "under an open load it is mostly the rate at which requests come"
    told = latency_lines(summary)
    seen = f"{told[0][0].lower()}{told[0][1:].removesuffix('.')}" if told else "compare the latencies below"
    return "No verdict from output tokens/s", f"{why}; {seen}"


def _of_the_end(summary: Summary, info: RunInfo) -> Parts | None:
    """Where the answer is that the run has not come to its end; None where what it measured says more."""
    if info.unfinished is None or stepping_answer(summary) is not None:
        return None
    main = main_crossover(summary)
    if main is not None:
        too_few = main["kind"] == "untested" or says_too_few(summary, main)
        return too_early(summary, info, main) if too_few and not _spoiled(summary, main) else None
    if _failed_arm(summary, info) or _records_gone(summary, info):
        return None
    if (found := unmeasured(summary, info)) is not None:
        return found
    return None if tune_answer(summary) or one_arm_answer(summary) else without_pair(summary, info)


def banners(summary: Summary, info: RunInfo) -> list[str]:
    """What must be known before any number is read."""
    made_up = [
        name
        for name, arm in summary["arms"].items()
        if any(note.startswith(_SYNTHETIC) for point in arm["points"] for note in point["notes"])
    ]
    lines = [SIMULATED] if info.simulated else []
    if (end := beside(summary, info)) and _of_the_end(summary, info) is None:
        lines.append(end)
    if info.load == "open":
        lines.append(OPEN)
    if info.damage:
        many = len(info.damage) > 1
        files = (
            f"{len(info.damage)} of its files or folders are" if many else "one of its files or folders is"
        )
        lines.append(
            f"DAMAGED RUN FOLDER: {files} lost or unreadable, so not all can be known; see the notes."
        )
    if made_up:
        lines.append(
            f"SYNTHETIC ACCEPTANCE: the accept length of {listed(made_up)} was set, not measured. Step times are real; "
            "what speculation wins with a real draft model is not shown."
        )
    return lines


def supporting(summary: Summary, info: RunInfo) -> list[str]:
    """Further sentences, most useful first."""
    lines = [verdict_line(summary, verdict) for verdict in summary["verdicts"]]
    return list(
        dict.fromkeys([*advice_lines(summary), *lines, *beyond_verdicts(summary, info), *notes(info)])
    )


def notes(info: RunInfo) -> list[str]:
    """What is lost of the run folder, and what its plan warned of."""
    return [
        *(sentence(f"Lost: {text}") for text in info.damage),
        *(f"Note: {text}" for text in info.warnings),
    ]


def beyond_verdicts(summary: Summary, info: RunInfo) -> list[str]:
    """The same without one line a comparison, for where a table shows those."""
    lines = [twin_line(verdict) for verdict in summary["twins"]]
    lines += power_lines(summary)
    lines += [line for verdict in summary["verdicts"] if (line := drift_line(verdict))]
    lines += loss_lines(summary)
    lines += latency_lines(summary)
    lines += cost_lines(summary)
    lines += stepping_lines(summary)
    lines += load_lines(summary, info)
    lines += _note_lines(summary)
    lines += retraction_lines(summary)
    lines += [sentence(f"{arm} was not run: {why}") for arm, why in info.unsupported.items()]
    return list(dict.fromkeys(lines))


def main_crossover(summary: Summary) -> dict[str, Any] | None:
    """Static speculation against the baseline, else a dynamic arm; of several the one that counts at the most points,
    and of those the first one that nothing tells from the best: a patch that changes nothing outdoes no arm."""
    parts, metric = summary["roles"], summary["metric"]
    found: dict[str, dict[str, Any]] = {
        item["arm"]: item for item in summary["crossover"] if _is_main(item, parts, metric)
    }
    for group in (parts["static"], parts["dynamic"]):
        arms = [arm for arm in group if arm in found and found[arm]["kind"] != "nothing"]
        if arms:
            return found[_strongest({arm: _strength(summary, found[arm]) for arm in arms})]
    return None


def _strongest(arms: Mapping[str, _Strength]) -> str:
    points, best = max((strength.points, strength.change) for strength in arms.values())
    return next(arm for arm, own in arms.items() if own.points == points and own.reaches >= best)


def _is_main(item: dict[str, Any], parts: dict[str, Any], metric: str) -> bool:
    return bool(item["metric"] == metric and item["against"] == parts["baseline"])


class _Strength(NamedTuple):
    """Headlines over different points do not compare: an arm that lost its worst point would look best."""

    points: tuple[int, int]  # concurrencies that count at all, those in the headline
    change: float  # the headline
    reaches: float  # the upper end of its interval; the headline itself where there is none


def _strength(summary: Summary, item: dict[str, Any]) -> _Strength:
    pair = (item["arm"], item["against"])
    known = (v for v in summary["verdicts"] if (v["arm"], v["against"]) == pair and "change" in v)
    verdict: dict[str, Any] = next(known, {"change": float("-inf"), "points_in_headline": []})
    points = len(item["changes"]), len(set(verdict["points_in_headline"]))
    high = verdict.get("high")
    return _Strength(points, verdict["change"], verdict["change"] if high is None else high)


def _with_uncounted(summary: Summary, item: dict[str, Any]) -> tuple[str, str]:
    """The sentence, with the asked concurrencies that it does not speak of."""
    lead, rest = claim(summary, item)
    gone = uncounted(summary, (item["arm"], item["against"]), item["uncounted_at"])
    return lead, f"{rest}; {gone}" if gone else rest


def _spoiled(summary: Summary, item: dict[str, Any]) -> tuple[str, str] | None:
    """Where boots were measured and do not count, they are the reason for no verdict, and not how many were asked."""
    pair = (item["arm"], item["against"])
    asked, used = min(summary["arms"][arm]["boots"] for arm in pair), min(c["n"] for c in item["changes"])
    gone = lost(summary, pair)
    if gone is None or used >= asked or used > 2 or item["kind"] not in ("untested", "noise"):
        return None
    left = f"what is left cannot tell {item['arm']} and {item['against']} apart"
    if item["kind"] == "untested":
        left = f"what is left is one boot an arm, where {estimate(item)} ({gain(item)})"
    return f"No verdict, {gone.cause}", f"{gone.count}; {gone.advice}; {left}"


def _without_crossover(summary: Summary, info: RunInfo) -> tuple[str, str]:
    parts = summary["roles"]
    speculating = [*parts["static"], *parts["dynamic"]]
    if (card := _failed_arm(summary, info)) is not None:
        at = f" at concurrency {card.concurrency}" if card.concurrency else ""
        return f"No verdict, {card.arm} failed{at}", card.title
    if records := _records_gone(summary, info):
        return f"No verdict, the records of {listed(records)} are lost", "the notes below name each loss"
    if found := tune_answer(summary) or one_arm_answer(summary):
        return found
    gone = lost(summary, needed(summary))
    if speculating and parts["baseline"] is not None and gone is not None:
        left = "no point is left that is valid both with and without speculation"
        return f"No verdict, {gone.cause}", f"{gone.count}; {gone.advice}; {left}"
    why = "no point was measured both with and without it"
    if not speculating:
        why = "no arm of this run speculates"
    elif parts["baseline"] is None:
        why = "no arm without speculation was measured to set it against"
    return "No verdict on speculation", why


def _failed_arm(summary: Summary, info: RunInfo) -> FailureCard | None:
    """Of a run without any valid point with speculation."""
    parts = summary["roles"]
    arms = [*parts["static"], *parts["dynamic"]] or list(summary["arms"])
    return info.failures[0] if info.failures and not _any_valid(summary, arms) else None


def _records_gone(summary: Summary, info: RunInfo) -> list[str]:
    return lost_records(summary, info, needed(summary))


def _any_valid(summary: Summary, arms: list[str]) -> bool:
    return any(point["valid"] for arm in arms for point in summary["arms"].get(arm, {}).get("points", []))


def _note_lines(summary: Summary) -> list[str]:
    """What must be known of whole arms; arms with the same note share a line."""
    arms: dict[str, list[str]] = {}
    for name, arm in summary["arms"].items():
        for note in arm["notes"]:
            arms.setdefault(note, []).append(name)
    return [sentence(f"{listed(names)}: {note}") for note, names in arms.items()]
