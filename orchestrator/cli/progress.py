"""What a run is doing, folded from its events: a value that a screen draws. Pure; the clock is handed in."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.model.experiment import Experiment

_RATE_WINDOW_S = 6.0
_PERCENT = re.compile(r"\b(\d{1,3}) %")


@dataclass(frozen=True)
class Totals:
    """How much the whole run has to do."""

    name: str
    host: str
    boots: int
    points: int
    repeats: int
    positions: int = 0  # of the sweep; 0: points are spread evenly over the boots

    @classmethod
    def of(cls, experiment: Experiment, arms: tuple[str, ...] = ()) -> Totals:
        count = len(arms) or len(experiment.arms)
        repeats = experiment.sweep.repeats
        points = len(experiment.sweep.concurrency)
        boots = count * repeats
        return cls(experiment.name, experiment.node.host, boots, boots * points, repeats, points)


@dataclass
class Pace:
    """How long points and boots took so far, and what is left by that."""

    points_s: dict[int, list[float]] = field(default_factory=dict)  # by position in the sweep
    boots_s: list[float] = field(default_factory=list)  # from the launch to the first point
    boot_from_s: float | None = None
    point_from_s: float | None = None

    def launched(self, now_s: float) -> None:
        self.boot_from_s = now_s

    def point_begun(self, now_s: float) -> None:
        if self.boot_from_s is not None:
            self.boots_s.append(now_s - self.boot_from_s)
            self.boot_from_s = None
        self.point_from_s = now_s

    def point_done(self, index: int, now_s: float) -> None:
        if self.point_from_s is not None:
            self.points_s.setdefault(index, []).append(now_s - self.point_from_s)
            self.point_from_s = None

    def left_s(self, totals: Totals, points_done: int, boots_begun: int, now_s: float) -> float | None:
        """Seconds to go; None before one boot has measured its whole sweep: later points take longer."""
        positions = totals.positions or totals.points // max(1, totals.boots)
        if len(self.points_s) < positions or not self.boots_s:
            return None
        sweep_s = sum(sum(times) / len(times) for times in self.points_s.values())
        points_s = sweep_s / positions * max(0, totals.points - points_done)
        boots_s = sum(self.boots_s) / len(self.boots_s) * max(0, totals.boots - boots_begun)
        current_s = now_s - self.point_from_s if self.point_from_s is not None else 0.0
        return max(0.0, points_s + boots_s - current_s)


@dataclass
class Progress:
    """The run as its events tell it so far."""

    totals: Totals
    phase: str = ""
    doing: str = ""
    boot: str = ""  # "eagle3, boot 1 of 3"
    loading: str = ""
    load_share: float | None = None  # 0..1
    boots_begun: int = 0
    points_done: int = 0
    requests: int | None = None  # of the point under way
    done: int | None = None
    running: int | None = None
    what: str = ""  # "warm-up: ", "canary: "; empty for what is measured
    tokens_per_s: float | None = None
    gpus: tuple[Mapping[str, Any], ...] = ()
    line: str = ""
    pace: Pace = field(default_factory=Pace)
    _tokens: deque[tuple[float, int]] = field(default_factory=deque)

    def take(self, event: Mapping[str, Any], now_s: float) -> None:
        handler = getattr(self, f"_on_{event['event']}", None)
        if handler is not None:
            handler(event, now_s)

    def left_s(self, now_s: float) -> float | None:
        return self.pace.left_s(self.totals, self.points_done, self.boots_begun, now_s)

    def _on_phase(self, event: Mapping[str, Any], now_s: float) -> None:
        self.phase, self.doing = event["phase"], event["text"]
        if self.phase == "launch":
            self.pace.launched(now_s)
        if self.phase in ("stop", "restore"):
            self._server_gone()

    def _on_planned(self, event: Mapping[str, Any], now_s: float) -> None:
        """What is left to do: arms may be left out or share boots, and a resumed run has less before it."""
        self.totals = replace(self.totals, boots=event["boots"], points=event["points"])

    def _on_started(self, event: Mapping[str, Any], now_s: float) -> None:
        self.boots_begun += 1
        self.boot = f"{event['arm']}, boot {event['boot']} of {self.totals.repeats}"

    def _on_loading(self, event: Mapping[str, Any], now_s: float) -> None:
        self.loading = event["text"]
        match = _PERCENT.search(self.loading)
        self.load_share = int(match[1]) / 100 if match else None

    def _on_ready(self, event: Mapping[str, Any], now_s: float) -> None:
        self.loading, self.load_share = "", None

    def _on_point(self, event: Mapping[str, Any], now_s: float) -> None:
        self.pace.point_begun(now_s)
        self.requests, self.done, self.running = event.get("requests"), 0, None
        self._forget_rate()

    def _on_point_done(self, event: Mapping[str, Any], now_s: float) -> None:
        self.pace.point_done(int(event["index"]), now_s)
        self.points_done += 1
        self.requests = self.done = self.running = None
        self._forget_rate()

    def _on_progress(self, event: Mapping[str, Any], now_s: float) -> None:
        if not isinstance(event.get("in_flight"), int):
            return  # the load generator's summary comes last
        first = str(event.get("what", "")).split(" ")[0]
        self.what = f"{first}: " if first in ("warm-up", "canary") else ""
        self.done, self.running = event.get("done") if not self.what else 0, event["in_flight"]
        elapsed_s, tokens = event.get("elapsed_s"), event.get("output_tokens")
        if isinstance(elapsed_s, int | float) and isinstance(tokens, int):
            self._rate(float(elapsed_s), tokens)

    def _on_pulse(self, event: Mapping[str, Any], now_s: float) -> None:
        self.gpus, self.line = tuple(event.get("gpus") or ()), str(event.get("line") or "")

    def _rate(self, elapsed_s: float, tokens: int) -> None:
        """Over the last seconds; a new load, whose clock starts again, forgets the one before."""
        seen = self._tokens
        if seen and (elapsed_s <= seen[-1][0] or tokens < seen[-1][1]):
            seen.clear()
        seen.append((elapsed_s, tokens))
        while seen[-1][0] - seen[0][0] > _RATE_WINDOW_S:
            seen.popleft()
        span_s = seen[-1][0] - seen[0][0]
        self.tokens_per_s = (seen[-1][1] - seen[0][1]) / span_s if span_s > 0 else None

    def _forget_rate(self) -> None:
        self._tokens.clear()
        self.tokens_per_s = None

    def _server_gone(self) -> None:
        self.loading, self.load_share, self.gpus, self.line = "", None, (), ""
        self.requests = self.done = self.running = None
        self._forget_rate()
