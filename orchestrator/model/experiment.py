"""Experiment: what the user wrote, after strict parsing. Field names are the YAML's, with units added.

The YAML spells durations as `30s`, `10m`; here they are `*_s` floats. `config.load_experiment` builds these;
nothing else does, so that an `Experiment` is always a checked one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Gpus = Literal["all"] | tuple[int, ...]  # indices as nvidia-smi counts
PatchMode = Literal["in_place", "overlay"]
Scalar = str | int | float | bool
ArgValue = Scalar | tuple[Scalar, ...]  # True makes a bare flag; a tuple makes `--flag a b c`


@dataclass(frozen=True)
class SecretRef:
    """A value taken from the controller's environment when the server starts; never stored or shown."""

    from_env: str


EnvValue = str | SecretRef


@dataclass(frozen=True)
class FreeRule:
    """One line of `free_list`: holders of GPUs that may be stopped. Both must match."""

    user: str
    command: str  # substring of the command line


@dataclass(frozen=True)
class Node:
    host: str  # Host of ~/.ssh/config, user@host[:port], or "local"
    python: str  # the interpreter that serves; never guessed; may start with ~/
    workdir: str = "~/.dynspec/work"
    cwd: str = "~"
    gpus: Gpus = "all"
    free: Literal["own", "wait", "listed", "all"] = "own"
    free_list: tuple[FreeRule, ...] = ()
    patch_mode: PatchMode = "in_place"
    allow_unlisted: bool = False
    lease_s: float = 120.0
    known_hosts: str = "~/.ssh/known_hosts"
    host_key: str | None = None
    ssh_config: str | None = None  # None = ~/.ssh/config as ssh reads it


@dataclass(frozen=True)
class Ready:
    timeout_s: float = 1800.0
    silence_s: float = 300.0  # no new log byte for this long = stuck


@dataclass(frozen=True)
class Server:
    args: dict[str, ArgValue]
    port: int = 30000
    env: dict[str, EnvValue] = field(default_factory=dict)
    ready: Ready = Ready()
    package: str = "sglang"  # import package that is patched
    module: str = "sglang.launch_server"  # run as `python -m module`


@dataclass(frozen=True)
class Arm:
    """One configuration to compare. `args` and `env` are complete: server's, then extends', then own."""

    name: str
    args: dict[str, ArgValue]
    env: dict[str, EnvValue]
    patches: tuple[str, ...] = ()
    only_by: Literal["", "patch", "native"] = (
        ""  # of a preset: left out where a tree has the threshold otherwise
    )

    @property
    def speculates(self) -> bool:
        return "speculative-algorithm" in self.args


@dataclass(frozen=True)
class Load:
    """How requests are offered. `straddle` steps between two concurrencies around a threshold."""

    kind: Literal["closed", "open", "straddle"] = "closed"
    arrival: Literal["constant", "poisson"] | None = None  # open
    rate_per_s: float | None = None  # open
    around: int | None = None  # straddle: low = around, high = around + 1 .. see load.point
    period_s: float | None = None  # straddle


PROMPT_KINDS = ("coding", "agentic")  # a file each in load/texts


@dataclass(frozen=True)
class Prompts:
    source: Literal["builtin", "file", "input_ids"] = "builtin"
    kinds: tuple[str, ...] = PROMPT_KINDS  # builtin
    path: str | None = None  # file: JSONL
    vocab: int | None = None  # input_ids: generated periodic sequences over this vocabulary
    seed: int = 1000


@dataclass(frozen=True)
class Sweep:
    concurrency: tuple[int, ...] = (1,)
    load: Load = Load()
    prompts: Prompts = Prompts()
    endpoint: Literal["chat", "completions", "generate"] = "chat"
    output_tokens: int = 512
    requests_per_slot: int = 4
    min_requests: int = 8
    warmup_requests_per_slot: int = 1
    repeats: int = 3  # server boots per arm, interleaved
    load_from: Literal["node", "controller"] = "node"
    share_boot: bool = False
    temperature: float = 0.0
    ignore_eos: bool = True
    record_chunks: bool = False
    request_timeout_s: float = 600.0
    idle_timeout_s: float = 120.0


@dataclass(frozen=True)
class Limits:
    """Every phase has a limit; all can be set in the YAML as durations under `limits:`."""

    connect_s: float = 20.0
    facts_s: float = 60.0
    smoke_s: float = 120.0
    stop_s: float = 30.0
    interrupt_s: float = 8.0  # bounds the whole unwind after a signal
    gpu_free_s: float = 60.0
    free_s: float = 120.0
    canary_s: float = 120.0
    point_s: float = 1800.0
    collect_s: float = 600.0
    lock_wait_s: float = 0.0


@dataclass(frozen=True)
class Gate:
    metric: str = "output_tps"
    max_drop: float = 0.03  # share, 0.03 = 3 %
    against: str = "last-good"


@dataclass(frozen=True)
class Report:
    formats: tuple[Literal["terminal", "html", "md", "junit"], ...] = ("terminal", "md")


@dataclass(frozen=True)
class Experiment:
    name: str
    node: Node
    server: Server
    arms: tuple[Arm, ...]
    sweep: Sweep = Sweep()
    limits: Limits = Limits()
    report: Report = Report()
    gate: Gate | None = None
    schema: int = 1
    source: str = ""  # the YAML text as read, for the lock file

    def arm(self, name: str) -> Arm:
        return next(arm for arm in self.arms if arm.name == name)
