"""Is the text the same? Outputs of an arm beside the baseline's, next to the baseline beside itself. Pure.

Greedy output of one server already differs between boots and batch sizes, so the share that an arm has in common with
the baseline means something only beside the share that the baseline has in common with itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

Key = tuple[int, int]  # position in the sweep, request index
Outputs = Mapping[Key, str]  # digest of the output of each ok request, of one boot

TOLERANCE = 0.02  # by how much an arm's share may stay below the baseline's own before it is called


def digest_of(record: Mapping[str, object]) -> str | None:
    """Of the output of an ok request; failed ones and the warm-up have none to compare."""
    digest = record.get("output_sha256")
    return str(digest) if digest and record.get("ok") and record.get("phase") != "warmup" else None


@dataclass(frozen=True)
class Equality:
    """Shares are 0..1; None where there was nothing to compare (one boot of the baseline has no self)."""

    arm: str
    share: float | None
    baseline_share: float | None
    pairs: int  # outputs compared
    differs: bool  # clearly less alike than the baseline is to itself


def equality(arm: str, boots: Sequence[Outputs], baseline: Sequence[Outputs]) -> Equality:
    """Over all pairs of boots, an arm's against the baseline's; the same request of the same point."""
    own, pairs = _share(product(boots, baseline))
    base, _ = _share(combinations(baseline, 2))
    differs = own is not None and base is not None and own < base - TOLERANCE
    return Equality(arm, own, base, pairs, differs)


def _share(pairs: Iterable[tuple[Outputs, Outputs]]) -> tuple[float | None, int]:
    same = compared = 0
    for left, right in pairs:
        compared += len(left.keys() & right.keys())
        same += len(left.items() & right.items())
    return (same / compared if compared else None), compared
