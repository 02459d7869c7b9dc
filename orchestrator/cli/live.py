"""The live view of a run, for terminals: lines that stay scroll above, a few lines below show what goes on now.

No frame, no more than six lines, nothing that blinks; every one of these is cut to the width of the terminal.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live as RichLive
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator.cli.again import RunCommand
from orchestrator.cli.progress import Progress, Totals
from orchestrator.cli.screen import Lines, event_text
from orchestrator.runner.events import Listener
from orchestrator.runner.session import Finished

_REFRESH_PER_S = 4
_NARROW, _WIDE = 60, 100  # columns
# What the lines below tell while it lasts need not stay above.
_PASSING_PHASES = frozenset({"swap", "free", "ready", "canary", "points", "stop"})
_PASSING = frozenset({"loading", "progress", "point"})
_STYLES = {"warning": "yellow", "failed": "red", "ready": "green", "given_back": "green"}


class LiveView(Lines):
    """Draws from the first event until `finish` or `close`."""

    def __init__(
        self, totals: Totals, console: Console | None = None, command: RunCommand | None = None
    ) -> None:
        super().__init__(command)
        self.progress = Progress(totals)
        self.console = console or Console(highlight=False, soft_wrap=False)
        self._lock = threading.Lock()
        self._live: RichLive | None = None

    @property
    def watchers(self) -> tuple[Listener, ...]:
        return (self._take,)

    def listen(self, event: Mapping[str, Any]) -> None:
        self._take(event)
        self._start()
        text = _lasting(event)
        if text:
            elapsed_s = time.monotonic() - self._began_s
            style = _STYLES.get(event["event"], "")
            line = Text(f"{elapsed_s:7.1f}s  {text}", style=style)
            self.console.print(
                line, soft_wrap=True
            )  # the terminal's own: a copied command stays in one piece

    def finish(self, finished: Finished) -> None:
        self.close()
        super().finish(finished)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _start(self) -> None:
        if self._live is None:
            self._live = RichLive(
                get_renderable=self.draw,
                console=self.console,
                refresh_per_second=_REFRESH_PER_S,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()

    def _take(self, event: Mapping[str, Any]) -> None:
        with self._lock:
            self.progress.take(event, time.monotonic())

    def draw(self) -> RenderableType:
        with self._lock:
            now_s = time.monotonic()
            return Group(*_rows(self.progress, now_s, now_s - self._began_s, self.console.width))


def _lasting(event: Mapping[str, Any]) -> str:
    if event["event"] in _PASSING or (event["event"] == "phase" and event["phase"] in _PASSING_PHASES):
        return ""
    return event_text(event)


def _rows(progress: Progress, now_s: float, elapsed_s: float, width: int) -> Iterator[RenderableType]:
    roomy = width >= _NARROW
    bar = min(40, width // 3) if roomy else 0
    title = f"{progress.totals.name} on {progress.totals.host}: " if width >= _WIDE else ""
    yield _line("", title + _doing(progress), style="bold")
    share = progress.points_done / max(1, progress.totals.points)
    yield _barred("sweep", share, bar, _sweep(progress, now_s, elapsed_s))
    if progress.loading:
        if progress.load_share is not None:
            yield _barred("load", progress.load_share, bar, progress.loading)
        else:
            yield _line("load", progress.loading)
    elif progress.running is not None:
        asked = progress.requests
        yield _barred("load", (progress.done or 0) / asked if asked else None, bar, _load(progress))
    if progress.gpus and roomy:
        yield _line("GPU", _gpus(progress.gpus))
    if progress.line and roomy and (progress.load_share is not None or not progress.loading):
        yield _line("log", progress.line, style="dim")


def _doing(progress: Progress) -> str:
    of_a_boot = progress.boot and progress.phase in _PASSING_PHASES
    named = progress.boot.partition(",")[0] in progress.doing
    return f"{progress.boot}: {progress.doing}" if of_a_boot and not named else progress.doing


def _sweep(progress: Progress, now_s: float, elapsed_s: float) -> str:
    left_s = progress.left_s(now_s)
    left = "" if left_s is None else f", about {_span(left_s)} left"
    points = f"{progress.points_done} of {progress.totals.points} points"
    return f"{points}, {_span(elapsed_s)}{left}"


def _load(progress: Progress) -> str:
    rate = "" if progress.tokens_per_s is None else f"{progress.tokens_per_s:.0f} tok/s, "
    requests = f", {progress.done or 0} of {progress.requests} requests" if progress.requests else ""
    return f"{progress.what}{rate}{progress.running} running{requests}"


def _gpus(gpus: tuple[Mapping[str, Any], ...]) -> str:
    """One figure each: the most memory, the slowest clock, the busiest GPU; that is where trouble shows."""
    memory = [gpu["memory_mib"] for gpu in gpus if gpu.get("memory_mib") is not None]
    clocks = [gpu["clock_mhz"] for gpu in gpus if gpu.get("clock_mhz") is not None]
    busy = [gpu["utilization"] for gpu in gpus if gpu.get("utilization") is not None]
    many = len(gpus) > 1
    parts = [
        *([f"{max(memory) / 1024:.1f} GiB{' at most' if many else ''}"] if memory else []),
        *([f"{min(clocks):.0f} MHz{' at least' if many else ''}"] if clocks else []),
        *([f"{_range(busy)} % busy"] if busy else []),
    ]
    return (
        f"{f'{len(gpus)} GPUs, ' if many else ''}{', '.join(parts)}" if parts else "the tool tells no figures"
    )


def _range(values: list[float]) -> str:
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
    return low if low == high else f"{low}-{high}"


def _line(label: str, text: str, style: str = "") -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    if label:
        line.append(f"{label:<6} ", style="bold")
    line.append(text, style=style)
    return line


def _barred(label: str, share: float | None, width: int, text: str) -> RenderableType:
    """`width` 0: no room for a bar. `share` None: nothing to measure by."""
    if not width or share is None:
        return _line(label, text)
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=6, no_wrap=True)
    grid.add_column(width=width)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    bar = ProgressBar(total=1.0, completed=min(1.0, share), width=width)
    grid.add_row(Text(label, style="bold"), bar, Text(text, no_wrap=True, overflow="ellipsis"))
    return grid


def _span(seconds: float) -> str:
    """`42 s`, `7 min`, `2 h 05 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"
