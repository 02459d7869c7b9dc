"""Numbers as people read them. One place, so that all reports agree. Absent is a dash, never 0."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from orchestrator.plain_text import clean as clean

ABSENT = "-"
PLUS_MINUS = "\N{PLUS-MINUS SIGN}"
# A colon inside a word belongs to the command: ci@gpu-1:2222.
COMMAND_LAST = re.compile(r"(?P<sentence>.*:) (?P<command>dynspec [a-z]+ (?:[^:]|:(?=\S))*)")


def number(value: float | None) -> str:
    """Three to four significant digits without exponent: 10356, 986, 12.3, 0.052."""
    if value is None:
        return ABSENT
    size = abs(value)
    if size >= 100:
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 or size == 0 else f"{Decimal(f'{value:.3g}'):f}"


def milliseconds(seconds: float | None) -> str:
    return number(None if seconds is None else seconds * 1000)


def percent(share: float | None, *, signed: bool = True) -> str:
    """0.052 -> +5.2%; whole per cent from 10 on."""
    if share is None:
        return ABSENT
    value = share * 100
    digits = 0 if abs(value) >= 9.95 else 1
    text = f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"
    return f"{'0.0' if float(text) == 0 else text}%"


def percent_range(low: float | None, high: float | None) -> str:
    """Interval of a change; empty where there is none (one boot)."""
    return "" if low is None or high is None else f"{percent(low)} to {percent(high)}"


def half_width(metric: dict[str, Any] | None) -> str:
    """Half of the 95 % interval as a share of the value; empty for one boot."""
    if not metric or metric.get("low") is None or not metric["value"]:
        return ""
    half = (metric["high"] - metric["low"]) / 2 / abs(metric["value"])
    return f"{PLUS_MINUS}{percent(half, signed=False)}"


def concurrency(value: float) -> str:
    """A crossing lies between measured points: whole numbers from 10 on."""
    return f"{value:.0f}" if value >= 9.95 or value == int(value) else f"{value:.1f}"


def listed(items: Sequence[object], joint: str = "and") -> str:
    """a, b and c."""
    words = [str(item) for item in items]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {joint} {words[-1]}" if words else ""


def sentence(words: str) -> str:
    """With its full stop: words from elsewhere (an error, a remark) may bring their own, or a space behind it.

    None behind a command, which somebody may copy.
    """
    told = words.rstrip()
    return told if COMMAND_LAST.fullmatch(told) or told.endswith((".", "!", "?", "\u2026")) else f"{told}."


def levels(values: Sequence[int]) -> str:
    """Measured concurrencies for a sentence."""
    return listed(sorted(values))


def plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
