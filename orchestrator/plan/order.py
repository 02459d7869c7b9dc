"""Which boots, in which order, and which concurrencies a canary tries."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.experiment import Arm
from orchestrator.model.speculation import running_limit, threshold

_NO_THRESHOLD = (1, 10, 1)  # code that imports may still crash at 10; and back to 1


def risk_order(arms: tuple[Arm, ...]) -> tuple[Arm, ...]:
    """Riskiest first (most patches, then speculating), so that what is going to fail fails before long runs."""
    return tuple(sorted(arms, key=lambda arm: (-len(arm.patches), not arm.speculates)))


def boot_order(arms: tuple[Arm, ...], repeats: int) -> Iterator[tuple[Arm, int]]:
    """(arm, boot number), to and fro (A B, B A, A B): a drift of the node over time hits all arms alike."""
    ordered = risk_order(arms)
    for boot in range(1, repeats + 1):
        for arm in ordered if boot % 2 else reversed(ordered):
            yield arm, boot


def canary_concurrency(arm: Arm, sweep: tuple[int, ...]) -> tuple[int, ...]:
    """N, N+1, 2N and back to 1 around the arm's threshold; 1, 10, 1 without one that the sweep reaches.

    Nothing above the sweep or the server's limit is tried. Empty for an arm that does not speculate.
    """
    if not arm.speculates:
        return ()
    highest = max(sweep)
    limit = min(highest, running_limit(arm) or highest)
    edge = threshold(arm)
    wanted = (edge, edge + 1, 2 * edge, 1) if edge is not None and 0 < edge < highest else _NO_THRESHOLD
    tried: list[int] = []
    for value in (min(value, limit) for value in wanted):
        if not tried or tried[-1] != value:
            tried.append(value)
    return tuple(tried)
