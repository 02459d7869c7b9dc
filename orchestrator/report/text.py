"""Numbers as people read them. One place, so that all reports agree. Absent is a dash, never 0."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

ABSENT = "-"

# Control characters but tab and newline, direction overrides, halves of pairs: text from a node must not steer a
# terminal, turn lines round or break a file.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def clean(text: str) -> str:
    """Text that a node or user put in, safe to print: unsafe characters become U+FFFD."""
    return _UNSAFE.sub("\N{REPLACEMENT CHARACTER}", text)


def number(value: float | None) -> str:
    """Three to four significant digits without exponent: 10356, 986, 12.3, 0.052."""
    if value is None:
        return ABSENT
    size = abs(value)
    if size >= 100:
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 or size == 0 else f"{value:.3g}"


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
    return f"±{percent(half, signed=False)}"


def concurrency(value: float) -> str:
    """A crossing lies between measured points: whole numbers from 10 on."""
    return f"{value:.0f}" if value >= 9.95 or value == int(value) else f"{value:.1f}"


def listed(items: Sequence[object], joint: str = "and") -> str:
    """a, b and c."""
    words = [str(item) for item in items]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {joint} {words[-1]}" if words else ""


def levels(values: Sequence[int]) -> str:
    """Measured concurrencies for a sentence."""
    return listed(sorted(values))


def plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
