"""`dynspec run`: executes a Plan step by step, then gives the node back, always.

Order at the end, whatever happened: stop, restore, verify, unlock (one request to the guardian, which also does
it alone if this process is gone), then collect, then report. Collecting comes after giving back, because a CI
system that cancels leaves ten seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, assert_never

from orchestrator.errors import DoesNotFit, NodeBusy, RemoteError
from orchestrator.model.experiment import Experiment
from orchestrator.model.facts import Facts
from orchestrator.model.plan import (
    ApplyEdits,
    Canary,
    Collect,
    Edit,
    FreeGpus,
    Guard,
    MakeReport,
    PatchSet,
    Plan,
    PutFile,
    RestoreFiles,
    RunPoint,
    Smoke,
    StartServer,
    Step,
    StopServer,
    SwitchThreshold,
    Unlock,
    WaitReady,
)
from orchestrator.remote.node import Node
from orchestrator.remote.refusals import before_acting
from orchestrator.runner.boot import Boot
from orchestrator.runner.confirm import confirm_worker
from orchestrator.runner.events import Events
from orchestrator.runner.loading import Loads
from orchestrator.runner.node_paths import gpu_csv, server_log
from orchestrator.runner.options import launch_env
from orchestrator.runner.overlay import confirm_overlay
from orchestrator.runner.pulse import Pulse
from orchestrator.runner.sampling import start_sampling
from orchestrator.runner.smoke import smoke_patch_set
from orchestrator.store import RunStore


@dataclass
class Loop:
    """Executes steps against a guarded node. What is to be undone stands in the guardian's journal, not here."""

    experiment: Experiment
    facts: Facts
    plan: Plan
    node: Node
    store: RunStore
    events: Events
    secrets: Mapping[str, str]
    base: Path  # relative paths of the experiment count from here
    touched: bool = False  # something on the node beyond our own folders was changed
    boot: Boot | None = None
    pulse: Pulse | None = None

    def execute(self) -> None:
        """Every step up to the unlock; raises at the first that fails. The caller gives the node back."""
        try:
            for step in self.plan.steps:
                if isinstance(step.do, Guard | Unlock | Collect | MakeReport):
                    continue  # done by the session: guard came before the plan, the others come after the unwind
                self.events.phase(step.phase, step.text)
                self._do(step)
        finally:
            self._unwatch()

    def _do(self, step: Step) -> None:
        effect = step.do
        match effect:
            case Smoke(patch_set):
                arms = dict.fromkeys(boot.arm for boot in self.plan.boots)
                smoke_patch_set(
                    self.node, self.experiment, self.facts, patch_set, self.store.run_id, self.events, arms
                )
            case ApplyEdits(patch_set, overlay):
                self._lay(patch_set) if overlay else self._apply(patch_set)
            case FreeGpus():
                self._free(effect)
            case PutFile(path, text):
                with self._refusing():
                    self.node.put(path, text.encode())
            case StartServer():
                self._start(effect)
            case SwitchThreshold():
                self._running().become(self.experiment.arm(effect.arm), effect)
            case WaitReady():
                self._running().wait_ready()
                self._confirm(self._running())
            case Canary():
                self._running().canary(effect)
            case RunPoint():
                self._running().run_point(effect)
            case StopServer():
                self._stop()
            case RestoreFiles():
                restored = self.node.restore()  # in overlay mode no file: the copy is removed
                self.events.emit("restored", files=list(restored.restored))
            case Guard() | Unlock() | Collect() | MakeReport():
                raise AssertionError(f"{effect} is not executed here")
            case _:
                assert_never(effect)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """A deed that the node refuses has touched nothing: what the refusal means decides the exit code."""
        try:
            yield
        except RemoteError as error:
            raise before_acting(error, self.experiment.node) from error

    @contextmanager
    def _touching(self) -> Iterator[None]:
        """A deed counts from the moment that it is asked for: a signal may come before its answer does."""
        before, self.touched = self.touched, True
        try:
            with self._refusing():
                yield
        except (DoesNotFit, NodeBusy):
            self.touched = before
            raise

    def _apply(self, patch_set: PatchSet) -> None:
        before = self.touched
        with self._touching():
            applied = self.node.apply(patch_set.name, [_file(edit) for edit in patch_set.edits])
        self.touched = before or bool(applied.changed)
        self.events.emit("applied", patch_set=patch_set.name, changed=list(applied.changed))

    def _lay(self, patch_set: PatchSet) -> None:
        """The same in a copy of our own, which is nothing of the node's."""
        tree = self.facts.tree
        assert tree is not None, "a tree was read before it was planned with"
        edits = [{**_file(edit), "path": edit.path} for edit in patch_set.edits]
        with self._refusing():
            laid = self.node.lay(patch_set.name, tree.package, tree.path, edits)
        self.events.emit("applied", patch_set=patch_set.name, changed=list(laid.changed), overlay=laid.root)

    def _free(self, effect: FreeGpus) -> None:
        rules = [{"user": rule.user, "command": rule.command} for rule in effect.rules]
        limit_s = self.experiment.limits.free_s
        before = self.touched
        with self._touching():
            freed = self.node.free(
                policy=effect.policy, rules=rules, gpus=effect.gpus or "all", timeout_s=limit_s
            )
        self.touched = before or bool(freed.stopped)
        for process in freed.stopped:
            self.events.emit("freed", process=process)

    def _running(self) -> Boot:
        assert self.boot is not None, "a plan starts a server before it uses one"
        return self.boot

    def _start(self, effect: StartServer) -> None:
        launch = effect.launch
        arm = self.experiment.arm(effect.arm)
        with self._touching():
            started = self.node.start(
                launch.argv,
                cwd=launch.cwd,
                env=launch_env(launch.env, self.secrets),
                log=server_log(self.experiment.node.workdir, self.store.run_id, effect.arm, effect.boot),
                arm=effect.arm,
                boot=effect.boot,
                port=launch.port,
            )
        self.events.emit("started", arm=effect.arm, boot=effect.boot, pid=started.pid, argv=list(launch.argv))
        model = str(arm.args.get("served-model-name", arm.args.get("model-path", "default")))
        loads = Loads.of(self.experiment.sweep, launch.port, model, self.base)
        self.boot = Boot(self.experiment, arm, effect.boot, self.node, self.store, self.events, loads)
        self._watch(effect.arm, effect.boot)

    def _watch(self, arm: str, boot: int) -> None:
        """Samples for the record, which end with the server; a pulse for whoever looks."""
        where = (self.experiment.node.workdir, self.store.run_id, arm, boot)
        sampled = start_sampling(self.node, self.events, gpu_csv(*where), arm, boot)
        if self.events.watched:
            tell = partial(self.events.pulse, arm=arm, boot=boot)
            samples = gpu_csv(*where) if sampled else None
            self.pulse = Pulse(self.node, tell, server_log(*where), samples, self.experiment.node.gpus)
            self.pulse.start()

    def _unwatch(self) -> None:
        if self.pulse is not None:
            self.pulse.stop()
            self.pulse = None

    def _confirm(self, boot: Boot) -> None:
        log = server_log(self.experiment.node.workdir, self.store.run_id, boot.arm.name, boot.number)
        confirm_worker(boot, self.plan.worker_paths[boot.arm.name], log)
        if self.plan.patched and self.plan.patch_mode == "overlay":
            confirm_overlay(boot)

    def _stop(self) -> None:
        self._unwatch()
        limits = self.experiment.limits
        stopped = self.node.stop(
            timeout_s=limits.stop_s, gpu_free_s=limits.gpu_free_s, gpus=self.experiment.node.gpus
        )
        self.events.emit(
            "stopped", exit_code=stopped.exit_code, signal=stopped.signal, gpu_wait_s=stopped.gpu_wait_s
        )
        self.boot = None


def _file(edit: Edit) -> dict[str, Any]:
    data = None if edit.after is None else edit.after.encode()
    return {
        "path": edit.absolute,
        "before_sha256": edit.before_sha256,
        "after_sha256": edit.after_sha256,
        "data": data,
    }
