"""Every file of a report, as text by name; the caller writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from orchestrator.analysis.gate import GateResult
from orchestrator.model.result import RunInfo
from orchestrator.report import exports, html, junit, markdown
from orchestrator.report.shapes import Summary

CSV, JSONL = "summary.csv", "bench_serving.jsonl"


def report_files(
    summary: Summary, info: RunInfo, formats: Iterable[str], gate: GateResult | None = None
) -> dict[str, str]:
    """`formats` as in `report: {formats: [...]}`; `terminal` writes no file. CSV and JSON lines are always there."""
    makers: dict[str, tuple[str, Callable[[], str]]] = {
        "md": ("report.md", lambda: markdown.render(summary, info)),
        "html": ("report.html", lambda: html.render(summary, info)),
        "junit": ("junit.xml", lambda: junit.render(summary, info, gate)),
    }
    files = {CSV: exports.summary_csv(summary), JSONL: exports.bench_serving_jsonl(summary, info)}
    for wanted in formats:
        if wanted in makers:
            name, make = makers[wanted]
            files[name] = make()
    return files
