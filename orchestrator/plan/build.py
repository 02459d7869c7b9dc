"""The plan of a run: which arms, in which boots, with which points that are left to measure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from orchestrator.errors import DoesNotFit
from orchestrator.model.experiment import Arm, Experiment
from orchestrator.model.facts import Facts
from orchestrator.model.plan import BootPlan, PatchSet, Plan
from orchestrator.plan.arms import FittedArms, NoArmServed
from orchestrator.plan.fit import Context, check_fit
from orchestrator.plan.order import boot_order
from orchestrator.plan.sharing import Block, arm_blocks, point_blocks, share_boots
from orchestrator.plan.steps import Boot, steps
from orchestrator.workers import worker_path

ORIGINAL = PatchSet("original", (), (), ())
_FINISHED = "every boot and point is finished: only the report is made"


@dataclass(frozen=True)
class Done:
    """What an earlier part of the run finished: (arm, boot, point index). A boot is done when all its points are."""

    points: frozenset[tuple[str, int, int]] = field(default_factory=frozenset)


def build_plan(
    experiment: Experiment,
    facts: Facts,
    patch_sets: tuple[PatchSet, ...],
    *,
    arms: Collection[str] = (),
    patch_workers: Mapping[str, tuple[str, ...]] | None = None,
    done: Done | None = None,
    may_wait: bool = False,
    own_run: str | None = None,
    allow_kill: bool = False,
    boot_minutes: Mapping[str, float] | None = None,
    fitted: FittedArms | None = None,
    blocks: int = 0,
) -> Plan:
    """Every step with its undo, or NodeBusy / DoesNotFit with every reason why not.

    `arms`: names to run (empty: all). `patch_workers`: per patch the EAGLE workers it touches. `done`: what
    --resume keeps. `own_run`: this run's id once it holds the lock. `allow_kill`: consent to `free: all`.
    `boot_minutes`: minutes that one boot of each arm took before, for the estimate of GPU time. `fitted`: the arms as
    this tree serves them (None: as written). `blocks`: the repetitions that each boot of shared arms holds (0: boots
    are repeated instead).
    """
    fitted = fitted or FittedArms(experiment.arms)
    chosen = tuple(arm for arm in fitted.arms if not arms or arm.name in arms)
    groups = share_boots(chosen) if experiment.sweep.share_boot else tuple((arm,) for arm in chosen)
    chosen = tuple(arm for group in groups for arm in group)
    if not chosen:
        raise NoArmServed(fitted.unsupported)
    if blocks and any(len(group) == 1 for group in groups):
        raise DoesNotFit(
            "repetitions inside one boot need the run-time switch of the dynamic_disable patch, and "
            f"SGLang {facts.tree.version if facts.tree else ''} does without that patch",
            help="run a baseline and a static arm over several boots: the report recommends the threshold",
        )
    sets = {arm.name: _set_of(arm, patch_sets) for arm in chosen}
    version = facts.tree.version if facts.tree is not None else None
    context = Context(
        experiment,
        facts,
        chosen,
        sets,
        {arm.name: worker_path(version, arm) for arm in chosen},
        patch_workers or {},
        may_wait,
        own_run,
        allow_kill,
        groups,
        fitted,
    )
    boots = _boots(context, (done or Done()).points, blocks)
    minutes, why = _gpu_minutes(context, boots, boot_minutes)
    return Plan(
        steps=tuple(steps(context, boots)),
        boots=tuple(BootPlan(boot.arm.name, boot.number, boot.patch_set.name, boot.shares) for boot in boots),
        patch_sets=tuple({item.name: item for item in sets.values()}.values()),
        worker_paths=dict(context.paths),
        warnings=check_fit(context) if boots else (_FINISHED,),
        gpu_minutes=minutes,
        gpu_minutes_why=why,
        arms=chosen,
        patch_mode=experiment.node.patch_mode,
        modes=dict(fitted.modes),
        unsupported=dict(fitted.unsupported),
    )


def _boots(context: Context, done: Collection[tuple[str, int, int]], blocks: int) -> list[Boot]:
    """The boots that still have points to measure, in the order in which they run."""
    sweep = context.experiment.sweep
    groups = {group[0].name: group for group in context.groups}
    boots = []
    for arm, number in boot_order(
        tuple(group[0] for group in context.groups), 1 if blocks else sweep.repeats
    ):
        group = groups[arm.name]
        if blocks:
            planned = point_blocks(group, sweep, blocks, sweep.prompts.seed)
        else:
            planned = arm_blocks(group, sweep, number, sweep.prompts.seed)
        boots.append(Boot(context, arm, number, _left(planned, done), len(group) > 1))
    return [boot for boot in boots if boot.blocks]


def _set_of(arm: Arm, patch_sets: tuple[PatchSet, ...]) -> PatchSet:
    for item in patch_sets:
        if item.patches == arm.patches:
            return item
    if not arm.patches:
        return ORIGINAL
    raise DoesNotFit(f"arm {arm.name}: no edits were computed for {'+'.join(arm.patches)}")


def _left(blocks: Iterable[Block], done: Collection[tuple[str, int, int]]) -> tuple[Block, ...]:
    """What is still to be measured of each block."""
    found = []
    for arm, points in blocks:
        left = tuple(point for point in points if (point.arm, point.boot, point.index) not in done)
        if left:
            found.append((arm, left))
    return tuple(found)


def _gpu_minutes(
    context: Context, boots: list[Boot], boot_minutes: Mapping[str, float] | None
) -> tuple[float | None, str]:
    if not boots:
        return 0.0, "nothing is left to measure"
    unknown = sorted({boot.arm.name for boot in boots} - set(boot_minutes or {}))
    if boot_minutes is None or unknown:
        return None, f"no boot of {', '.join(unknown)} has been timed on this node"
    count = len(context.gpus) if context.gpus is not None else len(context.facts.gpus)
    total = sum(boot_minutes[boot.arm.name] for boot in boots) * count
    return total, f"{len(boots)} boots on {count} GPUs, as long as each took before"
