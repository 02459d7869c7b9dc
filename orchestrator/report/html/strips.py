"""Strips over the time of one boot: when it speculated, how many requests ran, what the GPU did.

Time counts from the first line of the server's log.
"""

from __future__ import annotations

from orchestrator.analysis.trace import thin
from orchestrator.model.result import BootTrace, Series
from orchestrator.report.html.scales import Scale, nice_ticks
from orchestrator.report.html.tags import Markup, el
from orchestrator.report.text import number

WIDTH, LABEL, RIGHT, ROW, AXIS = 900.0, 148.0, 70.0, 46.0, 26.0
LEAST_RANGE = 0.1  # of the highest value: a steady quantity is drawn steady


def strips(trace: BootTrace) -> Markup | None:
    """One figure for a boot; None where nothing is known of its course. What did not change is said in words."""
    decode = [series for series in (trace.running, trace.accept_length) if series is not None and series.t_s]
    gpu = [series for series in trace.gpu if series.t_s]
    if not decode and not gpu:
        return None
    begin, end = _span(trace, [*decode, *gpu])
    seen = [cut for series in gpu if (cut := _inside(series, begin, end)).t_s]
    steady = [series for series in seen if min(series.values) == max(series.values)]
    rows = [thin(series) for series in (*decode, *seen) if series not in steady]
    caption = el("figcaption", f"{_title(trace)}{_switch_words(trace)}")
    words = el("p", f"Steady: {', '.join(map(_words, steady))}.", class_="footnote") if steady else None
    return el("figure", caption, _drawing(trace, rows, Scale(begin, end, LABEL, WIDTH - RIGHT)), words)


def _title(trace: BootTrace) -> str:
    return f"{trace.arm}, boot {trace.boot}"


def _words(series: Series) -> str:
    unit = f" {series.unit}" if series.unit else ""
    return f"{series.name} {_whole(series.values[0])}{unit}"


def _drawing(trace: BootTrace, rows: list[Series], x: Scale) -> Markup | None:
    if not rows:
        return None
    height = ROW * len(rows) + AXIS
    parts = [_plain(trace, x, height - AXIS)]
    parts += [_row(series, x, i * ROW) for i, series in enumerate(rows)]
    parts.append(_axis(x, height - AXIS))
    name = f"{_title(trace)} over time"
    frame = f"0 0 {WIDTH:.0f} {height:.0f}"
    svg = el("svg", parts, viewBox=frame, role="img", aria_label=name, class_="strips")
    return el("div", svg, class_="scroll", tabindex=0, role="region", aria_label=name)


def _span(trace: BootTrace, rows: list[Series]) -> tuple[float, float]:
    """From the first decode step to the last sample: the minutes of loading would leave no room for the rest."""
    begin = trace.running.t_s[0] if trace.running else min(series.t_s[0] for series in rows)
    end = max(series.t_s[-1] for series in rows)
    return (begin, end) if end > begin else (begin, begin + 1.0)


def _inside(series: Series, begin: float, end: float) -> Series:
    kept = [(t, value) for t, value in zip(series.t_s, series.values, strict=True) if begin <= t <= end]
    return Series(series.name, series.unit, tuple(t for t, _ in kept), tuple(value for _, value in kept))


def _switch_words(trace: BootTrace) -> str:
    if not trace.switches:
        return ""
    count = len(trace.switches)
    return f": {count} switch{'es' if count != 1 else ''}; shaded where speculation was off"


def _plain(trace: BootTrace, x: Scale, bottom: float) -> Markup:
    """Shade the stretches without speculation."""
    stretches: list[tuple[float, float]] = []
    since: float | None = None
    for at, speculating in trace.switches:
        if not speculating and since is None:
            since = at
        elif speculating and since is not None:
            stretches.append((since, at))
            since = None
    if since is not None:
        stretches.append((since, x.high))
    seen = [(max(a, x.low), min(b, x.high)) for a, b in stretches if a <= x.high and b >= x.low]
    shades = [el("rect", x=x(a), y=0.0, width=max(0.8, x(b) - x(a)), height=bottom) for a, b in seen]
    return el("g", shades, class_="plain-steps")


def _row(series: Series, x: Scale, top: float) -> Markup:
    low, high = min(series.values), max(series.values)
    room = max(0.0, abs(high) * LEAST_RANGE - (high - low)) / 2
    y = Scale(low - room, high + room, top + ROW - 9, top + 9)
    unit = f" {series.unit}" if series.unit else ""
    right = WIDTH - RIGHT + 8
    extremes = [el("text", _whole(high), x=right, y=top + 14, class_="tick")]
    if high != low:
        extremes.append(el("text", _whole(low), x=right, y=top + ROW - 6, class_="tick"))
    return el(
        "g",
        el("line", x1=LABEL, x2=WIDTH - RIGHT, y1=top + ROW - 1, y2=top + ROW - 1, class_="grid"),
        el("text", series.name, x=0.0, y=top + 20, class_="strip-name"),
        el("text", unit.strip(), x=0.0, y=top + 35, class_="tick"),
        el("polyline", points=_steps(series, x, y), class_="strip-line"),
        extremes,
    )


def _steps(series: Series, x: Scale, y: Scale) -> str:
    """A sample holds until the next one."""
    points, before = [], None
    for t, value in zip(series.t_s, series.values, strict=True):
        if before is not None and before != value:
            points.append(f"{x(t):.1f},{y(before):.1f}")
        points.append(f"{x(t):.1f},{y(value):.1f}")
        before = value
    return " ".join(points)


def _whole(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else number(value)


def _axis(x: Scale, top: float) -> Markup:
    ticks = [tick for tick in nice_ticks(x.low, x.high, 8) if tick >= x.low]
    labels = [el("text", f"{t:g} s", x=x(t), y=top + 18, text_anchor="middle", class_="tick") for t in ticks]
    return el("g", labels)
