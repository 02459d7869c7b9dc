"""Plan: what will happen, in order, each step with its undo. A value: printed by `plan`, executed by `run`."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.model.experiment import Arm, EnvValue, FreeRule, PatchMode


@dataclass(frozen=True)
class Edit:
    """Wanted content of one file of the serving tree in one patch set. `after is None`: the file is absent."""

    path: str  # package-relative
    absolute: str
    before_sha256: str | None  # original on the node; None: the file does not exist there
    after_sha256: str | None
    after: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class PatchSet:
    """Exactly what a boot's tree holds beyond its original bytes. The empty set is the original tree."""

    name: str  # "original" or "spec_banner+dynamic_disable"
    patches: tuple[str, ...]
    edits: tuple[Edit, ...]
    modules: tuple[str, ...]  # import names of the touched files, for the smoke check


@dataclass(frozen=True)
class Launch:
    """How one arm's server is started. `argv` are words; secrets stay references until the start."""

    argv: tuple[str, ...]
    env: dict[str, EnvValue]
    cwd: str
    port: int


# Effects: a closed union, matched exhaustively by the runner.
@dataclass(frozen=True)
class Guard:
    workdir: str
    lease_s: float
    lock_wait_s: float


@dataclass(frozen=True)
class Smoke:
    patch_set: PatchSet


@dataclass(frozen=True)
class ApplyEdits:
    """`overlay`: in a copy of the package that serves, where installed files are only read."""

    patch_set: PatchSet
    overlay: bool = False


@dataclass(frozen=True)
class RestoreFiles:
    """`overlay`: nothing was changed; the copy is removed."""

    overlay: bool = False


@dataclass(frozen=True)
class FreeGpus:
    policy: str
    rules: tuple[FreeRule, ...]
    gpus: tuple[int, ...] | None  # None: all


@dataclass(frozen=True)
class StartServer:
    arm: str
    boot: int
    launch: Launch


@dataclass(frozen=True)
class PutFile:
    """A small file that a server reads at its start. It lies in the run's work folder and goes with it."""

    path: str
    text: str


@dataclass(frozen=True)
class SwitchThreshold:
    """From here on the running server is `arm`: its threshold is changed while nothing runs, and read back.

    `boot`: the number that its points carry.
    """

    arm: str
    boot: int
    threshold: int


@dataclass(frozen=True)
class StopServer:
    pass


@dataclass(frozen=True)
class WaitReady:
    arm: str


@dataclass(frozen=True)
class Canary:
    """A few short greedy requests at each concurrency, before any point is measured."""

    arm: str
    concurrency: tuple[int, ...]


@dataclass(frozen=True)
class RunPoint:
    arm: str
    boot: int
    index: int  # position in the sweep; the same concurrency may stand there more than once
    concurrency: int


@dataclass(frozen=True)
class Unlock:
    pass


@dataclass(frozen=True)
class Collect:
    pass


@dataclass(frozen=True)
class MakeReport:
    formats: tuple[str, ...]


Effect = (
    Guard
    | Smoke
    | ApplyEdits
    | RestoreFiles
    | FreeGpus
    | PutFile
    | StartServer
    | SwitchThreshold
    | StopServer
    | WaitReady
    | Canary
    | RunPoint
    | Unlock
    | Collect
    | MakeReport
)


@dataclass(frozen=True)
class Step:
    phase: str  # the contract's phase names
    do: Effect
    undo: Effect | None
    text: str  # one line for people: what it does, to what


@dataclass(frozen=True)
class BootPlan:
    """One server boot: arm, boot number (1-based, per arm) and the tree it needs.

    `shares`: all arms that are measured in it, in that order, where it is shared; `arm` is the one it is started as.
    """

    arm: str
    boot: int
    patch_set: str
    shares: tuple[str, ...] = ()


@dataclass(frozen=True)
class WorkerPath:
    """Which speculative worker an arm's server will use, and why.

    `worker` is v1, v2, none (no speculation), other (an algorithm with a worker of its own), unknown (a release
    whose rules were not read) or refused (the server would exit on these arguments).
    """

    worker: str
    why: str
    files: tuple[str, ...] = ()  # package-relative paths of the worker in use


@dataclass(frozen=True)
class Plan:
    steps: tuple[Step, ...]
    boots: tuple[BootPlan, ...]
    patch_sets: tuple[PatchSet, ...]
    worker_paths: dict[str, WorkerPath]
    warnings: tuple[str, ...]
    gpu_minutes: float | None  # None: unknown, no measured step time yet
    gpu_minutes_why: str = ""
    arms: tuple[Arm, ...] = ()  # as they are served here, which may differ from how they were written
    patch_mode: PatchMode = "in_place"
    modes: dict[str, str] = field(
        default_factory=dict
    )  # arm -> how, where it is served otherwise than written
    unsupported: dict[str, str] = field(default_factory=dict)  # arm -> why it is left out

    @property
    def patched(self) -> bool:
        """Whether any boot needs a tree other than the original."""
        return any(item.edits for item in self.patch_sets)

    def patch_set(self, name: str) -> PatchSet:
        return next(item for item in self.patch_sets if item.name == name)
