"""Connect, read facts, build patch sets, plan: everything before the node is touched. Shared by plan, smoke and run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from orchestrator.agent.pack import build_zipapp as build_agent
from orchestrator.errors import DoesNotFit, PatchLoadError, RemoteError, UsageError
from orchestrator.load.pack import build_zipapp as build_loadgen
from orchestrator.model.experiment import Arm, Experiment
from orchestrator.model.experiment import Node as NodeChoice
from orchestrator.model.facts import Facts
from orchestrator.model.plan import PatchSet, Plan
from orchestrator.patchset import Patch, available_patches, decode_source, needed_files
from orchestrator.plan import Done, FittedArms, build_plan, refuse_locked
from orchestrator.remote.bootstrap import Blob
from orchestrator.remote.node import Node
from orchestrator.remote.refusals import before_acting
from orchestrator.remote.transport import ConnectSettings
from orchestrator.runner.arguments import check_arguments
from orchestrator.runner.fitting import Fitting, fit, served_as
from orchestrator.runner.leftovers import refuse_changed
from orchestrator.runner.model_paths import named_paths, require_paths
from orchestrator.runner.options import public_env
from orchestrator.runner.overlay import check_overlay


@dataclass(frozen=True)
class Prepared:
    facts: Facts
    plan: Plan
    experiment: Experiment  # with the arms as this tree serves them
    notes: tuple[str, ...] = ()  # what the check of arguments had to say


def connect(experiment: Experiment) -> Node:
    """The node with its agent running. Raises UsageError or ConnectionFailed."""
    node = experiment.node
    return connect_to(node.host, ConnectSettings.of(node, experiment.limits), node.python)


def connect_to(host: str, settings: ConnectSettings, python: str | None = None) -> Node:
    """The same for commands that have a host and no experiment."""
    blobs = (Blob.of("agent", build_agent()), Blob.of("loadgen", build_loadgen()))
    return Node.connect(host, settings=settings, blobs=blobs, python=python)


def patches_of(
    experiment: Experiment, arms: Iterable[Arm], available: Iterable[Patch] | None = None
) -> dict[str, Patch]:
    """The patches that the arms name, by name, of those `available` (None: the carried ones)."""
    carried = {patch.name: patch for patch in (available_patches() if available is None else available)}
    wanted = {name for arm in arms for name in arm.patches}
    unknown = sorted(wanted - carried.keys())
    if unknown:
        raise PatchLoadError(
            f"no patch named {unknown[0]!r}",
            help=f"carried patches: {', '.join(sorted(carried))} (dynspec patch list)",
        )
    foreign = [name for name in wanted if carried[name].package != experiment.server.package]
    if foreign:
        raise UsageError(
            f"patch {foreign[0]!r} is for {carried[foreign[0]].package}, not {experiment.server.package}"
        )
    return {name: carried[name] for name in sorted(wanted)}


def chosen_arms(experiment: Experiment, names: Sequence[str]) -> tuple[Arm, ...]:
    """The arms to run: all, or those named with --arm."""
    known = [arm.name for arm in experiment.arms]
    for name in names:
        if name not in known:
            raise UsageError(f"no arm named {name!r}", help=f"arms of {experiment.name}: {', '.join(known)}")
    return tuple(arm for arm in experiment.arms if not names or arm.name in names)


def read_facts(node: Node, experiment: Experiment, patches: Iterable[Patch]) -> Facts:
    return node.facts(
        python=experiment.node.python,
        cwd=experiment.node.cwd,
        env=public_env(experiment.server.env),
        package=experiment.server.package,
        files=needed_files(tuple(patches)),
        port=experiment.server.port,
        workdir=experiment.node.workdir,
        gpus=experiment.node.gpus,
        paths=named_paths(experiment),
        timeout_s=experiment.limits.facts_s,
    )


def fitting(
    node: Node,
    experiment: Experiment,
    arms: Iterable[Arm],
    patches: dict[str, Patch],
    carried: Iterable[Patch],
    facts: Facts,
    run_id: str | None = None,
) -> Fitting:
    """The arms as this tree serves them, with one PatchSet per distinct combination, the original tree first."""
    if facts.tree is None:
        raise DoesNotFit(
            facts.tree_problem or "no serving tree found",
            help="check node.python, node.cwd and server.env; dynspec doctor shows what the interpreter sees",
        )
    sources = _sources(node, experiment.node, facts) if patches else {}
    known = {patch.name: patch for patch in carried if patch.package == experiment.server.package}
    return fit(experiment, arms, known, facts.tree, facts, sources, run_id)


def _sources(node: Node, choice: NodeChoice, facts: Facts) -> dict[str, str | None]:
    """Original text of every file that the patches name; None where the tree has no such file."""
    assert facts.tree is not None
    try:
        found = node.contents(facts.tree.files)
    except RemoteError as error:
        raise before_acting(error, choice) from error
    return {
        fact.path: decode_source(fact.path, found[fact.absolute]) if fact.exists else None
        for fact in facts.tree.files
    }


@dataclass(frozen=True)
class Inspected:
    """The node as read, and the edits that the arms' patches come to on it. `arms`: as this tree serves them."""

    facts: Facts
    arms: tuple[Arm, ...]
    patches: dict[str, Patch]
    sets: tuple[PatchSet, ...]
    fitted: FittedArms
    experiment: Experiment  # with these arms


def inspect(
    node: Node,
    experiment: Experiment,
    arm_names: Sequence[str],
    available: Iterable[Patch] | None = None,
    run_id: str | None = None,
    *,
    may_wait: bool = False,
) -> Inspected:
    """Facts and patch sets. Raises DoesNotFit, NodeBusy for a live run: its tree fits nobody else, and NodeDirty where
    a dead one left files changed.
    """
    carried = tuple(available_patches() if available is None else available)
    arms = chosen_arms(experiment, arm_names)
    patches = patches_of(experiment, arms, carried)
    facts = read_facts(node, experiment, patches.values())
    refuse_locked(facts, experiment.node, own_run=run_id, may_wait=may_wait)
    refuse_changed(facts, experiment.node, run_id)
    found = fitting(node, experiment, arms, patches, carried, facts, run_id)
    served = found.arms.arms
    return Inspected(facts, served, patches, found.sets, found.arms, served_as(experiment, served))


def prepare(
    node: Node,
    experiment: Experiment,
    arm_names: Sequence[str],
    *,
    done: Done | None = None,
    may_wait: bool = False,
    own_run: str | None = None,
    yes: bool = False,
    available: Iterable[Patch] | None = None,
    seen: Prepared | None = None,
    blocks: int = 0,
) -> Prepared:
    """Facts, patch sets, plan, arguments. Reads only; raises DoesNotFit or NodeBusy when the run can't start.

    `seen` is an earlier look at the same node: while the tree is unchanged, its arguments are not checked again.
    """
    found = inspect(
        node,
        experiment,
        arm_names,
        available,
        own_run,
        may_wait=may_wait,
    )
    plan = build_plan(
        experiment,
        found.facts,
        found.sets,
        arms=tuple(arm.name for arm in found.arms),
        patch_workers={name: patch.workers for name, patch in found.patches.items()},
        done=done,
        may_wait=may_wait,
        own_run=own_run,
        allow_kill=yes,
        fitted=found.fitted,
        blocks=blocks,
    )
    require_paths([experiment.arm(arm.name) for arm in plan.arms], found.facts)  # as written
    served = served_as(experiment, plan.arms)
    if seen is not None and seen.facts.tree == found.facts.tree:
        notes = seen.notes  # the same bytes under the same interpreter: the arguments were parsed there
    else:
        notes = check_arguments(node, served, found.facts, [arm.name for arm in plan.arms], found.sets)
        if plan.patched and plan.patch_mode == "overlay":
            check_overlay(node, served, found.facts, plan)
    return Prepared(found.facts, replace(plan, warnings=(*plan.warnings, *notes)), served, notes)
