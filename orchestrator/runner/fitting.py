"""The chosen arms as the tree that was read serves them, and the patch sets that this takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from orchestrator.command import expand_home
from orchestrator.errors import DoesNotFit
from orchestrator.model.experiment import Arm, Experiment
from orchestrator.model.facts import Facts, Tree
from orchestrator.model.plan import PatchSet
from orchestrator.patchset import Patch, build_patch_set
from orchestrator.plan import FittedArms, PatchRules, fit_arms, leave_out

UNKNOWN_RUN = "RUN_ID"  # in paths of a plan that no run has yet
Sources = Mapping[str, str | None]


@dataclass(frozen=True)
class Fitting:
    """`sets`: one per distinct combination of patches that the fitted arms need, the original tree first."""

    arms: FittedArms
    sets: tuple[PatchSet, ...]


def patch_rules(version: str | None, patches: Iterable[Patch]) -> PatchRules:
    """What the patches say of a release, in the words of their manifests."""
    native: dict[str, str] = {}
    refused: dict[str, str] = {}
    for patch in patches:
        for rules, found in ((patch.native, native), (patch.refused, refused)):
            for rule in rules:
                if rule.holds(version):
                    found[patch.name] = rule.text
    return PatchRules(native, refused)


def fit(
    experiment: Experiment,
    arms: Iterable[Arm],
    carried: Mapping[str, Patch],
    tree: Tree,
    facts: Facts,
    sources: Sources,
    run_id: str | None = None,
) -> Fitting:
    """Raises DoesNotFit for an arm that was written out and cannot be served; an arm of a preset is left out."""
    folder = f"{expand_home(experiment.node.workdir, facts.home)}/{run_id or UNKNOWN_RUN}/adaptive"
    found = fit_arms(arms, tree.version, patch_rules(tree.version, carried.values()), folder)
    sets: list[PatchSet] = []
    for names in dict.fromkeys([(), *(arm.patches for arm in found.arms)]):
        users = [arm for arm in found.arms if arm.patches == names]
        patches = tuple(carried[name] for name in names)
        try:
            sets.append(
                build_patch_set(patches, sources, tree, allow_unlisted=experiment.node.allow_unlisted)
            )
        except DoesNotFit as error:
            if not all(arm.only_by for arm in users):
                origin = tree_origin(tree, experiment.node.cwd, facts.home)
                error.details = (*error.details, f"the tree: {tree.path}, {origin}")
                raise
            for arm in users:
                found = leave_out(found, arm.name, error.message)
    return Fitting(found, tuple(sets))


def tree_origin(tree: Tree, cwd: str, home: str) -> str:
    """Why the interpreter loads this copy of the package, for people."""
    if tree.path == f"{expand_home(cwd, home).rstrip('/')}/{tree.package}":
        return f"from node.cwd ({cwd}), where a folder of that name comes before any installed package"
    return "an editable checkout" if tree.editable else "an installed package"


def served_as(experiment: Experiment, arms: tuple[Arm, ...]) -> Experiment:
    """The experiment with its arms as they are served."""
    return replace(experiment, arms=arms)
