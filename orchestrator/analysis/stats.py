"""Statistics over server boots. Pure; scipy and numpy are imported by the functions that need them.

A repeat is a server boot: requests and points of one boot share its luck (memory layout, clocks, graph
capture), so they are never counted as repeats. Values are positive; tests and intervals are Welch's t on their
logs, and a difference is a ratio: 1.05 = 5 % more. One boot has no spread, hence no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from orchestrator.model.result import Interval

ALPHA = 0.05
POWER = 0.80
EFFECT = 1.03  # the difference that "needs n more boots" speaks of
MOST_BOOTS = 100
SPLITS = 12  # for the power: how finely the two sample variances are told apart
DRIFT_ALPHA = 0.01

Call = Literal["better", "worse", "inconclusive"]


@dataclass(frozen=True)
class Contrast:
    """Ratio of geometric means, a / b, over boots; `low`, `high`, `p` are None where no test is possible."""

    ratio: float
    low: float | None
    high: float | None
    p: float | None
    n_a: int
    n_b: int
    df: float | None = None
    why_no_test: str = ""

    @property
    def tested(self) -> bool:
        return self.p is not None


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def variance(values: Sequence[float]) -> float:
    """Sample variance (n - 1). ValueError below two values."""
    if len(values) < 2:
        raise ValueError("a variance needs two values")
    centre = mean(values)
    return math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1)


def t_quantile(df: float, probability: float) -> float:
    """Quantile of Student's t."""
    from scipy import special

    return float(special.stdtrit(df, probability))


def t_two_sided(df: float, t: float) -> float:
    """P(|T| >= |t|)."""
    from scipy import special

    return float(2 * special.stdtr(df, -abs(t)))


def interval(values: Sequence[float], confidence: float = 1 - ALPHA) -> Interval:
    """A metric over boots with its t interval: on logs if all values are positive, else on the values."""
    if not values:
        raise ValueError("no values: leave the metric out")
    logs = min(values) > 0
    scale = [math.log(value) for value in values] if logs else list(values)
    centre, n = mean(scale), len(values)
    back = math.exp if logs else float
    if n == 1:
        return Interval(values[0], None, None, 1)
    half = t_quantile(n - 1, (1 + confidence) / 2) * math.sqrt(variance(scale) / n)
    return Interval(back(centre), back(centre - half), back(centre + half), n)


def welch(a: Sequence[float], b: Sequence[float], confidence: float = 1 - ALPHA) -> Contrast:
    """Welch's t on logs already taken. ValueError without values on both sides."""
    if not a or not b:
        raise ValueError("a contrast needs values on both sides")
    difference = mean(a) - mean(b)
    ratio = math.exp(difference)
    if min(len(a), len(b)) < 2:
        why = "one boot says nothing about spread"
        return Contrast(ratio, None, None, None, len(a), len(b), None, why)
    part_a, part_b = variance(a) / len(a), variance(b) / len(b)
    error2 = part_a + part_b
    if error2 < 1e-24:  # below the rounding of a log
        why = "repeats are identical to the last digit, so they are not independent measurements"
        return Contrast(ratio, None, None, None, len(a), len(b), None, why)
    df = error2**2 / (part_a**2 / (len(a) - 1) + part_b**2 / (len(b) - 1))
    return contrast(difference, math.sqrt(error2), df, (len(a), len(b)), confidence)


def paired(a: Sequence[float], b: Sequence[float], confidence: float = 1 - ALPHA) -> Contrast:
    """Paired t on logs, for arms that shared their boots: a[i] and b[i] are of the same boot."""
    if len(a) != len(b) or not a:
        raise ValueError("pairs need as many values on both sides")
    differences = [x - y for x, y in zip(a, b, strict=True)]
    ratio = math.exp(mean(differences))
    if len(a) < 2:
        return Contrast(ratio, None, None, None, len(a), len(b), None, "one boot says nothing about spread")
    error2 = variance(differences) / len(a)
    if error2 < 1e-24:
        why = "repeats are identical to the last digit, so they are not independent measurements"
        return Contrast(ratio, None, None, None, len(a), len(b), None, why)
    return contrast(mean(differences), math.sqrt(error2), len(a) - 1, (len(a), len(b)), confidence)


def contrast(
    difference: float, error: float, df: float, n: tuple[int, int], confidence: float = 1 - ALPHA
) -> Contrast:
    """The t test of a difference of logs with standard error `error` > 0."""
    half = t_quantile(df, (1 + confidence) / 2) * error
    return Contrast(
        math.exp(difference),
        math.exp(difference - half),
        math.exp(difference + half),
        t_two_sided(df, difference / error),
        n[0],
        n[1],
        df,
    )


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down adjustment; None (not tested) stays None and is not counted."""
    order = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    floor = 0.0
    for rank, (p, i) in enumerate(order):
        floor = max(floor, min(1.0, p * (len(order) - rank)))
        adjusted[i] = floor
    return adjusted


def call(
    ratio: float, p: float | None, *, higher_is_better: bool, floor: float = 1.0, alpha: float = ALPHA
) -> Call:
    """Better, worse or inconclusive. Without a test always inconclusive, and so up to `floor`.

    `floor`: a ratio >= 1 by which arms with identical settings were seen to differ.
    """
    if p is None or p >= alpha or abs(math.log(ratio)) <= math.log(floor):
        return "inconclusive"
    return "better" if (ratio > 1.0) == higher_is_better else "worse"


@dataclass(frozen=True)
class Drift:
    """A trend over the order of boots, with arms taken out. `total` is the ratio last / first."""

    total: float
    p: float | None
    boots: int

    @property
    def seen(self) -> bool:
        return self.p is not None and self.p < DRIFT_ALPHA


def drift(values: Sequence[tuple[str, float, float]]) -> Drift | None:
    """Ordinary least squares of log value on boot order within arms. `values`: (arm, order, log value).

    None with fewer than 3 degrees of freedom, or where order does not vary inside any arm.
    """
    arms = {arm for arm, _, _ in values}
    df = len(values) - len(arms) - 1
    if df < 3:
        return None
    orders, logs = _within(values, 1), _within(values, 2)
    spread = math.fsum(x * x for x in orders)
    if spread == 0:
        return None
    slope = math.fsum(x * y for x, y in zip(orders, logs, strict=True)) / spread
    rest = math.fsum((y - slope * x) ** 2 for x, y in zip(orders, logs, strict=True))
    span = max(v[1] for v in values) - min(v[1] for v in values)
    error = math.sqrt(rest / df / spread)
    p = t_two_sided(df, slope / error) if error > 0 else None
    return Drift(math.exp(slope * span), p, len(values))


def _within(values: Sequence[tuple[str, float, float]], column: Literal[1, 2]) -> list[float]:
    """A column with each arm's own mean taken out."""
    by_arm: dict[str, list[float]] = {}
    for row in values:
        by_arm.setdefault(row[0], []).append(row[column])
    means = {arm: mean(column_values) for arm, column_values in by_arm.items()}
    return [row[column] - means[row[0]] for row in values]


def detrended(a: Mapping[float, float], b: Mapping[float, float], confidence: float = 1 - ALPHA) -> Contrast:
    """The contrast with a common linear trend over boot order taken out (analysis of covariance).

    `a`, `b`: boot order -> log value. Use it where drift was seen; without drift it costs power.
    """
    rows = [("a", order, value) for order, value in a.items()]
    rows += [("b", order, value) for order, value in b.items()]
    df = len(rows) - 3
    if df < 1:
        return welch(list(a.values()), list(b.values()), confidence)
    orders, logs = _within(rows, 1), _within(rows, 2)
    spread = math.fsum(x * x for x in orders)
    slope = math.fsum(x * y for x, y in zip(orders, logs, strict=True)) / spread if spread else 0.0
    rest = math.fsum((y - slope * x) ** 2 for x, y in zip(orders, logs, strict=True))
    gap = mean(list(a)) - mean(list(b))
    difference = mean(list(a.values())) - mean(list(b.values())) - slope * gap
    error2 = rest / df * (1 / len(a) + 1 / len(b) + (gap**2 / spread if spread else 0.0))
    if error2 < 1e-24:
        return welch(list(a.values()), list(b.values()), confidence)
    return contrast(difference, math.sqrt(error2), df, (len(a), len(b)), confidence)


def power(sd: float, boots: int, effect: float = EFFECT, alpha: float = ALPHA) -> float | None:
    """Chance that two arms of `boots` boots each, boot means with log standard deviation `sd`, show `effect` (a ratio).

    Of Welch's test: its statistic is a noncentral t with 2 (n - 1) degrees of freedom whatever the two sample variances
    came out as, and they set the edge that it has to pass. None below two boots.
    """
    from scipy import special

    if boots < 2:
        return None
    if sd <= 0:
        return 1.0
    df = 2 * (boots - 1)
    shift = abs(math.log(effect)) / (sd * math.sqrt(2 / boots))
    chances = []
    for edge in _welch_edges(boots, alpha):
        below, far = float(special.nctdtr(df, shift, edge)), float(special.nctdtr(df, shift, -edge))
        below, far = (
            0.0 if math.isnan(share) else share for share in (below, far)
        )  # nan: too small for the function
        chances.append(min(1.0, max(0.0, 1 - below + far)))
    return mean(chances)


@lru_cache(maxsize=1024)
def _welch_edges(boots: int, alpha: float) -> tuple[float, ...]:
    """Edges of the test for two arms of equal spread, at equally likely splits of the sum of their sample variances.

    One arm's share of that sum is Beta((n - 1) / 2, (n - 1) / 2), independent of the sum; it is symmetric about 1/2.
    """
    from scipy import special

    half = (boots - 1) / 2
    edges = []
    for place in range(SPLITS):
        share = float(special.betaincinv(half, half, (place + 0.5) / SPLITS / 2))
        edges.append(t_quantile((boots - 1) / (share**2 + (1 - share) ** 2), 1 - alpha / 2))
    return tuple(edges)


def boots_needed(sd: float, effect: float = EFFECT, wanted: float = POWER) -> int | None:
    """Boots an arm needs to show `effect`; None: more than MOST_BOOTS."""
    if (power(sd, MOST_BOOTS, effect) or 0.0) < wanted:
        return None
    low, high = 1, MOST_BOOTS  # too few, enough
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if (power(sd, middle, effect) or 0.0) >= wanted else (middle, high)
    return high


def detectable(sd: float, boots: int, wanted: float = POWER) -> float | None:
    """The smallest ratio above 1 that `boots` boots an arm find with chance `wanted`; None: none below 2."""
    if boots < 2 or (power(sd, boots, 2.0) or 0.0) < wanted:
        return None
    low, high = 1.0, 2.0
    for _ in range(30):
        middle = (low + high) / 2
        if (power(sd, boots, middle) or 0.0) >= wanted:
            high = middle
        else:
            low = middle
    return high


def pooled_sd(*groups: Sequence[float]) -> float | None:
    """Standard deviation within groups, pooled; None where no group has two values."""
    usable = [group for group in groups if len(group) > 1]
    if not usable:
        return None
    squares = math.fsum(variance(group) * (len(group) - 1) for group in usable)
    return math.sqrt(squares / sum(len(group) - 1 for group in usable))
