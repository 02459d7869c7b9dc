"""Where an arm leaves off speculation by itself: by a threshold, or by an adaptive configuration. Pure.

A curve over concurrency jumps there, so nothing may be interpolated across it; and where the arm does not speculate,
its difference to a server without speculation is neither a gain nor a loss of speculation.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.analysis import stats
from orchestrator.model.result import ArmSummary, PointSummary

MOSTLY = 0.5  # share of steps that speculated below which a level counts as one without speculation


@dataclass(frozen=True)
class OwnSwitch:
    """`off_at`: measured concurrencies at which the arm does not speculate. `anywhere`: its settings do not tell where
    it changes its draft steps, so it may between any two levels."""

    off_at: frozenset[int] = frozenset()
    anywhere: bool = False

    def inside(self, low: int, high: int) -> bool:
        """Whether it switches, or may, between these two measured concurrencies."""
        return self.anywhere or self.seen(low, high)

    def seen(self, low: int, high: int) -> bool:
        """Whether it speculates at one of them alone."""
        return (low in self.off_at) != (high in self.off_at)


STAYS = OwnSwitch()


def own_switch(arm: ArmSummary, threshold: int | None, *, adaptive: bool) -> OwnSwitch:
    """`threshold`: None where the arm's settings tell none. `adaptive`: it changes its draft steps by itself.

    What was measured goes first: a drain leaves a few speculative steps above a threshold, and arrivals at a set rate
    may keep a server below it.
    """
    if threshold is None and not adaptive:
        return STAYS
    off = {point.concurrency for point in arm.points if _is_off(point, threshold)}
    on = {point.concurrency for point in arm.points if not _is_off(point, threshold)}
    return OwnSwitch(frozenset(off - on), anywhere=threshold is None)


def _is_off(point: PointSummary, threshold: int | None) -> bool:
    shares = [boot.metrics.get("spec_share") for boot in point.boots if boot.valid]
    known = [share for share in shares if share is not None]
    if known:
        return stats.mean(known) < MOSTLY
    return threshold is not None and point.concurrency > threshold
