"""The node's answers as values: one frozen dataclass a verb (agent/protocol.md); `decoding.decode` makes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.model.facts import Gpu, JournalFact, LockFact, ProcessFact
from orchestrator.remote.decoding import Packed


@dataclass(frozen=True)
class Hello:
    pid: int
    python: str
    home: str
    user: str
    uid: int
    host: str
    boot_id: str


@dataclass(frozen=True)
class ServerState:
    """The server as the guardian sees it. `exit_code` or `signal` once it has ended; neither where it never started."""

    pid: int
    alive: bool
    exit_code: int | None
    signal: int | None
    log_size: int
    log_idle_s: float
    log_tail: tuple[str, ...]
    utc_s: float | None = None  # the node's clock when it answered
    disk_free_mib: int | None = None  # of the file system that its log goes to


@dataclass(frozen=True)
class Beat:
    """The guardian's state; without one the lease is None. `lock` says who holds the node (state, phase)."""

    lease_left_s: float | None
    server: ServerState | None
    lock: LockFact | None = None


@dataclass(frozen=True)
class ReadFile:
    """`data` is None for a file that is absent."""

    path: str
    z: Packed | None
    sha256: str | None
    size: int

    @property
    def data(self) -> bytes | None:
        return self.z


@dataclass(frozen=True)
class ReadFiles:
    files: tuple[ReadFile, ...]


@dataclass(frozen=True)
class CompileResult:
    path: str
    ok: bool
    error: str | None


@dataclass(frozen=True)
class ImportResult:
    """`missing` names the absent dependency of a module whose import is not possible on this node."""

    module: str
    state: Literal["loaded", "failed", "not_possible"]
    file: str | None
    sha256: str | None
    missing: str | None
    error: str | None


@dataclass(frozen=True)
class ArgumentResult:
    """What the tree's own parser says to one arm's words. `near`: unknown flag -> the nearest known one, or ""."""

    arm: str
    ok: bool
    how: Literal["parser", "not possible"]
    error: str | None
    missing: str | None
    near: dict[str, str]


@dataclass(frozen=True)
class Smoke:
    """`warnings` are the interpreter's; `output` is the last of what else the modules printed."""

    compile: tuple[CompileResult, ...]
    imports: tuple[ImportResult, ...]
    warnings: tuple[str, ...]
    output: tuple[str, ...] = ()
    arguments: tuple[ArgumentResult, ...] = ()


@dataclass(frozen=True)
class Recovered:
    """A dead holder's run that was put back before the new one began."""

    run_id: str
    restored: tuple[str, ...]
    stopped: tuple[int, ...]
    kept: tuple[str, ...] = ()
    patched: tuple[str, ...] = ()  # of `kept`: those that still hold a patch of ours


@dataclass(frozen=True)
class Guard:
    guardian_pid: int
    journal: str
    recovered: tuple[Recovered, ...]
    cleared: tuple[str, ...] = ()  # earlier runs whose folders were removed


@dataclass(frozen=True)
class Attached:
    """A guardian taken over: what it had done so far. `set`: the patch set applied last."""

    run_id: str
    journal: str
    state: str
    workdir: str
    set: str | None
    files_changed: tuple[str, ...]
    server: ServerState | None


@dataclass(frozen=True)
class Applied:
    changed: tuple[str, ...]
    kept: tuple[str, ...]


@dataclass(frozen=True)
class OverlayCheck:
    """Whether a copy of the package in `root` would be what serves; `problem` says what would be instead."""

    root: str
    files: int
    size_bytes: int
    problem: str | None


@dataclass(frozen=True)
class Laid:
    """The copy that serves from now on. Paths are package-relative."""

    root: str
    changed: tuple[str, ...]
    kept: tuple[str, ...]


@dataclass(frozen=True)
class Origin:
    """Where one process of the server loads the package from; `how` says what that is read from."""

    pid: int
    command: str
    state: Literal["overlay", "installed", "unknown"]
    how: str


@dataclass(frozen=True)
class Origins:
    root: str
    processes: tuple[Origin, ...]


@dataclass(frozen=True)
class VerifiedFile:
    path: str
    state: Literal["original", "patched", "foreign"]
    sha256: str | None


@dataclass(frozen=True)
class Verified:
    files: tuple[VerifiedFile, ...]


@dataclass(frozen=True)
class Holders:
    """`problem` set means unknown, never free."""

    holders: tuple[ProcessFact, ...]
    gpus: tuple[Gpu, ...]
    problem: str | None


@dataclass(frozen=True)
class Freed:
    """`note` says what was not as clean as wished, e.g. that memory cannot be read on this node."""

    stopped: tuple[ProcessFact, ...]
    note: str | None = None


@dataclass(frozen=True)
class Started:
    pid: int
    start_time: int
    pgid: int


@dataclass(frozen=True)
class Stopped:
    """The server's end. Survivors are an error, so the tuple is empty; `stopped`: pids that were ended."""

    exit_code: int | None
    signal: int | None
    survivors: tuple[Any, ...]
    gpu_wait_s: float | None
    stopped: tuple[int, ...] = ()
    note: str | None = None


@dataclass(frozen=True)
class HttpReply:
    status: int
    body: str
    elapsed_s: float


@dataclass(frozen=True)
class LoadReply:
    """`summary` as the load generator wrote it; `records` is its JSONL, byte for byte."""

    summary: dict[str, Any]
    records: Packed


@dataclass(frozen=True)
class Tail:
    """Bytes of a file from `offset` on; `size` is the file's size now."""

    z: Packed
    offset: int
    size: int

    @property
    def data(self) -> bytes:
        return self.z


@dataclass(frozen=True)
class Restored:
    restored: tuple[str, ...]
    verified: bool


@dataclass(frozen=True)
class Unwound:
    """The node was given back: pids ended, files put back, and what else there is to tell."""

    stopped: tuple[int, ...]
    restored: tuple[str, ...]
    verified: bool
    exit_code: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Put:
    path: str
    sha256: str


@dataclass(frozen=True)
class Sampled:
    note: str | None


@dataclass(frozen=True)
class RecoveredRuns:
    recovered: tuple[Recovered, ...]
    cleared: tuple[str, ...] = ()


@dataclass(frozen=True)
class Status:
    """Who holds the node and what runs there. `gpu_problem` set means that holders are unknown, not absent."""

    lock: LockFact | None
    journals: tuple[JournalFact, ...]
    server: ServerState | None
    holders: tuple[ProcessFact, ...]
    gpus: tuple[Gpu, ...]
    gpu_problem: str | None = None
