"""The first sentence of every report: should speculation be off, and when? Then what supports it. Pure.

Runs that ask something else have their answers in `questions.py`.

Everything is said from `summary.json`; what was not tested is called an estimate, never a result.
"""

from __future__ import annotations

from typing import Any

from orchestrator.model.result import RunInfo
from orchestrator.report.comparisons import drift_line, loss_lines, power_lines, twin_line, verdict_line
from orchestrator.report.costs import advice_lines, cost_lines, latency_lines, load_lines
from orchestrator.report.lost import lost, lost_records, uncounted
from orchestrator.report.questions import one_arm_answer, stepping_answer, tune_answer
from orchestrator.report.stepping import retraction_lines, stepping_lines
from orchestrator.report.text import concurrency, levels, listed, percent

Summary = dict[str, Any]
_SYNTHETIC = "synthetic_acceptance"
AGAINST = 0.01  # estimates nearer to 0 than this speak for neither side
SIMULATED = (
    "SIMULATED: a stand-in engine answered. These numbers show how the tool works; they are no GPU's speed."
)


def answer(summary: Summary, info: RunInfo) -> str:
    """One plain sentence, for most runs from the strongest arm with speculation that never switches off."""
    lead, rest = lead_and_rest(summary, info)
    return f"{lead}: {rest}." if rest else f"{lead}."


def lead_and_rest(summary: Summary, info: RunInfo) -> tuple[str, str]:
    """The answer in two parts, for a title and a line below it; the second may be empty."""
    main = main_crossover(summary)
    found = stepping_answer(summary)
    if found is None and main is not None:
        found = _spoiled(summary, main) or _with_uncounted(summary, main)
    lead, rest = found or _without_crossover(summary, info)
    return (f"Simulated run: {lead[0].lower()}{lead[1:]}" if info.simulated else lead), rest


def banners(summary: Summary, info: RunInfo) -> list[str]:
    """What must be known before any number is read."""
    made_up = [
        name
        for name, arm in summary["arms"].items()
        if any(note.startswith(_SYNTHETIC) for point in arm["points"] for note in point["notes"])
    ]
    lines = [SIMULATED] if info.simulated else []
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
    return [*(f"Lost: {text}." for text in info.damage), *(f"Note: {text}" for text in info.warnings)]


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
    lines += [f"{arm} was not run: {why}." for arm, why in info.unsupported.items()]
    return list(dict.fromkeys(lines))


def main_crossover(summary: Summary) -> dict[str, Any] | None:
    """Static speculation against the baseline; of several arms the one that counts at the most points, then the one
    with the best headline; else a dynamic arm."""
    parts, metric = summary["roles"], summary["metric"]
    found: dict[str, dict[str, Any]] = {
        item["arm"]: item for item in summary["crossover"] if _is_main(item, parts, metric)
    }
    for group in (parts["static"], parts["dynamic"]):
        arms = [arm for arm in group if arm in found and found[arm]["kind"] != "nothing"]
        if arms:
            return found[max(arms, key=lambda arm: _strength(summary, found[arm]))]
    return None


def _is_main(item: dict[str, Any], parts: dict[str, Any], metric: str) -> bool:
    return bool(item["metric"] == metric and item["against"] == parts["baseline"])


def _strength(summary: Summary, item: dict[str, Any]) -> tuple[int, int, float]:
    """Concurrencies that count at all, those in the headline, the headline's change.

    Headlines over different points do not compare: an arm that lost its worst point would look best.
    """
    verdicts = [v for v in summary["verdicts"] if v["arm"] == item["arm"] and v["against"] == item["against"]]
    change, points = next(
        ((v["change"], v["points_in_headline"]) for v in verdicts if "change" in v), (float("-inf"), [])
    )
    return len(item["changes"]), len(set(points)), change


def _gain(item: dict[str, Any]) -> str:
    """Best and worst change over the sweep."""
    changes = [change["change"] for change in item["changes"]]
    return f"{percent(max(changes))} at best, {percent(min(changes))} at worst"


def _with_uncounted(summary: Summary, item: dict[str, Any]) -> tuple[str, str]:
    """The sentence, with the asked concurrencies that it does not speak of."""
    lead, rest = _SENTENCES[item["kind"]](item, _gain(item))
    gone = uncounted(summary, (item["arm"], item["against"]), item["uncounted_at"])
    return lead, f"{rest}; {gone}" if gone else rest


def _counted(item: dict[str, Any]) -> str:
    """Where all of what is said holds: "every" is said only where every asked concurrency counts."""
    if not item["uncounted_at"]:
        return "every measured concurrency"
    return f"concurrency {levels([change['concurrency'] for change in item['changes']])}"


def _crosses(item: dict[str, Any], gain: str) -> tuple[str, str]:
    if len(item["crossings"]) > 1:
        return _several(item, gain)
    first, arm = item["crossings"][0], item["arm"]
    where = f"about {concurrency(first['concurrency'])} concurrent requests{_interval(first)}"
    if first["turns"] == "worse":
        return f"Turn speculation off above {where}", f"{arm} is faster below, slower above ({gain})"
    return f"Turn speculation on only above {where}", f"{arm} is slower below, faster above ({gain})"


def _several(item: dict[str, Any], gain: str) -> tuple[str, str]:
    verbs = {"worse": "stops", "better": "starts"}
    turns = [
        f"{verbs[c['turns']]} paying at about {concurrency(c['concurrency'])}{_interval(c)}"
        for c in item["crossings"]
    ]
    return "There is no single threshold", f"{item['arm']} {listed(turns)} concurrent requests ({gain})"


def _interval(crossing: dict[str, Any]) -> str:
    if crossing["low"] is None:
        return ""
    low, high = concurrency(crossing["low"]), concurrency(crossing["high"])
    if low == high:
        low, high = f"{crossing['low']:.1f}", f"{crossing['high']:.1f}"
    return f" (95% interval {low} to {high})"


def undecided(item: dict[str, Any]) -> list[int]:
    """Concurrencies that speak against "always" or "never" without proof: too few boots, or the other way round."""
    sign = 1 if item["kind"] == "always" else -1
    return [
        change["concurrency"]
        for change in item["changes"]
        if change["concurrency"] in item["unclear_at"]
        and (change.get("low") is None or sign * change["change"] < -AGAINST)
    ]


def _partly(item: dict[str, Any], gain: str) -> tuple[str, str]:
    always = bool(item["better_at"])
    at = levels(item["better_at"] if always else item["worse_at"])
    lead = f"Speculation {'pays' if always else 'costs'} at concurrency {at}"
    side = "faster" if always else "slower"
    unclear = f"; at {levels(item['unclear_at'])} these boots cannot tell" if item["unclear_at"] else ""
    return lead, f"{item['arm']} is {side} there{unclear} ({gain})"


def _never(item: dict[str, Any], gain: str) -> tuple[str, str]:
    if undecided(item):
        return _partly(item, gain)
    where = _counted(item)
    if item["unclear_at"]:
        where = f"concurrency {levels(item['worse_at'])} and shows no gain outside the noise at "
        where += levels(item["unclear_at"])
    return "Turn speculation off", f"{item['arm']} is slower at {where} ({gain})"


def _always(item: dict[str, Any], gain: str) -> tuple[str, str]:
    if undecided(item):
        return _partly(item, gain)
    where = _counted(item)
    if item["unclear_at"]:
        where = (
            f"concurrency {levels(item['better_at'])}, and at {levels(item['unclear_at'])} the difference is "
        )
        where += "inside the noise"
    return "Leave speculation on", f"{item['arm']} is faster at {where} ({gain})"


def _noise(item: dict[str, Any], gain: str) -> tuple[str, str]:
    both = f"{item['arm']} and {item['against']}"
    boots = min(change["n"] for change in item["changes"])
    if boots < 3:
        few = f"they do not tell {both} apart at any single concurrency ({gain}); set sweep.repeats to 3 or more"
        return f"No verdict, {boots} boots an arm are too few", few
    why = f"at {_counted(item)} {both} differ by less than that ({gain})"
    return "No verdict, nothing stands out of the noise between server boots", why


def _untested(item: dict[str, Any], gain: str) -> tuple[str, str]:
    lead = "No verdict from one server boot an arm"
    return f"{lead}; {_estimate(item)}", (
        f"{item['arm']} against {item['against']} is {gain}; set sweep.repeats to 3 or more for a verdict"
    )


def _estimate(item: dict[str, Any]) -> str:
    """What one boot an arm looks like, without a claim."""
    turns = [crossing["turns"] for crossing in item["crossings"]]
    where = listed([concurrency(crossing["concurrency"]) for crossing in item["crossings"]])
    if turns == ["worse"]:
        return f"speculation seems to pay up to about {where} concurrent requests"
    if turns == ["better"]:
        return f"speculation seems to pay only above about {where} concurrent requests"
    if turns == ["better", "worse"]:
        return f"speculation seems to pay only between about {where} concurrent requests"
    if turns:
        return f"the lines cross at about {where} concurrent requests"
    verb = "pay" if all(change["change"] > 0 for change in item["changes"]) else "cost"
    return f"speculation seems to {verb} at concurrency {levels([c['concurrency'] for c in item['changes']])}"


def _spoiled(summary: Summary, item: dict[str, Any]) -> tuple[str, str] | None:
    """Where boots were measured and do not count, they are the reason for no verdict, and not how many were asked."""
    pair = (item["arm"], item["against"])
    asked, used = min(summary["arms"][arm]["boots"] for arm in pair), min(c["n"] for c in item["changes"])
    gone = lost(summary, pair)
    if gone is None or used >= asked or used > 2 or item["kind"] not in ("untested", "noise"):
        return None
    left = f"what is left cannot tell {item['arm']} and {item['against']} apart"
    if item["kind"] == "untested":
        left = f"what is left is one boot an arm, where {_estimate(item)} ({_gain(item)})"
    return f"No verdict, {gone.cause}", f"{gone.count}; {gone.advice}; {left}"


_SENTENCES = {
    "crosses": _crosses,
    "never": _never,
    "always": _always,
    "partly": _partly,
    "noise": _noise,
    "untested": _untested,
}


def _without_crossover(summary: Summary, info: RunInfo) -> tuple[str, str]:
    parts = summary["roles"]
    speculating = [*parts["static"], *parts["dynamic"]]
    if info.failures and not _any_valid(summary, speculating or list(summary["arms"])):
        card = info.failures[0]
        at = f" at concurrency {card.concurrency}" if card.concurrency else ""
        return f"No verdict, {card.arm} failed{at}", card.title
    pair = [*speculating, *([parts["baseline"]] if parts["baseline"] else [])]
    if records := lost_records(summary, info, pair):
        return f"No verdict, the records of {listed(records)} are lost", "the notes below name each loss"
    if found := tune_answer(summary) or one_arm_answer(summary):
        return found
    gone = lost(summary, pair)
    if speculating and parts["baseline"] is not None and gone is not None:
        left = "no point is left that is valid both with and without speculation"
        return f"No verdict, {gone.cause}", f"{gone.count}; {gone.advice}; {left}"
    why = "no point is valid both with and without it; the reasons are below"
    if not speculating:
        why = "no arm of this run speculates"
    elif parts["baseline"] is None:
        why = "no arm without speculation was measured to set it against"
    return "No verdict on speculation", why


def _any_valid(summary: Summary, arms: list[str]) -> bool:
    return any(point["valid"] for arm in arms for point in summary["arms"].get(arm, {}).get("points", []))


def _note_lines(summary: Summary) -> list[str]:
    """What must be known of whole arms; arms with the same note share a line."""
    arms: dict[str, list[str]] = {}
    for name, arm in summary["arms"].items():
        for note in arm["notes"]:
            arms.setdefault(note, []).append(name)
    return [f"{listed(names)}: {note}." for note, names in arms.items()]
