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
    notes: tuple[str, ...] = ()  # what a reader must know of a valid point (warnings)


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
    boots: tuple[PointResult, ...] = ()  # what it was folded from, in boot order
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ArmSummary:
    name: str
    boots: int
    points: tuple[PointSummary, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class FailureCard:
    """What ended a boot or a point: the first error by class, its likely cause and fix, and how to see it again."""

    arm: str
    boot: int
    concurrency: int | None  # None: not during a point (load, graph capture, canary)
    failure: str  # class, as in failure.CLASSES
    title: str
    cause: str
    fix: str
    rank: str  # "TP0", or "" where the log names none
    line: int  # 1-based line of the first error in the log; 0: no error line was found
    excerpt: tuple[str, ...]  # up to 20 lines of that rank
    replay: str  # command that runs just this again; "" if unknown


@dataclass(frozen=True)
class Series:
    """Values over time, for a drawing. `t_s` rises; both have the same length."""

    name: str
    unit: str
    t_s: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class BootTrace:
    """One boot over time, s from the start of its log. Whatever is unknown is empty."""

    arm: str
    boot: int
    running: Series | None = None  # requests in the decode batch
    accept_length: Series | None = None
    switches: tuple[tuple[float, bool], ...] = ()  # (t_s, speculating from then on)
    gpu: tuple[Series, ...] = ()


@dataclass(frozen=True)
class Unfinished:
    """What a run lacks that has not come to its end. `boots`, `missing`: arm -> those planned, and those of them that
    were not measured to their end; an arm that lacks none is not in `missing`. Repetitions inside a boot count as boots
    do."""

    under_way: str = ""  # "pid 12 on host" of the controller that drives it now; "": none does
    boots: dict[str, int] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)
    partly: bool = False  # some of the missing ones have measurements
    resume: str = ""  # the command that goes on with it
    planned: bool = True  # False: it is unknown what was planned, so nothing is known to be missing
    untold: bool = False  # its outcome is lost: it may have come to its end


@dataclass(frozen=True)
class RunInfo:
    """What a report says of a run beside its numbers. Everything is optional: a report never fails for lack of it."""

    run_id: str = ""
    name: str = ""
    host: str = ""
    restore: str = ""  # the command that puts the node back
    folder: str = ""  # where records, logs and the report lie
    started_utc: str = ""
    ended_utc: str = ""
    state: str = ""  # Outcome.state; "" while unknown
    message: str = ""
    simulated: bool = False  # a stand-in engine answered: no number is a GPU's
    load_from: str = "node"
    load: str = "closed"
    prompts: str = ""  # source and kinds, for people
    prompts_random: bool = False  # random tokens misstate draft acceptance
    workers: dict[str, str] = field(default_factory=dict)  # arm -> "v2: why"
    unsupported: dict[str, str] = field(default_factory=dict)  # arm -> why this node cannot run it
    provenance: dict[str, str] = field(default_factory=dict)  # label -> value, printed in this order
    warnings: tuple[str, ...] = ()
    failures: tuple[FailureCard, ...] = ()
    traces: tuple[BootTrace, ...] = ()
    gate: tuple[str, ...] = ()  # what the gate said, its verdict first
    unfinished: Unfinished | None = None  # None: it came to its end, or nobody knows
    damage: tuple[
        str, ...
    ] = ()  # files of the run folder that are lost, each with what is unknown without it


ENDED = ("ok", "nothing-to-claim", "regression")  # states of a run that measured everything it planned
PARTIAL = "partial"  # of one that measured what it was to this time, and has more to do


@dataclass(frozen=True)
class Outcome:
    """Written last, as outcome.json: without it the run is unfinished."""

    exit_code: int
    state: str  # "ok", "failed", "interrupted", "refused", "dirty", PARTIAL or one of ENDED
    message: str
    node_restored: bool
    started_utc: str
    ended_utc: str
