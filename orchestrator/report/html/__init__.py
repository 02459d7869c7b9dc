"""The report as one HTML file: no script, no network, light and dark, phone width, printable.

The charts are SVG drawn here. Plotting libraries were weighed: plotly and its kind put some megabytes of script into
each report, matplotlib's drawings follow neither the reader's colour scheme nor the keyboard.
"""

from __future__ import annotations

from importlib import resources

from orchestrator.model.result import RunInfo
from orchestrator.report.answer import answer, banners, beyond_verdicts, lead_and_rest, notes
from orchestrator.report.comparisons import shorter_lines
from orchestrator.report.html import charts, sections
from orchestrator.report.html.strips import strips
from orchestrator.report.html.tags import Child, Markup, el, join
from orchestrator.report.shapes import Summary
from orchestrator.report.tables import build
from orchestrator.report.text import plural, sentence

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def render(summary: Summary, info: RunInfo) -> str:
    """The whole page as text."""
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        el("meta", name="color-scheme", content="light dark"),
        el("title", f"{info.name or 'dynspec'}: {answer(summary, info)}"),
        Markup(f"<style>{_style()}</style>"),
    )
    return "<!DOCTYPE html>\n" + el("html", head, _body(summary, info), lang="en") + "\n"


def _style() -> str:
    return resources.files(__package__).joinpath("style.css").read_text(encoding="utf-8")


def _body(summary: Summary, info: RunInfo) -> Markup:
    table = build(summary)
    parts = [
        _section("results", "Results", sections.results(table), sections.glossary()) if table.rows else None,
        _section("valid", "Validity", sections.validity(summary, table)) if table.rows else None,
        _section("course", "Over time", *_course(info)),
    ]
    main: list[Child] = [
        _header(info),
        _top(summary, info),
        _section("gate", "Gate", _gate(info)),
        _section("failures", "Failures", *sections.failures(info.failures)),
        _section("charts", "At each concurrency", *_absolute(summary)),
        *parts,
        _section("why", "What supports this", *_support(summary, info)),
        _section("run", "Where the numbers come from", sections.provenance(info)),
    ]
    return el("body", el("a", "Skip to the results", href="#results", class_="skip"), el("main", *main))


def _section(name: str, title: str, *children: Child) -> Markup | None:
    """None where there is nothing in it."""
    inner = join(
        child for group in children for child in ([group] if isinstance(group, str | None) else group)
    )
    if not inner:
        return None
    return el("section", el("h2", title, id=f"{name}-title"), inner, id=name, aria_labelledby=f"{name}-title")


def _header(info: RunInfo) -> Markup:
    known = info.provenance
    model = known.get("model", "").rstrip("/").rpartition("/")[2]
    facts = [info.name, known.get("GPUs"), model, info.host, info.started_utc, info.run_id]
    return el("header", el("p", " · ".join(fact for fact in facts if fact), class_="run"))


def _top(summary: Summary, info: RunInfo) -> Markup:
    told = [el("p", words, class_="banner", role="note") for words in banners(summary, info)]
    chart = charts.gain_chart(summary)
    lead, rest = lead_and_rest(summary, info)
    return el(
        "div",
        told,
        el("h1", lead),
        el("p", sentence(_capital(rest, summary)), class_="rest") if rest else None,
        [chart, charts.legend(summary)] if chart else None,
        sections.recommendation(summary),
        class_="top",
    )


def _capital(words: str, summary: Summary) -> str:
    """With a capital, unless it starts with the name of an arm."""
    return words if words.split()[0] in summary["arms"] else f"{words[0].upper()}{words[1:]}"


def _gate(info: RunInfo) -> Markup | None:
    if not info.gate:
        return None
    rest = [el("li", line.strip()) for line in info.gate[1:]]
    return el("div", el("p", el("strong", info.gate[0])), el("ul", rest) if rest else None)


def _absolute(summary: Summary) -> list[Markup]:
    panels = charts.panels(summary)
    if not panels:
        return []
    invalid = any(not point["valid"] for arm in summary["arms"].values() for point in arm["points"])
    hollow = el("p", "Hollow: not valid, nothing is claimed from it.", class_="footnote") if invalid else None
    return [charts.legend(summary), el("div", panels, class_="panels"), *([hollow] if hollow else [])]


def _course(info: RunInfo) -> list[Markup]:
    """The first boot of each arm; the others fold out."""
    first = {trace.arm: trace for trace in reversed(info.traces)}.values()
    shown = [drawing for trace in info.traces if trace in first and (drawing := strips(trace))]
    more = [drawing for trace in info.traces if trace not in first and (drawing := strips(trace))]
    return [*shown, el("details", el("summary", plural(len(more), "more boot")), more)] if more else shown


def _support(summary: Summary, info: RunInfo) -> list[Child]:
    lines = [*shorter_lines(summary), *beyond_verdicts(summary, info), *notes(info)]
    table = sections.comparisons(summary)
    return [table, el("ul", [el("li", line) for line in lines]) if lines else None]
