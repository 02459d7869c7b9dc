"""Accept length and share of speculative steps of one point, from the best source that there is. Pure.

In this order: the counters of the dynamic-disable patch (they tell speculative from plain steps), the requests' own
verify steps (`/generate` tells them; a v2 worker counts a plain step as one verify step that accepts nothing, so
under a plain mode they would say 1.00), the server's average since its last flush (chat endpoints tell nothing of a
request). Anything else is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.analysis.validity import Finding

States = Sequence[Mapping[str, Any]]  # `internal_states` of /server_info: one entry a data-parallel rank
Metrics = Mapping[str, float | None]

FROM_SERVER = Finding(
    "accept_from_server",
    "the accept length is the server's own average since the flush before this load (avg_spec_accept_length of "
    "its first rank): the endpoint tells no verify steps of a request",
    fatal=False,
)


def counted(before: States, after: States, keys: Sequence[str]) -> tuple[int, ...] | None:
    """How far the patch's counters moved between two looks, over all ranks; None where the server has none."""
    if not after or len(before) != len(after):
        return None
    totals = [0] * len(keys)
    for old, new in zip(before, after, strict=True):
        for place, key in enumerate(keys):
            first, last = stat(old, key), stat(new, key)
            if not isinstance(first, int) or not isinstance(last, int) or last < first:
                return None
            totals[place] += last - first
    return tuple(totals)


def stat(state: Mapping[str, Any], key: str) -> object:
    """One of the patch's values for one rank; None where it has none."""
    stats = state.get("dynspec_stats")
    return stats.get(key) if isinstance(stats, Mapping) else None


def with_acceptance(
    metrics: Metrics, *, speculates: bool, before: States, after: States, flushed: bool
) -> tuple[dict[str, float | None], tuple[Finding, ...]]:
    """`metrics` with `accept_length`, `accept_rate`, `verify_steps` and `spec_share` by the best source."""
    found = {**metrics, "spec_share": spec_share(before, after)}
    verified = counted(before, after, ("spec_reqs", "spec_tokens"))
    if verified is not None:
        found |= _by_patch(found, *verified)
    elif speculates and metrics.get("accept_length") is None and flushed:
        length = _since_flush(before, after)
        if length is not None:
            found["accept_length"] = length
            return found, (FROM_SERVER,)
    return found, ()


def spec_share(before: States, after: States) -> float | None:
    """Share of decode steps that speculated; None where it is not counted or nothing ran."""
    steps = counted(before, after, ("plain_steps", "spec_steps"))
    return steps[1] / sum(steps) if steps and sum(steps) else None


def _by_patch(metrics: Metrics, verified: int, tokens: int) -> dict[str, float | None]:
    """`verified`: pairs of a request and a verify step; `tokens`: what they gave, bonus token included."""
    return {
        "accept_length": tokens / verified if verified else None,
        # The requests' own counts take plain steps for verify steps, so a rate over them says something else.
        "accept_rate": metrics.get("accept_rate") if metrics.get("spec_share") == 1 else None,
        "verify_steps": verified,
    }


def _since_flush(before: States, after: States) -> float | None:
    """The running average restarts at a flush; where it was there before the load, something else is in it."""
    if not after or (before and before[0].get("avg_spec_accept_length") is not None):
        return None
    value = after[0].get("avg_spec_accept_length")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
