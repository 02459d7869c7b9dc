"""Did a threshold act that runs as SGLang's own adaptive speculation? Pure.

That mode keeps no counters of steps; its log tells each change of draft steps, from 0.5.14 on at the level of every
start-up line. A boot that speculates when it starts cannot have run plain without such a line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from orchestrator.analysis.trace import Trace
from orchestrator.analysis.validity import Finding, judged
from orchestrator.model.result import PointResult

NEVER = Finding(
    "patch_never_acted",
    "the log of this boot tells no change to zero draft steps, which this load should bring",
)
UNPROVEN = Finding(
    "adaptive_unproven", "without the server's log nothing shows that steps were plain", fatal=False
)


def natively_plain(
    points: Sequence[PointResult],
    thresholds: Mapping[str, int],
    logs: Mapping[tuple[str, int], Trace],
) -> tuple[PointResult, ...]:
    """The points, those above their arm's threshold judged by the log of their boot.

    `thresholds`: arm -> threshold, of arms that run it natively under a steady load. `logs`: by arm and boot.
    """
    return tuple(
        _judged(
            point,
            logs.get((point.arm, point.boot)),
            above=point.concurrency > thresholds.get(point.arm, point.concurrency),
        )
        for point in points
    )


def _judged(point: PointResult, log: Trace | None, *, above: bool) -> PointResult:
    if log is None:
        return judged(point, [UNPROVEN]) if above else point
    if any(not switch.speculating for switch in log.switches):
        return _off(point)
    return judged(point, [NEVER]) if above else point


def _off(point: PointResult) -> PointResult:
    """A zero step counts as a verify that accepts nothing: in a boot that went plain this is no loss of drafts."""
    notes = tuple(note for note in point.notes if not note.startswith("accept_one:"))
    if notes == point.notes:
        return point
    nothing = {"accept_length": None, "accept_rate": None, "verify_steps": 0.0, "spec_share": 0.0}
    return replace(point, metrics={**point.metrics, **nothing}, notes=notes)
