"""The steps of a run, in the contract's order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from orchestrator.command import expand_home, launch_argv, server_env
from orchestrator.errors import DoesNotFit
from orchestrator.model.experiment import Arm, Experiment, Sweep
from orchestrator.model.facts import Facts
from orchestrator.model.plan import (
    ApplyEdits,
    BootPlan,
    Canary,
    Collect,
    FreeGpus,
    Guard,
    Launch,
    MakeReport,
    PatchSet,
    Plan,
    RestoreFiles,
    Smoke,
    StartServer,
    Step,
    StopServer,
    SwitchThreshold,
    Unlock,
    WaitReady,
)
from orchestrator.model.speculation import threshold
from orchestrator.path_lists import few
from orchestrator.plan.arms import FittedArms
from orchestrator.plan.fit import Context, check_fit
from orchestrator.plan.gpus import may_stop
from orchestrator.plan.order import boot_order, canary_concurrency
from orchestrator.plan.sharing import Block, arm_blocks, point_blocks, share_boots
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
        reasons = tuple(f"arm {name}: {why}" for name, why in fitted.unsupported.items())
        if len(reasons) == 1:
            raise DoesNotFit(reasons[0])
        raise DoesNotFit("this tree can serve none of the arms", details=reasons)
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
        steps=tuple(_steps(context, boots)),
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


def _boots(context: Context, done: Collection[tuple[str, int, int]], blocks: int) -> list[_Boot]:
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
        boots.append(_Boot(context, arm, number, _left(planned, done), len(group) > 1))
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


@dataclass(frozen=True)
class _Boot:
    """A server that is started as `arm`. `shared`: its threshold is switched before each block."""

    context: Context
    arm: Arm
    number: int
    blocks: tuple[Block, ...]
    shared: bool

    @property
    def patch_set(self) -> PatchSet:
        return self.context.sets[self.arm.name]

    @property
    def shares(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(arm.name for arm, _ in self.blocks)) if self.shared else ()


def _steps(context: Context, boots: list[_Boot]) -> Iterator[Step]:
    experiment = context.experiment
    formats = experiment.report.formats
    report = Step("report", MakeReport(formats), None, f"make the report: {', '.join(formats)}")
    if not boots:
        yield report
        return
    yield _guard(experiment)
    used = {boot.patch_set.name: boot.patch_set for boot in boots}
    for item in used.values():
        names = ", ".join(name for name, other in context.sets.items() if other.name == item.name)
        text = (
            f"smoke {item.name} in a copy that no server sees: compiles, imports, arguments of {names} parse"
        )
        yield Step("smoke", Smoke(item), None, text)
    patched = any(item.edits for item in used.values())
    for position, boot in enumerate(boots):
        yield from _boot_steps(boot, patched, free_first=position == 0 and _serves_from_tree(context))
    if patched:
        yield _restore(context)
    yield Step("unlock", Unlock(), None, "close the journal and unlock the node")
    yield Step("collect", Collect(), None, "fetch logs and records")
    yield report


def _restore(context: Context) -> Step:
    text = "put every changed file back and verify it by hash"
    if context.overlay:
        text = "remove the overlay; the installed files were only read"
    return Step("restore", RestoreFiles(context.overlay), None, text)


def _guard(experiment: Experiment) -> Step:
    node, wait_s = experiment.node, experiment.limits.lock_wait_s
    waiting = f", waiting for it up to {wait_s:.0f} s" if wait_s else ""
    text = (
        f"lock the node{waiting}; its guardian gives it back after {node.lease_s:.0f} s without a controller"
    )
    return Step("guardian", Guard(node.workdir, node.lease_s, wait_s), Unlock(), text)


def _serves_from_tree(context: Context) -> bool:
    """Processes that serve from the tree must be gone before it is patched in place."""
    rules = context.experiment.node.free_list
    return not context.overlay and any(
        may_stop(process, context.policy, rules) for process in context.facts.tree_processes
    )


def _boot_steps(boot: _Boot, patched: bool, *, free_first: bool) -> Iterator[Step]:
    swap = [_swap(boot.patch_set, boot.context.overlay)] if patched else []
    free = [_free(boot.context)]
    yield from (*free, *swap) if free_first else (*swap, *free)
    yield from _launch_steps(boot)
    for arm, points in boot.blocks:
        if boot.shared:
            yield _switch(arm, points[0].boot)
        for point in points:
            yield Step("points", point, None, _point_text(boot.context.experiment.sweep, point.concurrency))
    text = f"stop {boot.arm.name}; its processes, port and GPU memory are proven gone"
    yield Step("stop", StopServer(), None, text)


def _switch(arm: Arm, boot: int) -> Step:
    wanted = threshold(arm)
    assert wanted is not None, "arms without a threshold share no boot"
    text = f"switch to {arm.name}: threshold {wanted}, when nothing runs, read back from every rank"
    return Step("switch", SwitchThreshold(arm.name, boot, wanted), None, text)


def _swap(item: PatchSet, overlay: bool) -> Step:
    paths = few([edit.path for edit in item.edits])
    if overlay:
        text = f"put {item.name} into the overlay, verified by hash: {paths}"
        original = "original bytes in every file of the overlay, verified by hash"
    else:
        text = f"put {item.name} in place, verified by hash: {paths}"
        original = "original bytes in every file, verified by hash"
    return Step("swap", ApplyEdits(item, overlay), RestoreFiles(overlay), text if paths else original)


def _free(context: Context) -> Step:
    node = context.experiment.node
    words = {
        "own": "check that the GPUs are free; only what dynspec started may be stopped",
        "wait": f"wait until the GPUs are free, at most {context.experiment.limits.free_s:.0f} s",
        "listed": "stop holders of the GPUs that match free_list",
        "all": "stop every holder of the GPUs",
    }
    effect = FreeGpus(context.policy, node.free_list, context.gpus)
    return Step("free", effect, None, words[context.policy])


def _launch_steps(boot: _Boot) -> Iterator[Step]:
    experiment, facts = boot.context.experiment, boot.context.facts
    server, node = experiment.server, experiment.node
    python = expand_home(node.python, facts.home)
    launch = Launch(
        launch_argv(python, server.module, boot.arm.args, server.port),
        server_env(boot.arm, boot.context.gpus),
        expand_home(node.cwd, facts.home),
        server.port,
    )
    file = boot.context.fitted.files.get(boot.arm.name)
    if file is not None:
        text = f"write {file.path} for {boot.arm.name}; it goes with the run's folder"
        yield Step("launch", file, None, text)
    name = _boot_name(boot)
    yield Step(
        "launch",
        StartServer(boot.arm.name, boot.number, launch),
        StopServer(),
        f"start {name}, on port {server.port}",
    )
    ready = f"/health, then one short generation; at most {server.ready.timeout_s:.0f} s"
    yield Step("ready", WaitReady(boot.arm.name), None, f"wait for {boot.arm.name}: {ready}")
    canary = canary_concurrency(boot.arm, experiment.sweep.concurrency)
    if canary:
        text = f"canary of {boot.arm.name} at concurrency {', '.join(map(str, canary))}"
        yield Step("canary", Canary(boot.arm.name, canary), None, text)


def _boot_name(boot: _Boot) -> str:
    name = f"{boot.arm.name}, boot {boot.number} of {boot.context.experiment.sweep.repeats}"
    return f"{name}, shared by {', '.join(boot.shares)}" if boot.shared else name


def _point_text(sweep: Sweep, concurrency: int) -> str:
    if sweep.load.kind == "open":
        return f"measure {sweep.load.arrival} arrivals at {sweep.load.rate_per_s:g}/s, at most {concurrency} in flight"
    if sweep.load.kind == "straddle":
        return f"measure steps across {sweep.load.around}, each side {sweep.load.period_s:g} s"
    requests = max(concurrency * sweep.requests_per_slot, sweep.min_requests)
    return f"measure concurrency {concurrency}: {requests} requests of {sweep.output_tokens} tokens"


def _gpu_minutes(
    context: Context, boots: list[_Boot], boot_minutes: Mapping[str, float] | None
) -> tuple[float | None, str]:
    if not boots:
        return 0.0, "nothing is left to measure"
    unknown = sorted({boot.arm.name for boot in boots} - set(boot_minutes or {}))
    if boot_minutes is None or unknown:
        return None, f"no boot of {', '.join(unknown)} has been timed on this node"
    count = len(context.gpus) if context.gpus is not None else len(context.facts.gpus)
    total = sum(boot_minutes[boot.arm.name] for boot in boots) * count
    return total, f"{len(boots)} boots on {count} GPUs, as long as each took before"
