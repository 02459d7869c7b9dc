"""What a crossover says, in the words of the first sentence: two parts, for a title and a line below it. Pure."""

from __future__ import annotations

from typing import Any

from orchestrator.report.comparisons import bounded
from orchestrator.report.crossings import between, place, turns
from orchestrator.report.shapes import Parts, Summary
from orchestrator.report.text import concurrency, levels, listed, percent, percent_range

AGAINST = 0.01  # estimates nearer to 0 than this speak for neither side
TESTABLE = 3  # boots an arm from which their number is no reason for a missing verdict
MORE = "set sweep.repeats to 3 or more"


def claim(summary: Summary, item: dict[str, Any]) -> Parts:
    """`item`: one of the summary's crossovers that has something to compare."""
    if item["kind"] == "noise":
        return _noise(item, gain(item), _headline(summary, item))
    return _SENTENCES[item["kind"]](item, gain(item))


def gain(item: dict[str, Any]) -> str:
    """Best and worst change over the sweep."""
    changes = [change["change"] for change in item["changes"]]
    return f"{percent(max(changes))} at best, {percent(min(changes))} at worst"


def _counted(item: dict[str, Any]) -> str:
    """Where all of what is said holds: "every" is said only where every asked concurrency counts."""
    if not item["uncounted_at"]:
        return "every measured concurrency"
    return f"concurrency {levels([change['concurrency'] for change in item['changes']])}"


def _crosses(item: dict[str, Any], gained: str) -> Parts:
    if len(item["crossings"]) > 1:
        return _several(item, gained)
    first, arm = item["crossings"][0], item["arm"]
    where = place(first)
    if first["turns"] == "worse":
        return f"Turn speculation off above {where}", f"{arm} is faster below, slower above ({gained})"
    return f"Turn speculation on only above {where}", f"{arm} is slower below, faster above ({gained})"


def _several(item: dict[str, Any], gained: str) -> Parts:
    return "There is no single threshold", f"{item['arm']} {turns(item)} ({gained})"


def _switches(item: dict[str, Any], gained: str) -> Parts:
    """Of an arm that switches by itself only the levels at which it speculates say whether speculation pays."""
    lead, rest = _of_speculation(item)
    arm = item["arm"]
    for turn in item["across_switch"]:
        side = "slower" if turn["turns"] == "worse" else "faster"
        rest.append(f"{'it' if rest else arm} turns {side} {between(turn)}")
    if unclear := _on(item, "unclear_at"):
        rest.append(f"at {levels(unclear)} these boots cannot tell")
    if item["off_at"]:
        rest.append(_without(item, "it" if rest else arm))
    return lead, f"{'; '.join(rest)} ({gained})"


def _of_speculation(item: dict[str, Any]) -> tuple[str, list[str]]:
    arm, better, worse = item["arm"], _on(item, "better_at"), _on(item, "worse_at")
    if len(item["crossings"]) > 1:
        return "There is no single threshold", [f"{arm} {turns({**item, 'across_switch': []})}"]
    if item["crossings"]:
        (crossing,) = item["crossings"]
        ends = crossing["turns"] == "worse"
        sides = "faster below, slower above" if ends else "slower below, faster above"
        lead = f"Speculation pays {'up to' if ends else 'only above'} {place(crossing)}"
        return lead, [f"{arm} is {sides} while it speculates"]
    if better and worse:
        return f"Speculation pays at concurrency {levels(better)} and costs at {levels(worse)}", []
    if better:
        return f"Speculation pays at concurrency {levels(better)}", [f"{arm} is faster there"]
    if worse:
        return f"Speculation costs at concurrency {levels(worse)}", [f"{arm} is slower there"]
    return "No verdict on speculation", []


def _on(item: dict[str, Any], calls: str) -> list[int]:
    return [level for level in item[calls] if level not in item["off_at"]]


def _without(item: dict[str, Any], subject: str) -> str:
    """What is known of the levels at which the arm leaves speculation off by itself."""
    off = item["off_at"]
    words = f"at {levels(off)} {subject} does not speculate"
    sides = (("faster", item["better_at"]), ("slower", item["worse_at"]))
    told = [(word, [level for level in off if level in at]) for word, at in sides]
    some = [f"{word}{'' if at == off else f' at {levels(at)}'}" for word, at in told if at]
    return f"{words}, and is {listed(some)}" if some else words


def undecided(item: dict[str, Any]) -> list[int]:
    """Concurrencies that speak against "always" or "never" without proof: too few boots, or the other way round."""
    sign = 1 if item["kind"] == "always" else -1
    return [
        change["concurrency"]
        for change in item["changes"]
        if change["concurrency"] in item["unclear_at"]
        and (change.get("low") is None or sign * change["change"] < -AGAINST)
    ]


def _partly(item: dict[str, Any], gained: str) -> Parts:
    always = bool(item["better_at"])
    at = levels(item["better_at"] if always else item["worse_at"])
    lead = f"Speculation {'pays' if always else 'costs'} at concurrency {at}"
    side = "faster" if always else "slower"
    unclear = f"; at {levels(item['unclear_at'])} these boots cannot tell" if item["unclear_at"] else ""
    return lead, f"{item['arm']} is {side} there{unclear} ({gained})"


def _never(item: dict[str, Any], gained: str) -> Parts:
    if undecided(item):
        return _partly(item, gained)
    where = _counted(item)
    if item["unclear_at"]:
        where = f"concurrency {levels(item['worse_at'])} and shows no gain outside the noise at "
        where += levels(item["unclear_at"])
    return "Turn speculation off", f"{item['arm']} is slower at {where} ({gained})"


def _always(item: dict[str, Any], gained: str) -> Parts:
    if undecided(item):
        return _partly(item, gained)
    where = _counted(item)
    if item["unclear_at"]:
        where = (
            f"concurrency {levels(item['better_at'])}, and at {levels(item['unclear_at'])} the difference is "
        )
        where += "inside the noise"
    return "Leave speculation on", f"{item['arm']} is faster at {where} ({gained})"


def _noise(item: dict[str, Any], gained: str, verdict: dict[str, Any]) -> Parts:
    """At no concurrency alone are they told apart; over all of them they may be, and few boots may be enough."""
    both = f"{item['arm']} and {item['against']}"
    if _all_one_way(item, verdict):
        return _overall(item, verdict, gained)
    if _too_few(item, verdict):
        boots = min(change["n"] for change in item["changes"])
        few = f"they do not tell {both} apart at any single concurrency ({gained}); {MORE}"
        return f"No verdict, {boots} boots an arm are too few", few
    why = f"at {_counted(item)} {both} differ by less than that ({gained})"
    if effect := bounded(verdict):
        why += f", and over all of them there is no difference beyond {effect}"
    return "No verdict, nothing stands out of the noise between server boots", why


def says_too_few(summary: Summary, item: dict[str, Any]) -> bool:
    return item["kind"] == "noise" and _too_few(item, _headline(summary, item))


def _too_few(item: dict[str, Any], verdict: dict[str, Any]) -> bool:
    """Their number is the reason: they often miss a difference of the usual size, or cannot prove a larger one."""
    if min(change["n"] for change in item["changes"]) >= TESTABLE or _all_one_way(item, verdict):
        return False
    return not _powerful(verdict) or any(
        abs(change["change"]) > verdict["power"]["effect"] for change in item["changes"]
    )


def _all_one_way(item: dict[str, Any], verdict: dict[str, Any]) -> bool:
    """They are told apart over all concurrencies, and none looks the other way round: a mean may hide a crossing."""
    sign = {"better": 1, "worse": -1}.get(verdict.get("verdict", ""), 0)
    return sign != 0 and all(sign * change["change"] >= -AGAINST for change in item["changes"])


def _headline(summary: Summary, item: dict[str, Any]) -> dict[str, Any]:
    pair = item["arm"], item["against"]
    return next((v for v in summary["verdicts"] if (v["arm"], v["against"]) == pair), {})


def _powerful(verdict: dict[str, Any]) -> bool:
    """These boots would mostly have found a difference of the usual size."""
    power = verdict.get("power") or {}
    return power.get("power") is not None and power["power"] >= power["wanted"]


def _overall(item: dict[str, Any], verdict: dict[str, Any], gained: str) -> Parts:
    better = verdict["verdict"] == "better"
    spread = percent_range(verdict.get("low"), verdict.get("high"))
    size = percent(abs(verdict["change"]), signed=False)
    lead = f"Speculation {'pays' if better else 'costs'} {size} on average"
    if item["off_at"]:
        lead = f"{item['arm']} is {size} {'faster' if better else 'slower'} on average"
        gained = f"{gained}; {_without(item, 'it')}"
    at = levels(sorted(set(verdict["points_in_headline"])))
    where = f"over concurrency {at} together" if " " in at else f"at concurrency {at}"
    return lead, (
        f"{item['arm']} is {'faster' if better else 'slower'} {where} ({spread}); at no single one does it stand out "
        f"of the noise between server boots ({gained})"
    )


def _untested(item: dict[str, Any], gained: str) -> Parts:
    lead = "No verdict from one server boot an arm"
    return f"{lead}; {estimate(item)}", (
        f"{item['arm']} against {item['against']} is {gained}; {MORE} for a verdict"
    )


def estimate(item: dict[str, Any]) -> str:
    """What one boot an arm looks like, without a claim."""
    if (item["off_at"] or item["across_switch"]) and not item["crossings"]:
        return _estimate_with_switch(item)
    turned = [crossing["turns"] for crossing in item["crossings"]]
    where = listed([concurrency(crossing["concurrency"]) for crossing in item["crossings"]])
    if turned == ["worse"]:
        return f"speculation seems to pay up to about {where} concurrent requests"
    if turned == ["better"]:
        return f"speculation seems to pay only above about {where} concurrent requests"
    if turned == ["better", "worse"]:
        return f"speculation seems to pay only between about {where} concurrent requests"
    if turned:
        return f"the lines cross at about {where} concurrent requests"
    verb = "pay" if all(change["change"] > 0 for change in item["changes"]) else "cost"
    return f"speculation seems to {verb} at concurrency {levels([c['concurrency'] for c in item['changes']])}"


def _estimate_with_switch(item: dict[str, Any]) -> str:
    """Of an arm that switches by itself: by the levels at which it speculates, and not by a line across its switch."""
    on = [change for change in item["changes"] if change["concurrency"] not in item["off_at"]]
    if not on:
        return f"{item['arm']} speculates at no measured concurrency"
    sides = {
        "pay": [change["concurrency"] for change in on if change["change"] > AGAINST],
        "cost": [change["concurrency"] for change in on if change["change"] < -AGAINST],
    }
    some = listed([f"to {verb} at concurrency {levels(at)}" for verb, at in sides.items() if at])
    told = f"speculation seems {some or 'to change nothing'}"
    beside = [f"between {turn['low']} and {turn['high']}" for turn in item["across_switch"]]
    return f"{told}, and {listed(beside)} {item['arm']} switches by itself" if beside else told


_SENTENCES = {
    "crosses": _crosses,
    "switches": _switches,
    "never": _never,
    "always": _always,
    "partly": _partly,
    "untested": _untested,
}
