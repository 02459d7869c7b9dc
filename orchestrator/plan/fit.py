"""Whether a run may start on this node. Everything that stands against it is told at once; nothing was touched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from orchestrator.command import node_command
from orchestrator.errors import DoesNotFit, NodeBusy
from orchestrator.model.experiment import Arm, Experiment, Node
from orchestrator.model.facts import Facts, JournalFact, LockFact
from orchestrator.model.plan import Edit, PatchSet, WorkerPath
from orchestrator.model.speculation import BASE_GPU_FLAG, first_gpu, gpus_needed
from orchestrator.plan.arms import FittedArms
from orchestrator.plan.gpus import count_of, describe, gpu_name, holders, may_stop, occupied_without_holder
from orchestrator.plan.sharing import Group
from orchestrator.workers import worker_files

MIN_DISK_MIB = 512  # logs and records of a run, beside the backups


@dataclass(frozen=True)
class Context:
    """What the checks look at. `own_run`: the run that already holds the lock, when facts are read again."""

    experiment: Experiment
    facts: Facts
    arms: tuple[Arm, ...]
    sets: Mapping[str, PatchSet]  # by arm
    paths: Mapping[str, WorkerPath]  # by arm
    patch_workers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by patch: v1, v2
    may_wait: bool = False
    own_run: str | None = None
    allow_kill: bool = False
    groups: tuple[Group, ...] = ()  # of the arms: those that share a boot
    fitted: FittedArms = field(default_factory=lambda: FittedArms(()))

    @property
    def gpus(self) -> tuple[int, ...] | None:
        gpus = self.experiment.node.gpus
        return None if gpus == "all" else gpus

    @property
    def overlay(self) -> bool:
        """The installed tree is read only: it need not be ours to write, and others may serve from it."""
        return self.experiment.node.patch_mode == "overlay"

    @property
    def leftovers(self) -> tuple[JournalFact, ...]:
        """Unfinished journals of dead runs. The guardian cleans up after them before anything else."""
        return tuple(
            item for item in self.facts.journals if item.state == "dead" and item.run_id != self.own_run
        )

    @property
    def waits(self) -> bool:
        """Another run holds the node and this one waits: what it changed and started is no obstacle by then."""
        lock = self.facts.lock
        return self.may_wait and lock is not None and lock.run_id != self.own_run

    @property
    def policy(self) -> str:
        """`all` without consent frees nothing but what dynspec started."""
        policy = self.experiment.node.free
        return "own" if policy == "all" and not self.allow_kill else policy


def held(lock: LockFact, choice: Node) -> NodeBusy:
    """The refusal where a run holds the node, with the command that shows it."""
    doing = f"{lock.state}, {lock.phase}" if lock.phase else lock.state
    return NodeBusy(
        f"{choice.host} is in use by run {lock.run_id} of {lock.user} ({lock.controller}), since {lock.since_utc}, "
        f"{doing}",
        help=f"wait with --lock-wait 10m, or see: {node_command('status', choice)}",
    )


def refuse_locked(facts: Facts, choice: Node, *, own_run: str | None = None, may_wait: bool = False) -> None:
    """Raises NodeBusy when a live run holds the node. To be asked before files are compared: that run changes them."""
    lock = facts.lock
    if lock is not None and lock.run_id != own_run and lock.state != "orphaned" and not may_wait:
        raise held(lock, choice)
    live = [item for item in facts.journals if item.state == "live" and item.run_id != own_run]
    if live and lock is None and not may_wait:
        raise NodeBusy(
            f"{choice.host}: run {live[0].run_id} is still going on there",
            help=f"see: {node_command('status', choice)}",
        )


def check_fit(context: Context) -> tuple[str, ...]:
    """Raises NodeBusy or DoesNotFit with every reason; returns what is worth knowing though it does not stop us."""
    facts = context.facts
    refuse_locked(facts, context.experiment.node, own_run=context.own_run, may_wait=context.may_wait)
    misfits = [
        *_tree_misfits(context),
        *_file_misfits(context),
        *_arm_misfits(context),
        *_gpu_misfits(context),
    ]
    if facts.disk_free_mib < MIN_DISK_MIB + _backup_mib(context):
        misfits.append(
            f"{context.experiment.node.workdir} has {facts.disk_free_mib} MiB free, and a run needs "
            f"{MIN_DISK_MIB + _backup_mib(context)}; set node.workdir to a larger disk"
        )
    if misfits:
        raise DoesNotFit(
            _headline(misfits, f"{facts.host} does not fit this experiment"), details=_rest(misfits)
        )
    busy = list(_busy(context))
    if busy:
        raise NodeBusy(
            _headline(busy, f"{facts.host} is busy"), details=_rest(busy), help=_busy_help(context)
        )
    return tuple(_notes(context))


def _headline(reasons: list[str], many: str) -> str:
    return reasons[0] if len(reasons) == 1 else f"{many}, for {len(reasons)} reasons"


def _rest(reasons: list[str]) -> tuple[str, ...]:
    return () if len(reasons) == 1 else tuple(reasons)


def _tree_misfits(context: Context) -> Iterator[str]:
    facts, node = context.facts, context.experiment.node
    if facts.tree is None:
        reason = facts.tree_problem or f"no package {context.experiment.server.package}"
        yield f"no serving tree for {node.python} in {node.cwd}: {reason}"


def edits_of(sets: Mapping[str, PatchSet]) -> tuple[Edit, ...]:
    """Every edit of every set, one per path and content."""
    return tuple(dict.fromkeys(edit for item in sets.values() for edit in item.edits))


def _file_misfits(context: Context) -> Iterator[str]:
    tree = context.facts.tree
    if tree is None or context.waits:
        return
    said: set[str] = set()
    for edit in edits_of(context.sets):
        fact = tree.file(edit.path)
        found = fact.sha256 if fact is not None else None
        if fact is None and edit.before_sha256 is not None:
            reason = f"{edit.path} was not looked at on the node"
        elif found != edit.before_sha256:
            reason = f"{edit.absolute} changed after it was read ({_short(found)}, was {_short(edit.before_sha256)})"
        elif fact is not None and not fact.writable and not context.overlay:
            reason = f"{edit.absolute} cannot be replaced by {context.facts.user} with mode and owner kept"
        else:
            continue
        if edit.path not in said:
            said.add(edit.path)
            yield reason


def _short(sha256: str | None) -> str:
    return "absent" if sha256 is None else sha256[:12]


def _backup_mib(context: Context) -> int:
    tree = context.facts.tree
    paths = {edit.path for edit in edits_of(context.sets)}
    sizes = [fact.size for fact in tree.files if fact.path in paths] if tree is not None else []
    return -(-2 * sum(sizes) // 2**20)


def _arm_misfits(context: Context) -> Iterator[str]:
    for arm in context.arms:
        path = context.paths[arm.name]
        if path.worker == "refused":
            yield f"arm {arm.name}: {path.why}"
        if path.worker not in ("v1", "v2"):
            continue
        for patch in arm.patches:
            workers = context.patch_workers.get(patch, ())
            if workers and path.worker not in workers:
                yield f"arm {arm.name}: {_wrong_worker(patch, ' and '.join(workers), path)}"
        touched = worker_files(edit.path for edit in context.sets[arm.name].edits)
        declared = any(context.patch_workers.get(patch) for patch in arm.patches)
        if touched and not declared and not set(touched) & set(path.files):
            yield f"arm {arm.name}: {_wrong_worker('+'.join(arm.patches), ', '.join(touched), path)}"


def _wrong_worker(patch: str, touched: str, path: WorkerPath) -> str:
    return f"{patch} touches {touched}, and this server uses {path.worker} ({path.files[0]}): {path.why}"


def _gpu_misfits(context: Context) -> Iterator[str]:
    facts, gpus = context.facts, context.gpus
    if facts.gpu_problem is not None:
        yield f"the GPUs cannot be read, so they may be in use: {facts.gpu_problem}"
        return
    known = [gpu.index for gpu in facts.gpus]
    missing = [index for index in gpus or () if index not in known]
    if missing:
        have = ", ".join(map(str, known)) or "none"
        yield f"node.gpus names GPU {', '.join(map(str, missing))}, and {facts.host} has {have}"
    count = len(facts.gpus) if gpus is None else len(gpus)
    for arm in context.arms:
        if facts.gpus and first_gpu(arm) + gpus_needed(arm) > count:
            begin = f" from {BASE_GPU_FLAG} {first_gpu(arm)} on" if first_gpu(arm) else ""
            need = f"{gpus_needed(arm)} GPU{'s' * (gpus_needed(arm) > 1)} (tp x pp x replicas){begin}"
            yield f"arm {arm.name} needs {need}, and {count} may be used"
    for gpu in facts.gpus:
        if gpu.memory_used_mib is None and (gpus is None or gpu.index in gpus):
            yield f"GPU {gpu.index} does not say how much memory is in use, so it cannot be called free"


def _busy(context: Context) -> Iterator[str]:
    """Foreign holders, ports and serving processes. What a dead run left is stopped first and does not count."""
    facts, node = context.facts, context.experiment.node
    if context.waits:
        return
    use = holders(facts, context.gpus, context.policy, node.free_list)
    for process in use.foreign:
        if node.free != "wait" and not _left_over(context, process.uid):
            yield f"GPU {gpu_name(facts, process.gpu)} is held by {describe(process)}"
    for gpu in occupied_without_holder(facts, context.gpus):
        if node.free != "wait" and not context.leftovers:
            yield f"GPU {gpu.index} has {gpu.memory_used_mib} MiB in use by no process that can be seen"
    stopped = {process.pid for process in use.stop}
    for process in () if context.overlay else facts.tree_processes:
        if not may_stop(process, context.policy, node.free_list) and not _left_over(context, process.uid):
            yield f"the tree to patch is being served from by {describe(process)}"
    port = facts.port
    if port.in_use and port.pid not in stopped and not any(item.server_pid for item in context.leftovers):
        owner = (
            f"pid {port.pid} of {port.user}: {port.command}" if port.pid is not None else "a process not seen"
        )
        yield f"port {port.port} is in use by {owner}; set server.port to another"


def _left_over(context: Context, uid: int) -> bool:
    return uid == context.facts.uid and any(item.server_pid is not None for item in context.leftovers)


def _busy_help(context: Context) -> str:
    node = context.experiment.node
    if node.free == "all" and not context.allow_kill:
        return "free: all may stop these with --yes"
    if node.free == "own":
        return "node.free: wait waits for them; listed with free_list, or all with --yes, stops them"
    return f"see: {node_command('status', node)}"


def _notes(context: Context) -> Iterator[str]:
    facts, node = context.facts, context.experiment.node
    for item in context.leftovers:
        changed = f", {len(item.files_changed)} changed files" if item.files_changed else ""
        yield f"run {item.run_id} ended without giving the node back{changed}: it is restored first"
    if facts.lock is not None and facts.lock.run_id != context.own_run:
        state = facts.lock.state
        yield f"run {facts.lock.run_id} of {facts.lock.user} holds the node ({state}): " + (
            "it is taken over" if state == "orphaned" else "the run waits for it"
        )
    use = holders(facts, context.gpus, context.policy, node.free_list)
    if node.free == "wait" and use.foreign:
        yield f"the GPUs are held by others ({count_of(use.foreign)}): the run waits for them"
    if node.free == "all" and use.stop:
        yield f"stopping what others run there ({count_of(use.stop)}) takes --yes"
    for process in use.graphics:
        yield f"a display keeps memory of a GPU and is left alone: {describe(process)}"
    yield from _file_notes(context)
    yield from context.fitted.notes
    yield from _sharing_notes(context)
    for name, path in context.paths.items():
        if path.worker == "unknown":
            yield f"arm {name}: which worker it uses is not known: {path.why}"
    if not facts.gpus:
        yield f"{facts.host} has no GPU that can be seen"
    yield from facts.problems


def _sharing_notes(context: Context) -> Iterator[str]:
    if not context.experiment.sweep.share_boot:
        return
    shared = [group for group in context.groups if len(group) > 1]
    for group in shared:
        names = ", ".join(arm.name for arm in group)
        yield f"{names} share boots: one server, whose threshold is switched between them (a within-boot contrast)"
    if not shared:
        yield "share_boot has no effect: no two arms with the dynamic_disable patch differ only in their threshold"


def _file_notes(context: Context) -> Iterator[str]:
    tree = context.facts.tree
    if tree is not None and tree.pristine is not None and tree.pristine.changed_count:
        yield f"{tree.path}: {tree.pristine.words()}"
    if tree is None or context.overlay:
        return
    for path in dict.fromkeys(edit.path for edit in edits_of(context.sets)):
        fact = tree.file(path)
        if fact is not None and fact.symlink is not None:
            yield f"{path} is a link; the file it points to is replaced: {fact.absolute}"
        if fact is not None and fact.nlink > 1:
            yield f"{path} has {fact.nlink} hard links; the others keep their bytes"
    if tree.editable and any(item.edits for item in context.sets.values()):
        yield f"{tree.path} is an editable checkout: its working copy is patched during the run"
