"""Values to pixels, and where ticks go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MOST_LOG_TICKS = 6


@dataclass(frozen=True)
class Scale:
    """Maps low..high to start..end (pixels), linearly or by logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = (
            (math.log(v) for v in (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        )
        share = (at - low) / (high - low) if high != low else 0.5
        return self.start + share * (self.end - self.start)


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round values inside low..high."""
    if high <= low:
        return [low]
    raw = (high - low) / about
    power = 10 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(n * step, 12) for n in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5 in each decade, thinned to 1, then to every other decade, where that is too many."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for parts in ((1, 2, 5), (1, 3), (1,)):
        ticks = [part * 10.0**decade for decade in decades for part in parts]
        inside = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
        if len(inside) <= MOST_LOG_TICKS:
            return inside if len(inside) > 1 else nice_ticks(low, high, 4)
    return inside[:: math.ceil(len(inside) / MOST_LOG_TICKS)]


def tick_labels(ticks: Sequence[float], *, percent: bool = False) -> list[str]:
    """All with as many decimals as the one that needs most; over two decades or more each with its own."""
    decimals = [len(f"{round(tick, 6):f}".rstrip("0").partition(".")[2]) for tick in ticks]
    wide = bool(ticks) and max(ticks) >= 100 * min((t for t in ticks if t > 0), default=1.0)
    most = max(decimals, default=0)
    if percent:
        return [f"{tick:+.{most}f}%" if tick else "0%" for tick in ticks]
    return [f"{tick:.{own if wide else most}f}" for tick, own in zip(ticks, decimals, strict=True)]


def apart(values: Sequence[float], scale: Scale, pixels: float) -> list[float]:
    """Values whose labels keep their distance; the first and last stay if they can."""
    kept: list[float] = []
    for value in values:
        if not kept or scale(value) - scale(kept[-1]) >= pixels:
            kept.append(value)
    if values and kept[-1] != values[-1] and len(kept) > 1:
        kept[-1] = values[-1]
        if scale(kept[-1]) - scale(kept[-2]) < pixels:
            kept.pop(-2)
    return kept
