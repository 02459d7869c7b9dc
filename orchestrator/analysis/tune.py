"""The threshold from one boot: a switchable server that always speculates against the same one that never does. Pure.

The plain steps are those of a server that could speculate, so the price of being able to is in them already. What
differs from boot to boot is not: repetitions inside one boot stand in the place of boots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.analysis.crossover import Crossover, by_concurrency, crossover
from orchestrator.analysis.recommend import Recommendation, recommend
from orchestrator.analysis.stats import Call
from orchestrator.analysis.verdict import Side
from orchestrator.model.experiment import Arm
from orchestrator.model.result import PointResult

AGAINST = 0.01  # share: an estimate this far on the other side is a doubt
SPECULATING, PLAIN = "always-speculate", "always-plain"
_OF_THE_SAME = "against plain steps of the same server, which has the draft model loaded"


def is_tune(arms: Sequence[Arm]) -> bool:
    """Whether a run with these arms is one of `dynspec tune`."""
    return [arm.name for arm in arms] == [SPECULATING, PLAIN]


@dataclass(frozen=True)
class Tuned:
    """`evidence.changes`: concurrency -> always speculating / always plain. `invalid`: points left out, and why.
    `left_out`: the same for people, repetitions of one place together. `causes`: its findings, most frequent first."""

    recommendation: Recommendation
    evidence: Crossover
    invalid: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()

    def call_at(self, concurrency: int) -> Call:
        """Always speculating against always plain, there."""
        if concurrency in self.evidence.better_at:
            return "better"
        return "worse" if concurrency in self.evidence.worse_at else "inconclusive"


def tuned(points: Sequence[PointResult], arm: Arm | None, metric: str) -> Tuned:
    """`points` of the two arms above, a repetition a boot number. `arm`: its settings, for the native configuration."""
    evidence = crossover(
        metric, _side(points, SPECULATING, metric), _side(points, PLAIN, metric), shared_boots=True
    )
    found = recommend(evidence, arm, None)
    if found.advice == "threshold":
        found = replace(found, why=f"up to there speculating is faster {_OF_THE_SAME}{found.native_note}")
    if evidence.kind == "untested":
        found = replace(found, why="one repetition that counts is no evidence")
    doubts = _doubts(evidence, sorted({point.concurrency for point in points}))
    if found.advice in ("on", "off") and doubts:
        found = replace(found, advice="none", why=f"{found.why}, but {'; '.join(doubts)}")
    invalid = tuple(
        f"{point.arm} at concurrency {point.concurrency}, repetition {point.boot}: {', '.join(point.reasons)}"
        for point in points
        if not point.valid
    )
    return Tuned(found, evidence, invalid, _left_out(points), _causes(points))


def _left_out(points: Sequence[PointResult]) -> tuple[str, ...]:
    """One line an arm, concurrency and set of findings."""
    places: dict[tuple[str, int], list[PointResult]] = {}
    for point in points:
        places.setdefault((point.arm, point.concurrency), []).append(point)
    lines = []
    for (arm, concurrency), here in sorted(places.items(), key=lambda item: (item[0][1], item[0][0])):
        bad = [point for point in here if not point.valid]
        if bad:
            why = ", ".join(_causes(bad))
            lines.append(f"{arm} at concurrency {concurrency}: {len(bad)} of {len(here)} repetitions ({why})")
    return tuple(lines)


def _causes(points: Sequence[PointResult]) -> tuple[str, ...]:
    invalid = [point for point in points if not point.valid]
    names = Counter(name for point in invalid for name in {reason.split(":")[0] for reason in point.reasons})
    return tuple(name for name, _ in names.most_common())


def _doubts(evidence: Crossover, measured: Sequence[int]) -> list[str]:
    """What speaks against "always" or "never" without proof: no valid pair, or a difference the other way round."""
    sign = 1 if evidence.kind == "always" else -1
    found = [f"concurrency {c} has no valid pair" for c in measured if c not in evidence.changes]
    for c in evidence.unclear_at:
        change = evidence.changes[c]
        if sign * (change.ratio - 1) < -AGAINST:
            found.append(
                f"concurrency {c} looks the other way round ({change.ratio - 1:+.1%}, not told apart)"
            )
    return found


def _side(points: Sequence[PointResult], arm: str, metric: str) -> Side:
    """Valid points only, by repetition and concurrency."""
    values: dict[int, dict[int, float]] = {}
    for point in points:
        value = point.metrics.get(metric)
        if point.arm == arm and point.valid and value is not None and value > 0:
            values.setdefault(point.boot, {})[point.index] = value
    return Side(arm, by_concurrency(values, {point.index: point.concurrency for point in points}))
