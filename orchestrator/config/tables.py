"""Every key of the experiment file: its kind, its default (the dataclass's) and one line about it.

The loader checks with these tables and `orchestrator.schema` prints them; there is no second list of keys.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.config.kinds import (
    BAD,
    Anything,
    Bad,
    Choice,
    Flag,
    Json,
    ListOf,
    Real,
    Text,
    Whole,
)
from orchestrator.config.maps import ArgsMap, EnvMap
from orchestrator.config.measures import PERCENT, duration
from orchestrator.config.paths import NodePath, WorkPath
from orchestrator.config.preset import ArmsChoice, RawArm
from orchestrator.config.reaching import HostName, PinnedKey
from orchestrator.config.sections import Field, MapOf, Section
from orchestrator.config.special import GpuChoice, LoadChoice, PromptsChoice
from orchestrator.config.tree import Problems, TreeNode
from orchestrator.model.experiment import (
    Experiment,
    FreeRule,
    Gate,
    Limits,
    Node,
    Ready,
    Report,
    Server,
    Sweep,
)

GATE_METRICS = (
    "output_tps",
    "per_user_tps",
    "accept_length",
    *(f"{name}{end}" for name in ("ttft", "tpot", "e2e") for end in ("", "_p50", "_p90", "_p95", "_p99")),
)
LONGEST_NAME = 64
NAME = rf"[A-Za-z0-9][A-Za-z0-9_-]{{0,{LONGEST_NAME - 1}}}"
_DOTTED = r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*"
_PATH = Text("a path", home=True)
_PATCHES = ListOf(
    Text("a patch name", NAME, "dynspec patch list shows the names", longest=LONGEST_NAME),
    "patch names",
    unique=True,
)


@dataclass(frozen=True)
class _Warmup:
    requests_per_slot: int = 1


_WARMUP = Section(
    _Warmup, (Field("requests_per_slot", Whole(0, 1000), "warm-up requests per slot; 0 for none"),)
)


@dataclass(frozen=True)
class _WarmupKind:
    """`{requests_per_slot: 1}`, kept as one number of the sweep."""

    section: Section

    def read(self, node: TreeNode, path: str, problems: Problems) -> int | Bad:
        found = self.section.read(node, path, problems)
        return found.requests_per_slot if isinstance(found, _Warmup) else BAD

    def schema(self) -> Json:
        return self.section.schema()

    def spell(self, value: object) -> object:
        return {"requests_per_slot": value}


NODE = Section(
    Node,
    (
        Field("host", HostName(), "a Host of ~/.ssh/config, user@host[:port], or local", required=True),
        Field(
            "python",
            NodePath(bare=True),
            "the interpreter that serves, on the node; never guessed",
            required=True,
        ),
        Field("cwd", NodePath(), "the folder the server is started in, on the node"),
        Field("workdir", WorkPath(), "logs and backups on the node; a folder for dynspec alone"),
        Field("gpus", GpuChoice(), "GPUs the server may use"),
        Field(
            "free",
            Choice(("own", "wait", "listed", "all")),
            "what may be stopped to free them; all needs --yes",
        ),
        Field(
            "free_list",
            ListOf(
                Section(
                    FreeRule,
                    (
                        Field("user", Text("a user name"), "owner of the process", required=True),
                        Field("command", Text("text"), "part of its command line", required=True),
                    ),
                ),
                "rules",
            ),
            "free: listed stops holders that match user and command of one rule",
        ),
        Field("patch_mode", Choice(("in_place", "overlay")), "how the serving tree is patched"),
        Field(
            "allow_unlisted",
            Flag(),
            "patch a tree of unknown hashes whose anchors all fit (a source checkout)",
        ),
        Field(
            "lease",
            duration(10, 86400),
            "the node restores itself after this long without its controller",
            "lease_s",
        ),
        Field("known_hosts", _PATH, "host keys, strict on every hop"),
        Field("host_key", PinnedKey(), "the one accepted host key, instead of known_hosts"),
        Field("ssh_config", _PATH, "ssh configuration; left out: ~/.ssh/config as ssh reads it"),
    ),
    "The machine that serves.",
)

READY = Section(
    Ready,
    (
        Field("timeout", duration(1), "longest start-up", "timeout_s"),
        Field("silence", duration(1), "no new log output for this long means stuck", "silence_s"),
    ),
)

SERVER = Section(
    Server,
    (
        Field("args", ArgsMap(), "arguments of every arm's server, without leading dashes", required=True),
        Field("port", Whole(1024, 65535, "a port"), "port of the server on the node"),
        Field("env", EnvMap(), "environment of every arm's server; secrets as {from_env: NAME}"),
        Field("ready", READY, "when a starting server is given up"),
        Field("package", Text("a package name", _DOTTED), "import package that patches touch"),
        Field("module", Text("a module name", _DOTTED), "module that is run to serve"),
    ),
    "What all arms have in common.",
)

ARM = Section(
    RawArm,
    (
        Field(
            "extends",
            Text("an arm name", NAME, longest=LONGEST_NAME),
            "another arm whose args, env and patches this one starts from",
        ),
        Field(
            "args", ArgsMap(), "added to or instead of inherited ones; null removes one, true is a bare flag"
        ),
        Field("env", EnvMap(), "added to or instead of inherited ones; null removes one"),
        Field("patches", _PATCHES, "patches in the tree of this arm's boots, instead of inherited ones"),
    ),
)
ARMS = ArmsChoice(MapOf(ARM, "arms", NAME, LONGEST_NAME))

SWEEP = Section(
    Sweep,
    (
        Field(
            "concurrency",
            ListOf(Whole(1, 100_000), "concurrencies"),
            "requests in flight, one point each; of a stepping load it gives their number, and lies above `around`",
        ),
        Field(
            "load", LoadChoice(), "closed, {open: poisson, rate: 8/s} or {straddle: {around: 5, period: 2s}}"
        ),
        Field("prompts", PromptsChoice(), "what is sent"),
        Field("endpoint", Choice(("chat", "completions", "generate")), "API that is measured"),
        Field("output_tokens", Whole(1, 1_000_000), "tokens asked for per request"),
        Field("requests_per_slot", Whole(1, 10_000), "requests at a point = concurrency x this"),
        Field("min_requests", Whole(1, 1_000_000), "at least this many requests at a point"),
        Field(
            "warmup",
            _WarmupKind(_WARMUP),
            "before each point, same shape, left out of the numbers",
            "warmup_requests_per_slot",
        ),
        Field("repeats", Whole(1, 100), "server boots per arm, interleaved"),
        Field("load_from", Choice(("node", "controller")), "where the load generator runs"),
        Field("share_boot", Flag(), "arms that differ only in the threshold share boots"),
        Field("temperature", Real(0, 10), "sampling temperature; 0 is greedy"),
        Field("ignore_eos", Flag(), "keep generating up to output_tokens"),
        Field("record_chunks", Flag(), "keep the time of every chunk, in a file beside the records"),
        Field("request_timeout", duration(1), "longest request", "request_timeout_s"),
        Field("idle_timeout", duration(1), "longest silence inside a request", "idle_timeout_s"),
    ),
    "What is measured at each boot.",
)

_LIMITS = (
    ("connect", "reaching the node"),
    ("facts", "reading what the node is"),
    ("smoke", "checking one patch set in its overlay"),
    ("stop", "a polite stop of the server"),
    ("interrupt", "the whole unwind after a signal"),
    ("gpu_free", "GPU memory really free after a stop"),
    ("free", "freeing or waiting for GPUs"),
    ("canary", "one concurrency of the canary"),
    ("point", "one point"),
    ("collect", "fetching logs and records"),
    ("lock_wait", "waiting for a node that somebody else uses"),
)
LIMITS = Section(
    Limits,
    tuple(
        Field(key, duration(0.0 if key == "lock_wait" else 0.1), f"limit: {doc}", f"{key}_s")
        for key, doc in _LIMITS
    ),
    "The longest that each phase may take.",
)

GATE = Section(
    Gate,
    (
        Field("metric", Choice(GATE_METRICS), "what is compared; a latency that rises counts as a drop"),
        Field("max_drop", PERCENT, "largest drop that passes"),
        Field("against", Text("a run id, last-good or rolling"), "the run, or the last runs that passed"),
    ),
)

REPORT = Section(
    Report,
    (
        Field(
            "formats",
            ListOf(Choice(("terminal", "html", "md", "junit")), "formats", unique=True),
            "what the report is written as",
        ),
    ),
)

EXPERIMENT = Section(
    Experiment,
    (
        Field(
            "schema",
            Whole(1, 1, "1, the version that this dynspec reads,"),
            "version of this format",
            required=True,
        ),
        Field(
            "name",
            Text("a name", NAME, "letters, digits, - and _, not - or _ first", longest=LONGEST_NAME),
            "names the run folders",
            required=True,
        ),
        Field("node", NODE, NODE.doc, required=True),
        Field("server", SERVER, SERVER.doc, required=True),
        Field(
            "arms",
            ARMS,
            "the configurations to compare: by name, or {preset: speculation, args: ...}",
            required=True,
        ),
        Field("sweep", SWEEP, SWEEP.doc),
        Field("limits", LIMITS, LIMITS.doc),
        Field("report", REPORT, "the report"),
        Field("gate", GATE, "when a run counts as a regression"),
        Field("lock", Anything(), "written by a run into experiment.lock.yaml; not read back"),
    ),
    "A dynspec experiment.",
)
