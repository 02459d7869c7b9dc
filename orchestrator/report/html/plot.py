"""One chart as inline SVG: curves over concurrency (log axis) with intervals, zones and crossings. No script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from orchestrator.report.html.scales import Scale, apart, log_ticks, nice_ticks, tick_labels
from orchestrator.report.html.tags import Markup, el
from orchestrator.report.text import concurrency

LEFT, RIGHT, TOP, BOTTOM = 58.0, 14.0, 30.0, 40.0
DODGE = 5.0  # pixels between arms at one concurrency, so that their intervals do not hide each other

ZONE_LABEL = 24.0  # pixels at the top that zones need for their names
MOST_DODGE = 18.0  # pixels from the first to the last arm: they stay clear of the axis' figures


@dataclass(frozen=True)
class Dot:
    x: float
    y: float
    low: float | None
    high: float | None
    valid: bool
    says: str  # the readout when it is pointed at or focused


@dataclass(frozen=True)
class Curve:
    name: str
    style: int  # colour, dash and marker
    dots: tuple[Dot, ...]


@dataclass(frozen=True)
class Zone:
    """A stretch of concurrency. kind: on, off, unsure."""

    low: float
    high: float
    kind: str
    label: str


@dataclass(frozen=True)
class Chart:
    title: str  # said to screen readers
    y_label: str
    curves: tuple[Curve, ...]
    width: float
    height: float
    y_log: bool = False
    y_from_zero: bool = False
    y_percent: bool = False
    zero_label: str | None = None  # draws a line at 0 with this label
    zones: tuple[Zone, ...] = ()
    marks: tuple[tuple[float, str], ...] = field(default=())  # (concurrency, label)
    focusable: bool = False


def draw(chart: Chart) -> Markup:
    """The `<svg>`. Points of no value at all give an empty plot with its axes."""
    x, y = _scales(chart)
    return el(
        "svg",
        [
            *(_zone(zone, x, y) for zone in chart.zones),
            *_y_axis(chart, x, y),
            *_x_axis(chart, x, y),
            *_zero(chart, x, y),
            *(_mark(mark, x, y, bool(chart.zones)) for mark in chart.marks),
            *(_line(curve, _dodge(chart, i), x, y) for i, curve in enumerate(chart.curves)),
            *(_dots(chart, curve, _dodge(chart, i), x, y) for i, curve in enumerate(chart.curves)),
        ],
        viewBox=f"0 0 {chart.width:.0f} {chart.height:.0f}",
        role="group" if chart.focusable else "img",
        aria_label=chart.title,
        class_="chart",
    )


def _scales(chart: Chart) -> tuple[Scale, Scale]:
    dots = [dot for curve in chart.curves for dot in curve.dots]
    xs = [dot.x for dot in dots] or [1.0, 10.0]
    ends = [v for dot in dots for v in (dot.y, dot.low, dot.high) if v is not None] or [0.0, 1.0]
    low, high = min(ends), max(ends)
    if chart.zero_label is not None or chart.y_from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if chart.y_log:
        low, high = low / 1.15, high * 1.15
    else:
        room = (high - low or abs(high) or 1.0) * 0.08
        low, high = (low if chart.y_from_zero and low == 0 else low - room), high + room
    if chart.zones:
        high += (high - low) * ZONE_LABEL / (chart.height - BOTTOM - TOP - ZONE_LABEL)
    first, last = min(xs), max(xs)
    if first == last:
        first, last = first / 2, last * 2
    left, right = LEFT + 12, chart.width - RIGHT - 12
    return (
        Scale(first, last, left, right, log=True),
        Scale(low, high, chart.height - BOTTOM, TOP, log=chart.y_log),
    )


def _dodge(chart: Chart, place: int) -> float:
    arms = len(chart.curves)
    return (place - (arms - 1) / 2) * min(DODGE, MOST_DODGE / max(1, arms - 1))


def _zone(zone: Zone, x: Scale, y: Scale) -> Markup:
    """Open ends reach the frame."""
    left = LEFT if zone.low <= x.low else x(zone.low)
    right = x.end + 12 if zone.high >= x.high else x(zone.high)
    parts = [el("rect", x=left, y=y.end, width=max(0.0, right - left), height=y.start - y.end)]
    if right - left > 7.6 * len(zone.label) and zone.label:
        parts.append(el("text", zone.label, x=(left + right) / 2, y=y.end + 17, text_anchor="middle"))
    return el("g", parts, class_=f"zone {zone.kind}")


def _y_axis(chart: Chart, x: Scale, y: Scale) -> list[Markup]:
    ticks = log_ticks(y.low, y.high) if chart.y_log else nice_ticks(y.low, y.high)
    right = x.end + 12
    parts = []
    for tick, shown in zip(ticks, tick_labels(ticks, percent=chart.y_percent), strict=True):
        if not chart.zones or y(tick) > y.end + ZONE_LABEL:
            parts.append(el("line", x1=LEFT, x2=right, y1=y(tick), y2=y(tick), class_="grid"))
        parts.append(el("text", shown, x=LEFT - 8, y=y(tick) + 4, text_anchor="end", class_="tick"))
    return [*parts, el("text", chart.y_label, x=4.0, y=16.0, class_="axis y-name")]


def _x_axis(chart: Chart, x: Scale, y: Scale) -> list[Markup]:
    values = sorted({dot.x for curve in chart.curves for dot in curve.dots})
    bottom = y.start
    labels = [
        el("text", concurrency(v), x=x(v), y=bottom + 17, text_anchor="middle", class_="tick")
        for v in apart(values, x, 24)
    ]
    stubs = [el("line", x1=x(v), x2=x(v), y1=bottom, y2=bottom + 4, class_="stub") for v in values]
    name = el("text", "concurrent requests", x=x.end + 12, y=bottom + 34, text_anchor="end", class_="axis")
    return [el("line", x1=LEFT, x2=x.end + 12, y1=bottom, y2=bottom, class_="base"), *stubs, *labels, name]


def _zero(chart: Chart, x: Scale, y: Scale) -> list[Markup]:
    if chart.zero_label is None:
        return []
    at = y(0.0)
    line = el("line", x1=LEFT, x2=x.end + 12, y1=at, y2=at, class_="zero")
    return [line, el("text", chart.zero_label, x=LEFT + 5, y=at + 15, class_="zero-label")]


def _mark(mark: tuple[float, str], x: Scale, y: Scale, zones: bool) -> Markup:
    at = min(max(x(mark[0]), LEFT), x.end + 12)
    line = el("line", x1=at, x2=at, y1=y.end + (ZONE_LABEL if zones else 0.0), y2=y.start)
    left = at + 5 + 7.5 * len(mark[1]) > x.end + 12  # no room on the right
    label = el(
        "text",
        mark[1],
        x=at - 5 if left else at + 5,
        y=y.start - 8,
        text_anchor="end" if left else None,
    )
    return el("g", line, label, class_="mark")


def _line(curve: Curve, shift: float, x: Scale, y: Scale) -> Markup:
    """Invalid points are not joined to the line."""
    path = " ".join(f"{x(dot.x) + shift:.1f},{y(dot.y):.1f}" for dot in curve.dots if dot.valid)
    return el("polyline", points=path, class_=f"line s{curve.style}")


def _dots(chart: Chart, curve: Curve, shift: float, x: Scale, y: Scale) -> Markup:
    return el(
        "g", [_dot(chart, curve, dot, shift, x, y) for dot in curve.dots], class_=f"dots s{curve.style}"
    )


def _dot(chart: Chart, curve: Curve, dot: Dot, shift: float, x: Scale, y: Scale) -> Markup:
    at, up = x(dot.x) + shift, y(dot.y)
    parts: list[Markup] = []
    if dot.low is not None and dot.high is not None:
        parts += _whisker(at, y(dot.low), y(dot.high))
    parts.append(el("circle", cx=at, cy=up, r=12, class_="hit"))
    parts.append(marker(curve.style, at, up))
    parts.append(el("text", dot.says, x=x.end + 12, y=16.0, text_anchor="end", class_="says"))
    return el(
        "g",
        parts,
        class_="dot" if dot.valid else "dot invalid",
        tabindex=0 if chart.focusable else None,
        role="img" if chart.focusable else None,
        aria_label=dot.says if chart.focusable else None,
    )


def _whisker(at: float, low: float, high: float) -> list[Markup]:
    bar = el("line", x1=at, x2=at, y1=low, y2=high, class_="whisker")
    caps = [el("line", x1=at - 3, x2=at + 3, y1=end, y2=end, class_="whisker") for end in (low, high)]
    return [bar, *caps]


def marker(style: int, at: float, up: float) -> Markup:
    """Shapes tell arms apart without colour: circle, square, triangle, diamond."""
    if style % 4 == 0:
        return el("circle", cx=at, cy=up, r=4.5, class_="marker")
    if style % 4 == 1:
        return el("rect", x=at - 4.2, y=up - 4.2, width=8.4, height=8.4, class_="marker")
    corners: Sequence[tuple[float, float]] = ((0.0, -5.5), (5.3, 4.2), (-5.3, 4.2))
    if style % 4 == 3:
        corners = ((0.0, -5.8), (5.8, 0.0), (0.0, 5.8), (-5.8, 0.0))
    return el(
        "polygon", points=" ".join(f"{at + dx:.1f},{up + dy:.1f}" for dx, dy in corners), class_="marker"
    )
