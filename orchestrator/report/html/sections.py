"""The parts of the page below the charts: results, validity, what supports the answer, failures, provenance."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from orchestrator.model.result import FailureCard, RunInfo
from orchestrator.report.glossary import GLOSSARY
from orchestrator.report.html.tags import Child, Markup, el
from orchestrator.report.shapes import Summary
from orchestrator.report.tables import THIN_TAIL, Row, Table
from orchestrator.report.text import ABSENT, percent, percent_range, sentence

_CHANGE = "Difference"
# (name, unit, glossary entry)
_HEADS = (
    ("Concurrency", "", "concurrency"),
    ("Arm", "", "arm"),
    ("Output tokens/s", "± 95% interval", "95% interval"),
    (_CHANGE, "", ""),
    ("TTFT p50", "ms", "TTFT"),
    ("TTFT p99", "ms", "TTFT"),
    ("TPOT p50", "ms/token", "TPOT"),
    ("Accept length", "tokens/step", "accept length"),
    ("Requests", "ok/failed/all", ""),
)


def results(table: Table) -> Markup:
    """One row an arm and concurrency, grouped by concurrency."""
    columns = _columns(table.against)
    heads = [
        el(
            "th",
            _explained(name, term),
            el("small", unit) if unit else None,
            scope="col",
            class_="left" if i == 1 else None,
        )
        for i, (name, unit, term) in enumerate(columns)
    ]
    bodies: list[Markup] = []
    group: list[Markup] = []
    current = None
    for row in table.rows:
        place = (row.concurrency, row.index)
        if place != current and group:
            bodies.append(el("tbody", group))
            group = []
        group.append(_result_row(row, columns, first=place != current))
        current = place
    bodies += [el("tbody", group)] if group else []
    results_table = scroll("Results", el("table", el("thead", el("tr", heads)), bodies, class_="results"))
    thin = any(row.ttft_p99.endswith("*") for row in table.rows)
    return el("div", results_table, el("p", THIN_TAIL, class_="footnote") if thin else None)


def _columns(against: str) -> list[tuple[str, str, str]]:
    """With whom the difference is against."""
    name = f"Against {against.removeprefix('the ')}" if against else _CHANGE
    term = "baseline" if against == "the baseline" else ""
    return [(name, unit, term) if head == _CHANGE else (head, unit, entry) for head, unit, entry in _HEADS]


def _explained(name: str, term: str) -> Child:
    return el("abbr", name, title=GLOSSARY[term]) if term else name


def _result_row(row: Row, columns: Sequence[tuple[str, str, str]], *, first: bool) -> Markup:
    spread = el("small", row.interval) if row.interval else None
    call = el("span", _verdict_word(row), class_=f"call {row.verdict}") if row.verdict else None
    change = "" if row.change == ABSENT and (row.marks or row.verdict == "invalid") else row.change
    level = f"{row.concurrency} again" if row.again else str(row.concurrency)
    cells: tuple[list[str | None], ...] = (
        [row.output_tps, spread],
        [change, call, _marks(row)],
        [row.ttft_p50],
        [row.ttft_p99],
        [row.tpot],
        [row.accept_length],
        [row.counts],
    )
    return el(
        "tr",
        el("th", level if first else el("span", level, class_="repeat"), scope="row"),
        el("td", row.arm, class_="left"),
        [el("td", *parts, data_label=name) for parts, (name, _, _) in zip(cells, columns[2:], strict=True)],
        class_=None if row.valid else "invalid",
    )


def glossary() -> Markup:
    """The report's words, folded in."""
    pairs = [child for term, words in GLOSSARY.items() for child in (el("dt", term), el("dd", words))]
    return el("details", el("summary", "What the words mean"), el("dl", pairs), class_="glossary")


def _verdict_word(row: Row) -> str:
    return {"noise": "in the noise", "estimate": "estimate", "invalid": "not valid"}.get(
        row.verdict, row.verdict
    )


def _marks(row: Row) -> Markup | None:
    if not row.marks:
        return None
    numbers = row.marks.strip("[]").split("][")
    links = [el("a", n, href=f"#reason-{n}", aria_label=f"reason {n}") for n in numbers]
    return el("sup", [child for link in links for child in (link, " ")][:-1])


def validity(summary: Summary, table: Table) -> Markup:
    """A matrix of arms and positions where they differ, then the reasons by number."""
    general = [el("p", sentence(note), class_="footnote") for note in table.general]
    if all(row.valid and not row.marks for row in table.rows):
        return el("div", el("p", f"All {len(table.rows)} points are valid."), general)
    cells = {(row.arm, row.index): row for row in table.rows}
    places = list(dict.fromkeys((row.index, row.concurrency) for row in table.rows))
    head = [el("th", "Arm", scope="col", class_="left"), *(el("th", str(c), scope="col") for _, c in places)]
    rows = [
        el(
            "tr",
            el("th", name, scope="row", class_="left"),
            [_validity_cell(cells.get((name, i))) for i, _ in places],
        )
        for name in summary["arms"]
    ]
    matrix = scroll(
        "Validity", el("table", el("thead", el("tr", head)), el("tbody", rows), class_="validity")
    )
    reasons = [el("li", reason, id=f"reason-{i}") for i, reason in enumerate(table.reasons, 1)]
    return el("div", matrix, el("ol", reasons, class_="reasons") if reasons else None, general)


def _validity_cell(row: Row | None) -> Markup:
    if row is None:
        return el("td", el("span", "not measured", class_="badge none"))
    if not row.valid:
        return el("td", el("span", "not valid", class_="badge bad"), _marks(row))
    return el(
        "td",
        el("span", "note" if row.marks else "ok", class_="badge note" if row.marks else "badge ok"),
        _marks(row),
    )


def comparisons(summary: Summary) -> Markup | None:
    """Every pair with its interval, its boots and what those boots could have shown."""
    verdicts = [*summary["verdicts"], *summary["twins"]]
    if not verdicts:
        return None
    names = (
        "Arm",
        "Against",
        "Output tokens/s",
        "95% interval",
        "Verdict",
        "Boots",
        "Power for 3%",
        "Boots missing",
    )
    head = el(
        "tr", [el("th", name, scope="col", class_="left" if i < 2 else None) for i, name in enumerate(names)]
    )
    rows = [_comparison(verdict) for verdict in verdicts]
    return scroll("Comparisons", el("table", el("thead", head), el("tbody", rows)))


def _comparison(verdict: dict[str, Any]) -> Markup:
    power, more = verdict["power"]["power"], verdict["power"]["more_boots"]
    missing = ABSENT if power is None else "over 100" if more is None else str(more)
    tested = verdict.get("n", 0) > 1
    cells = (
        percent(verdict.get("change")),
        percent_range(verdict.get("low"), verdict.get("high")) or ABSENT,
        verdict["verdict"] if tested else "no verdict",
        str(verdict.get("n", 0)),
        ABSENT if power is None else percent(power, signed=False),
        missing,
    )
    names = [
        el("th", verdict["arm"], scope="row", class_="left"),
        el("td", verdict["against"], class_="left"),
    ]
    return el("tr", names, [el("td", cell) for cell in cells])


def recommendation(summary: Summary) -> Markup | None:
    """The threshold for a server that switches by itself, and the same for SGLang's own adaptive mode."""
    advice = summary["recommendation"]
    if not advice or advice["advice"] != "threshold":
        return None
    spread = f" (95% interval {advice['low']} to {advice['high']})" if advice["low"] is not None else ""
    lead = el("strong", f"For a server that switches by itself, threshold {advice['threshold']}")
    parts: list[Child] = [el("p", lead, sentence(f"{spread}: {advice['why']}"))]
    if advice["native_config"]:
        label = el("summary", "The same as --speculative-adaptive-config for SGLang 0.5.14 and later")
        parts.append(el("details", label, el("pre", json.dumps(advice["native_config"]), tabindex=0)))
    elif advice["native_why_not"]:
        why = sentence(f"SGLang's own adaptive mode cannot do the same: {advice['native_why_not']}")
        parts.append(el("p", why))
    return el("div", *parts, class_="advice")


def failures(cards: Iterable[FailureCard]) -> list[Markup]:
    return [_card(card) for card in cards]


def _card(card: FailureCard) -> Markup:
    at = f", concurrency {card.concurrency}" if card.concurrency else ""
    rank = f" ({card.rank})" if card.rank else ""
    facts = [("Likely cause", card.cause), ("Fix", card.fix)]
    pairs: list[Child] = [child for key, value in facts for child in (el("dt", key), el("dd", value))]
    if card.replay:
        pairs += [el("dt", "Run just this again"), el("dd", el("code", card.replay))]
    log = el("pre", "\n".join(card.excerpt), tabindex=0, aria_label="log lines") if card.excerpt else None
    title = el("h3", f"{card.arm}, boot {card.boot}{at}: {card.title}{rank}")
    return el("article", title, el("dl", *pairs), log, class_="failure")


def provenance(info: RunInfo) -> Markup:
    rows = {
        "run": info.run_id,
        "node": info.host,
        "started": info.started_utc,
        "ended": info.ended_utc,
        "load": f"{info.load}, generated on the {info.load_from}",
        "prompts": info.prompts,
        **{f"worker of {arm}": words for arm, words in info.workers.items()},
        **info.provenance,
        "files": info.folder,
    }
    pairs = [child for key, value in rows.items() if value for child in (el("dt", key), el("dd", value))]
    return el("dl", pairs, class_="provenance")


def scroll(name: str, table: Markup) -> Markup:
    """Wide content scrolls inside itself, with the keyboard too."""
    return el("div", table, class_="scroll", tabindex=0, role="region", aria_label=name)
