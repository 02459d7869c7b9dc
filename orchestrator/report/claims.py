"""What a crossover says, in the words of the first sentence: two parts, for a title and a line below it. Pure."""

from __future__ import annotations

from typing import Any

from orchestrator.report.comparisons import bounded
from orchestrator.report.text import concurrency, levels, listed, percent, percent_range

Summary = dict[str, Any]
Parts = tuple[str, str]
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
    where = f"about {concurrency(first['concurrency'])} concurrent requests{_interval(first)}"
    if first["turns"] == "worse":
        return f"Turn speculation off above {where}", f"{arm} is faster below, slower above ({gained})"
    return f"Turn speculation on only above {where}", f"{arm} is slower below, faster above ({gained})"


def _several(item: dict[str, Any], gained: str) -> Parts:
    verbs = {"worse": "stops", "better": "starts"}
    turns = [
        f"{verbs[c['turns']]} paying at about {concurrency(c['concurrency'])}{_interval(c)}"
        for c in item["crossings"]
    ]
    return "There is no single threshold", f"{item['arm']} {listed(turns)} concurrent requests ({gained})"


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
    lead = f"Speculation {'pays' if better else 'costs'} {percent(abs(verdict['change']), signed=False)} on average"
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


_SENTENCES = {
    "crosses": _crosses,
    "never": _never,
    "always": _always,
    "partly": _partly,
    "untested": _untested,
}
