"""Which charts the report draws, from `summary.json`."""

from __future__ import annotations

from typing import Any

from orchestrator.report.answer import main_crossover
from orchestrator.report.claims import undecided
from orchestrator.report.html.plot import Chart, Curve, Dot, Zone, draw, marker
from orchestrator.report.html.tags import Markup, el
from orchestrator.report.shapes import Summary
from orchestrator.report.text import concurrency, number, percent, percent_range

MOST_STEPS = 0.5
STYLES = 8  # as many as style.css has
WIDE, NARROW, SMALL = (920.0, 400.0), (380.0, 330.0), (450.0, 270.0)


def styles(summary: Summary) -> dict[str, int]:
    """Arm -> style, of which there are eight; style 0 is the baseline's alone where there is one."""
    baseline = summary["roles"]["baseline"]
    others = [name for name in summary["arms"] if name != baseline]
    first = 1 if baseline is not None else 0
    given = {name: first + i % (STYLES - first) for i, name in enumerate(others)}
    return {baseline: 0, **given} if first else given


def legend(summary: Summary) -> Markup:
    items = []
    for name, style in sorted(styles(summary).items(), key=lambda item: item[1]):
        line = el("line", x1=1, x2=27, y1=8, y2=8, class_="line")
        swatch = el(
            "svg",
            line,
            marker(style, 14, 8),
            viewBox="0 0 28 16",
            class_=f"swatch s{style}",
            aria_hidden="true",
        )
        role = " (baseline)" if name == summary["roles"]["baseline"] and name != "baseline" else ""
        items.append(el("li", swatch, el("span", name, role)))
    return el("ul", items, class_="legend")


def gain_chart(summary: Summary) -> Markup | None:
    """The chart that answers: change against the baseline, with zones. Twice, for wide and for narrow screens."""
    curves = _gain_curves(summary)
    if not curves:
        return None
    main = main_crossover(summary)
    drawings = [
        _gain(summary, curves, main, size, name) for size, name in ((WIDE, "wide"), (NARROW, "narrow"))
    ]
    return el("div", drawings, class_="hero")


def _gain(
    summary: Summary,
    curves: tuple[Curve, ...],
    main: dict[str, Any] | None,
    size: tuple[float, float],
    name: str,
) -> Markup:
    chart = Chart(
        title=f"Output tokens per second of {', '.join(c.name for c in curves)} against {summary['roles']['baseline']}",
        y_label="output tokens/s against the baseline; above 0% is faster",
        curves=curves,
        width=size[0],
        height=size[1],
        y_percent=True,
        zero_label=summary["roles"]["baseline"],
        zones=zones(main),
        marks=_marks((main or {}).get("crossings", [])),
        focusable=True,
    )
    return el("div", draw(chart), class_=name)


def _marks(crossings: list[dict[str, Any]]) -> tuple[tuple[float, str], ...]:
    """Where the lines cross; of several only the figures, which have less room."""
    lead = "crosses at " if len(crossings) == 1 else ""
    return tuple((c["concurrency"], f"{lead}{concurrency(c['concurrency'])}") for c in crossings)


def _gain_curves(summary: Summary) -> tuple[Curve, ...]:
    baseline, style = summary["roles"]["baseline"], styles(summary)
    return tuple(
        Curve(
            item["arm"],
            style[item["arm"]],
            tuple(_gain_dot(item["arm"], change) for change in item["changes"]),
        )
        for item in summary["crossover"]
        if item["metric"] == summary["metric"] and item["against"] == baseline and item["changes"]
    )


def _gain_dot(arm: str, change: dict[str, Any]) -> Dot:
    low, high = change.get("low"), change.get("high")
    spread = f" ({percent_range(low, high)})" if low is not None else " (1 boot)"
    says = f"{arm} at {change['concurrency']}: {percent(change['change'])}{spread}"
    ends = [None if end is None else end * 100 for end in (low, high)]
    return Dot(change["concurrency"], change["change"] * 100, ends[0], ends[1], True, says)


def zones(main: dict[str, Any] | None) -> tuple[Zone, ...]:
    """Where speculation should be on, off, or either; none without a tested answer."""
    if main is None or main["kind"] not in ("crosses", "never", "always"):
        return ()
    if main["kind"] == "crosses":
        return _crossing_zones(main["crossings"])
    if undecided(main) or main["uncounted_at"]:
        return ()
    return (_side(0.0, float("inf"), main["kind"] == "always"),)


def _crossing_zones(crossings: list[dict[str, Any]]) -> tuple[Zone, ...]:
    found, begin = [], 0.0
    on = crossings[0]["turns"] == "worse"
    for crossing in crossings:
        found.append(_side(begin, crossing["low"], on))
        found.append(Zone(crossing["low"], crossing["high"], "unsure", "either"))
        begin, on = crossing["high"], not on
    return (*found, _side(begin, float("inf"), on))


def _side(low: float, high: float, on: bool) -> Zone:
    return Zone(low, high, "on" if on else "off", "speculation on" if on else "speculation off")


_PANELS: tuple[tuple[str, str, str, float, bool], ...] = (
    ("output_tps", "Throughput", "output tokens/s", 1, True),
    ("tpot_p50", "Time per output token, median", "ms/token", 1000, False),
    ("ttft_p99", "Time to first token, p99", "ms", 1000, True),
    ("accept_length", "Accept length", "tokens/step", 1, False),
)


def panels(summary: Summary) -> list[Markup]:
    """The small charts of absolute values; one without any value is left out."""
    found = []
    for metric, title, unit, factor, log in _PANELS:
        curves = _curves(summary, metric, unit, factor)
        if curves:
            chart = Chart(title, unit, curves, *SMALL, y_log=log, y_from_zero=not log)
            found.append(el("figure", el("figcaption", title), draw(chart)))
    return found


def _curves(summary: Summary, metric: str, unit: str, factor: float) -> tuple[Curve, ...]:
    style = styles(summary)
    curves = []
    for name, arm in summary["arms"].items():
        shown = [point for point in arm["points"] if _has(point, metric)]
        dots = tuple(
            _dot(name, [p for p in shown if p["concurrency"] == level], metric, unit, factor)
            for level in sorted({point["concurrency"] for point in shown})
        )
        if dots:
            curves.append(Curve(name, style[name], dots))
    return tuple(curves)


def _has(point: dict[str, Any], metric: str) -> bool:
    """An accept length where hardly any step speculated is of the drain, and says nothing of the point."""
    values = {name: item["value"] for name, item in point["metrics"].items()}
    if metric == "accept_length" and values.get("spec_share", 1) < MOST_STEPS:
        return False
    return bool(values.get(metric, 0) > 0)


def _dot(arm: str, points: list[dict[str, Any]], metric: str, unit: str, factor: float) -> Dot:
    """One arm at one concurrency. Where that stands in the sweep more than once: the mean of the valid ones."""
    used = [point for point in points if point["valid"]] or points
    items = [point["metrics"][metric] for point in used]
    value = sum(item["value"] for item in items) / len(items) * factor
    low, high = (None if items[0][end] is None else items[0][end] * factor for end in ("low", "high"))
    if len(items) > 1 or (low is not None and low <= 0):
        low = high = None
    bounds = f" ({number(low)} to {number(high)})" if low is not None and high is not None else ""
    remark = ("" if used[0]["valid"] else ", not valid") + (
        f", mean of {len(items)}" if len(items) > 1 else ""
    )
    level = used[0]["concurrency"]
    says = f"{arm} at {level}: {number(value)} {unit}{bounds}{remark}"
    return Dot(level, value, low, high, used[0]["valid"], says)
