"""Results: one request record, one measured point, one summary. Absent is None, never 0."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Interval:
    """A metric over boots. `low`/`high` are None for n = 1: one boot says nothing about spread."""

    value: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True)
class PointResult:
    """One point of one boot."""

    arm: str
    boot: int
    index: int
    concurrency: int
    metrics: dict[str, float | None]
    ok: int
    failed: int
    attempted: int
    warmup_requests: int
    bodies_sha256: str  # over all request bodies in order: equal across arms
    valid: bool = True
    reasons: tuple[str, ...] = ()
    extra: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class PointSummary:
    """One sweep position of one arm, over its boots."""

    index: int
    concurrency: int
    valid: bool
    reasons: tuple[str, ...]
    metrics: dict[str, Interval]
    ok: int
    failed: int
    attempted: int


@dataclass(frozen=True)
class ArmSummary:
    name: str
    boots: int
    points: tuple[PointSummary, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """Written last, as outcome.json: without it the run is unfinished."""

    exit_code: int
    state: str  # "ok", "failed", "interrupted", "refused", "dirty", "nothing-to-claim"
    message: str
    node_restored: bool
    started_utc: str
    ended_utc: str
