"""Is the server ready? A pure judgement over what was seen; the runner does the looking.

*Ready* = process alive, `/health` 200, and one short generation that returned a token. Health alone proves
nothing: it answers 200 with a dead scheduler, and 503 while a healthy server is busy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Sight:
    """One look at a starting server. Times in seconds since the start."""

    elapsed_s: float
    alive: bool
    exit_code: int | None
    signal: int | None
    log_idle_s: float
    log_tail: tuple[str, ...]
    health_status: int | None  # None: no answer
    generated: bool | None  # None: not tried yet; False: tried and nothing came


@dataclass(frozen=True)
class Ready:
    elapsed_s: float


@dataclass(frozen=True)
class NotYet:
    progress: str  # the last line worth showing


@dataclass(frozen=True)
class Failed:
    reason: str
    log_tail: tuple[str, ...]


def judge(sight: Sight, *, timeout_s: float, silence_s: float) -> Ready | NotYet | Failed:
    """The order matters: an exit is never called a timeout, and silence is told apart from slowness."""
    if not sight.alive:
        return Failed(f"the server exited during start with {exit_words(sight)}", sight.log_tail)
    if sight.health_status == 200 and sight.generated:
        return Ready(sight.elapsed_s)
    if sight.health_status == 200 and sight.generated is False:
        return Failed(
            "up but not generating: /health is 200 and a short request returned no token", sight.log_tail
        )
    if sight.elapsed_s > timeout_s:
        return Failed(f"not ready after {timeout_s:.0f} s (server.ready.timeout)", sight.log_tail)
    if sight.log_idle_s > silence_s:
        return Failed(
            f"stuck: no new log output for {sight.log_idle_s:.0f} s (server.ready.silence {silence_s:.0f} s)",
            sight.log_tail,
        )
    return NotYet(load_progress(sight.log_tail))


def exit_words(sight: Sight) -> str:
    if sight.signal is not None:
        return f"signal {sight.signal}"
    if sight.exit_code is None:
        return "an unknown exit code"
    return f"exit code {sight.exit_code}"


_BAR = re.compile(r"\b(\d{1,3})%[^|]*\|(?:[^|]*\|)?\s*(\d{1,9})/(\d{1,9})\b")
ACCESS = re.compile(r'"(?:GET|POST|PUT|HEAD) /\S* HTTP/')  # a log line for every request: says nothing


def load_progress(log_tail: tuple[str, ...]) -> str:
    """The newest progress bar if one is running, else the last log line that is no access log."""
    for line in reversed(log_tail[-5:]):
        bar = _BAR.search(line)
        if bar:
            return f"{_doing(line)} {bar[1]} % ({bar[2]} of {bar[3]})"
    told = [line.strip() for line in log_tail if line.strip() and not ACCESS.search(line)]
    return told[-1][:120] if told else "no output yet"


def _doing(line: str) -> str:
    if "captur" in line.lower():
        return "capturing CUDA graphs"
    return "loading weights" if "load" in line.lower() else line.split(":")[0].strip()[:60]
