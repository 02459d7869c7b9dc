"""The steps of a run, in the contract's order: what each does, what undoes it, and how it reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from orchestrator.command import expand_home, launch_argv, server_env
from orchestrator.model.experiment import Arm, Experiment, Sweep
from orchestrator.model.plan import (
    ApplyEdits,
    Canary,
    Collect,
    FreeGpus,
    Guard,
    Launch,
    MakeReport,
    PatchSet,
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
from orchestrator.plan.fit import Context
from orchestrator.plan.gpus import may_stop
from orchestrator.plan.order import canary_concurrency
from orchestrator.plan.sharing import Block


@dataclass(frozen=True)
class Boot:
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


def steps(context: Context, boots: Sequence[Boot]) -> Iterator[Step]:
    """Lock, smoke, each boot, restore, unlock, report; without boots the report alone."""
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


def _boot_steps(boot: Boot, patched: bool, *, free_first: bool) -> Iterator[Step]:
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


def _launch_steps(boot: Boot) -> Iterator[Step]:
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


def _boot_name(boot: Boot) -> str:
    name = f"{boot.arm.name}, boot {boot.number} of {boot.context.experiment.sweep.repeats}"
    return f"{name}, shared by {', '.join(boot.shares)}" if boot.shared else name


def _point_text(sweep: Sweep, concurrency: int) -> str:
    if sweep.load.kind == "open":
        return f"measure {sweep.load.arrival} arrivals at {sweep.load.rate_per_s:g}/s, at most {concurrency} in flight"
    if sweep.load.kind == "straddle":
        assert sweep.load.period_s is not None
        return f"measure steps across {sweep.load.around}, each side {sweep.load.period_s / 2:g} s"
    requests = max(concurrency * sweep.requests_per_slot, sweep.min_requests)
    return f"measure concurrency {concurrency}: {requests} requests of {sweep.output_tokens} tokens"
