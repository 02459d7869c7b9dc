"""`dynspec doctor`: what a node is good for, as findings. Reads only; nothing is locked, changed or started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.command import expand_home
from orchestrator.errors import DoesNotFit, DynspecError, NodeBusy, NodeDirty
from orchestrator.model.experiment import Experiment
from orchestrator.model.experiment import Node as NodeSettings
from orchestrator.model.facts import Facts, FileFact, Tree
from orchestrator.model.plan import PatchSet
from orchestrator.patchset import (
    Carried,
    Fit,
    Patch,
    carried_patches,
    check_fit,
    decode_source,
    needed_files,
)
from orchestrator.plan import NoArmServed
from orchestrator.remote.node import Node
from orchestrator.runner.arguments import SourceTexts, flags_in
from orchestrator.runner.fitting import tree_origin
from orchestrator.runner.leftovers import changed_by_runs, tree_words
from orchestrator.runner.options import public_env
from orchestrator.runner.prepare import prepare
from orchestrator.workers import parse_version

_FACTS_S = 90.0  # an interpreter may load the package from a slow disk
State = Literal["ok", "note", "busy", "bad"]
ORIGINAL = PatchSet("original", (), (), ())
ADAPTIVE_FLAG = "--speculative-adaptive-config"
ZERO_STEPS = (0, 5, 14)  # first release whose adaptive speculation may rest at zero steps

# Where interpreters that serve are usually found. Only ever looked at, never chosen.
USUAL_PYTHONS = (
    "python3",
    "~/venv/bin/python3",
    "~/.venv/bin/python3",
    "~/sglang/.venv/bin/python3",
    "/opt/venv/bin/python3",
    "/opt/conda/bin/python3",
    "~/miniconda3/bin/python3",
)


@dataclass(frozen=True)
class Finding:
    """`bad` and `busy` are what stands in a run's way; `note` is worth knowing."""

    state: State
    topic: str
    text: str


@dataclass(frozen=True)
class Place:
    """What serves there: interpreter, folder, environment, work folder, port, package."""

    python: str
    cwd: str = "~"
    env: Mapping[str, str] | None = None
    workdir: str = NodeSettings.workdir
    port: int = 30000
    package: str = "sglang"

    @classmethod
    def of(cls, experiment: Experiment) -> Place:
        node, server = experiment.node, experiment.server
        return cls(node.python, node.cwd, public_env(server.env), node.workdir, server.port, server.package)


@dataclass(frozen=True)
class Checkup:
    facts: Facts
    findings: tuple[Finding, ...]
    fits: Mapping[str, Fit]  # by patch; empty without a tree

    @property
    def exit_code(self) -> int:
        states = {finding.state for finding in self.findings}
        return DoesNotFit.exit_code if "bad" in states else NodeBusy.exit_code if "busy" in states else 0


def facts_at(
    node: Node,
    place: Place,
    patches: Sequence[Patch],
    timeout_s: float = 60.0,
    *,
    whole_package: bool = False,
) -> Facts:
    return node.facts(
        python=place.python,
        cwd=place.cwd,
        env=place.env or {},
        package=place.package,
        files=needed_files(patches),
        port=place.port,
        workdir=place.workdir,
        whole_package=whole_package,
        timeout_s=timeout_s,
    )


def find_trees(
    node: Node, cwd: str = "~", package: str = "sglang", pythons: Sequence[str] = USUAL_PYTHONS
) -> dict[str, Facts]:
    """Usual interpreters, and those of processes on the GPUs, that can load the package; looked at side by side."""
    first = facts_at(node, Place(pythons[0], cwd, package=package), ())
    serving = [process.command.split()[0] for process in first.holders if "/python" in process.command]
    names = [name for name in dict.fromkeys([*serving, *pythons[1:]]) if name.startswith(("/", "~"))]
    asked = {
        name: node.submit_facts(
            {
                "python": name,
                "cwd": cwd,
                "env": {},
                "package": package,
                "files": [],
                "port": 30000,
                "workdir": NodeSettings.workdir,
                "gpus": "all",
            }
        )
        for name in names
    }
    found = {pythons[0]: first}
    found |= {name: node.decoded(Facts, future, "facts", _FACTS_S) for name, future in asked.items()}
    return {name: facts for name, facts in found.items() if facts.tree is not None}


def examine(node: Node, place: Place, carried: Carried | None = None) -> Checkup:
    """The node as one interpreter there would serve. `carried`: the patches to judge; None: those of dynspec."""
    carried = carried or carried_patches()
    patches = carried.patches
    facts = facts_at(node, place, patches, whole_package=True)
    changed = changed_by_runs(facts)
    original = [patch for patch in patches if not changed.keys() & set(patch.paths)]
    judged = _judged(node, facts.tree, original) if facts.tree is not None else {}
    fits = {name: fit for name, fit in judged.items() if isinstance(fit, Fit)}
    broken = {name: fault for name, fault in judged.items() if isinstance(fault, DynspecError)}
    findings = (
        *_machine(facts, place),
        *_gpus(facts),
        *_tree(facts, place),
        *(_fit_finding(name, fit) for name, fit in fits.items()),
        *(_unjudged(patch, changed) for patch in patches if patch not in original),
        *(_broken(name, fault) for name, fault in {**broken, **carried.broken}.items()),
        *(_adaptive(node, facts.tree) if facts.tree is not None else ()),
        *_holders(facts),
    )
    return Checkup(facts, findings, fits)


def examine_arms(node: Node, experiment: Experiment) -> tuple[Finding, ...]:
    """Each arm planned by itself: fit for this node, or every reason why not."""
    return tuple(_arm(node, experiment, arm.name) for arm in experiment.arms)


def _arm(node: Node, experiment: Experiment, name: str) -> Finding:
    try:
        plan = prepare(node, experiment, [name], yes=True).plan
    except NodeDirty as error:
        return Finding("note", f"arm {name}", f"not judged: {error.message}")
    except NodeBusy as error:
        return Finding("busy", f"arm {name}", _reasons(error, name))
    except NoArmServed as error:  # of a preset: a plan goes without it
        return Finding("note", f"arm {name}", f"left out, since {error.unsupported[name]}")
    except DynspecError as error:
        return Finding("bad", f"arm {name}", _reasons(error, name))
    worker = plan.worker_paths[name]
    return Finding("ok", f"arm {name}", f"can run here; worker {worker.worker}: {worker.why}")


def _reasons(error: DynspecError, name: str) -> str:
    reasons = (error.message, *error.details)
    return "; ".join(reason.removeprefix(f"arm {name}: ") for reason in reasons)


# -- findings


def _machine(facts: Facts, place: Place) -> Iterator[Finding]:
    yield Finding(
        "ok",
        "connect",
        f"{facts.user}@{facts.host}, Linux {facts.kernel}, {facts.cpu_count} CPUs, "
        f"{facts.memory_mib // 1024} GiB memory; the agent runs on Python {facts.agent_python}",
    )
    yield Finding("ok", "disk", f"{facts.disk_free_mib // 1024} GiB free at {place.workdir}")
    for problem in facts.problems:
        yield Finding("bad", "disk" if "writable" in problem or "read-only" in problem else "node", problem)


def _gpus(facts: Facts) -> Iterator[Finding]:
    if facts.gpu_problem is not None:
        yield Finding("bad", "GPUs", f"they cannot be read: {facts.gpu_problem}")
        return
    kinds: dict[str, int] = {}
    for gpu in facts.gpus:
        size = f", {gpu.memory_total_mib // 1024} GiB" if gpu.memory_total_mib else ""
        kind = f"{gpu.name}{size}, driver {gpu.driver or '?'}"
        kinds[kind] = kinds.get(kind, 0) + 1
    words = "; ".join(f"{count} x {kind}" for kind, count in kinds.items())
    yield Finding("ok" if kinds else "note", "GPUs", words or "none that can be seen")


def _tree(facts: Facts, place: Place) -> Iterator[Finding]:
    tree = facts.tree
    if tree is None:
        yield Finding("bad", place.package, f"{place.python} in {place.cwd}: {facts.tree_problem}")
        return
    kind = tree_origin(tree, place.cwd, facts.home)
    python = expand_home(place.python, facts.home)
    yield Finding("ok", tree.package, f"{tree.version or '(no version)'} at {tree.path}, {kind}")
    yield Finding("ok", "python", f"{python} ({tree.python_version}), serving from {place.cwd}")
    if tree.pristine is not None:
        clean = tree.pristine.problem is None and not tree.pristine.changed_count
        for words in tree_words(tree.pristine, facts):
            yield Finding("ok" if clean else "note", "files", words)
        if tree.pristine.diff:
            yield Finding("note", "difference", _first_lines(tree.pristine.diff))
    fixed = [fact.path for fact in tree.files if fact.exists and not fact.writable]
    if fixed:
        more = f" and {len(fixed) - 1} more" if len(fixed) > 1 else ""
        yield Finding("bad", "files", f"{fixed[0]}{more} cannot be replaced by {facts.user}")


def _first_lines(diff: str, most: int = 30) -> str:
    lines = diff.splitlines()
    rest = [f"({len(lines) - most} more lines; all with --json)"] if len(lines) > most else []
    return "\n".join(["", *lines[:most], *rest])


def _judged(node: Node, tree: Tree, patches: Sequence[Patch]) -> dict[str, Fit | DynspecError]:
    """By patch: how it fits, or the mistake that its patcher made with this tree."""
    facts: dict[str, FileFact] = {fact.path: fact for fact in tree.files}
    data = node.contents(tree.files)
    sources = {
        path: decode_source(path, data[fact.absolute]) if fact.exists else None
        for path, fact in facts.items()
    }
    hashes = {path: fact.sha256 for path, fact in facts.items()}
    found: dict[str, Fit | DynspecError] = {}
    for patch in patches:
        try:
            found[patch.name] = check_fit(patch, tree.version, hashes, sources)
        except DynspecError as fault:
            found[patch.name] = fault
    return found


def _fit_finding(name: str, fit: Fit) -> Finding:
    states: Mapping[str, State] = {"fits": "ok", "fits_unlisted": "note", "native": "ok"}
    words = fit.state.words
    return Finding(states.get(fit.state, "note"), f"patch {name}", f"{words}: {fit.reason}")


def _broken(name: str, fault: DynspecError) -> Finding:
    return Finding("note", f"patch {name}", f"broken: {'; '.join((fault.message, *fault.details))}")


def _unjudged(patch: Patch, changed: Mapping[str, str]) -> Finding:
    run_id = next(changed[path] for path in patch.paths if path in changed)
    return Finding("note", f"patch {patch.name}", f"not judged: run {run_id} has changed files that it edits")


def _adaptive(node: Node, tree: Tree) -> Iterator[Finding]:
    try:
        flags = flags_in(SourceTexts(node, tree), ORIGINAL)
    except DoesNotFit as error:
        yield Finding("note", "adaptive", f"unknown: {error.message}")
        return
    release = parse_version(tree.version)
    if ADAPTIVE_FLAG not in flags:
        text = "this release has no adaptive speculation; the threshold needs the dynamic_disable patch"
    elif release is None or release < ZERO_STEPS:
        text = "native, but never down to zero draft steps: the threshold needs the dynamic_disable patch"
    else:
        text = "native, down to zero draft steps (topk 1): the threshold needs no patch"
    yield Finding("ok", "adaptive", text)


def _holders(facts: Facts) -> Iterator[Finding]:
    lock = facts.lock
    if lock is not None:
        yield Finding(
            "busy", "lock", f"run {lock.run_id} of {lock.user} ({lock.controller}) since {lock.since_utc}"
        )
    for journal in facts.journals:
        if journal.state == "dead":
            text = f"run {journal.run_id} ended without giving the node back; the next run restores it first"
            yield Finding("note", "journal", f"{text}, or: dynspec restore NODE")
    for process in facts.holders:
        used = "memory unknown" if process.memory_mib is None else f"{process.memory_mib} MiB"
        text = f"pid {process.pid} of {process.user}, {used}: {process.command[:80]}"
        yield Finding("busy" if process.kind != "G" else "note", "GPU in use", text)
    if facts.port.in_use:
        owner = f"pid {facts.port.pid} of {facts.port.user}" if facts.port.pid else "a process not seen"
        yield Finding("busy", "port", f"{facts.port.port} is in use by {owner}")
    if lock is None and not facts.holders and not facts.port.in_use:
        yield Finding("ok", "free", f"no run, no process on the GPUs, port {facts.port.port} not in use")
