"""One run from its first connection to its outcome: guard, plan under the lock, loop, give back, collect, report."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.config import Checked
from orchestrator.errors import (
    ConnectionLost,
    DynspecError,
    EndedElsewhere,
    Interrupted,
    NodeDirty,
    OutputLost,
    PhaseFailed,
)
from orchestrator.load.prompts import digest_of
from orchestrator.model.experiment import Experiment
from orchestrator.model.plan import RunPoint
from orchestrator.plain_text import os_words
from orchestrator.records.events import boot_order
from orchestrator.records.gating import require_reference
from orchestrator.records.lockfile import lock_of, lock_text
from orchestrator.records.served import stored_plan
from orchestrator.records.typed import KEY as TYPED_KEY
from orchestrator.redact import Redactor
from orchestrator.remote.node import Node
from orchestrator.runner.collect import Collecting, remove_folders
from orchestrator.runner.events import Events, Listener
from orchestrator.runner.finish import Ending
from orchestrator.runner.finish import Finished as Finished
from orchestrator.runner.give_back import give_back
from orchestrator.runner.guarding import Taking, explain_end, holder_name, refuse_held
from orchestrator.runner.loop import Loop
from orchestrator.runner.options import RunOptions, resolve_secrets
from orchestrator.runner.prepare import Prepared, chosen_arms, connect, prepare
from orchestrator.runner.restore import restore_command
from orchestrator.runner.resume import Resumed, fresh, resume
from orchestrator.runner.runlock import RunLock
from orchestrator.runner.signals import SignalGate, watching_signals
from orchestrator.store import FACTS, LOCK_FILE, OUTCOME, PLAN, RunStore, utc_now


def run_experiment(
    checked: Checked,
    options: RunOptions,
    *,
    base: Path,
    environ: Mapping[str, str],
    listeners: tuple[Listener, ...],
) -> Finished:
    """Raises UsageError, and NodeBusy or DoesNotFit for a run that can't be resumed, before connecting.

    Anything later becomes the outcome, after the node was given back.
    """
    chosen_arms(checked.experiment, options.arms)  # an unknown name is refused here, not after connecting
    secrets = resolve_secrets(checked.experiment, environ)
    redact = Redactor(secrets)
    events = Events(listeners, redact, options.watchers)
    prompts = digest_of(checked.experiment.sweep.prompts, base)
    with ExitStack() as stack:
        lock = options.lock or stack.enter_context(RunLock(detached=options.detached, arms=options.arms))
        start = (
            resume(options, checked.experiment, redact, lock)
            if options.resume is not None
            else fresh(options, checked.experiment)
        )
        results = options.results if start.store is None else start.store.folder.parent
        require_reference(results, checked.experiment, start.run_id)
        return Session(
            checked.experiment,
            checked.warnings,
            options,
            base,
            secrets,
            prompts,
            redact,
            events,
            gate=stack.enter_context(watching_signals()),
            start=start,
            lock=lock,
        ).run()


@dataclass
class Session:
    """State of one run. `node` is the connection in use; it may be replaced when the first one is lost."""

    experiment: Experiment
    warnings: tuple[str, ...]
    options: RunOptions
    base: Path  # relative paths of the experiment count from here
    secrets: Mapping[str, str]
    prompts_sha256: str
    redact: Redactor
    events: Events
    gate: SignalGate
    start: Resumed
    lock: RunLock
    started_utc: str = field(default_factory=utc_now)
    node: Node | None = None
    store: RunStore | None = None  # once the node is ours
    taking: Taking | None = None
    touched: bool = False
    _seen: Prepared | None = None  # the look before the lock
    _told: tuple[str, ...] = ()  # what is not as in the first part of a resumed run

    # -- the whole ---------------------------------------------------------------------------------------
    def run(self) -> Finished:
        """Whatever ends the measuring, a signal, a failure or a bug of ours, the node is given back first."""
        error: DynspecError | None = None
        bug: Exception | None = None
        signum: int | None = None
        try:
            try:
                self._measure()
            finally:
                self.gate.disarm()  # a signal that came just before this is caught below, like any other
        except Interrupted as interrupted:
            signum = interrupted.signum
        except DynspecError as failure:
            error = explain_end(failure, self.node)
        except OSError as failure:
            shown = (
                isinstance(failure, OutputLost) and not self.options.detached
            )  # there it is a file in results
            full = failure.errno in (errno.ENOSPC, errno.EDQUOT) and not shown
            what_helps = f"free some space for {self.options.results}" if full else ""
            error = PhaseFailed(f"this machine: {os_words(failure)}", help=what_helps)
        except Exception as unforeseen:  # noqa: BLE001  raised again when the node is clean
            bug = unforeseen
        self.events.forgive()
        if isinstance(error, ConnectionLost):
            self.events.emit("connection_lost", text=error.message)  # no boot that was up is blamed for it
        error = self._give_back(error, signum, bug)
        self._collect(clean=not isinstance(error, NodeDirty))
        if self.node is not None:
            self.node.close()
        if error is not None:
            self._redact(error)
        recovered = self.taking.recovered if self.taking is not None else ()
        ending = Ending(
            self.experiment,
            self.store,
            self.events,
            self.started_utc,
            self.touched,
            recovered,
            self.start.left,
        )
        if bug is None:
            return ending.finish(error, signum or self.gate.first)
        ending.finish(error or PhaseFailed(_BUG), None)
        raise error if isinstance(error, NodeDirty) else bug

    def _measure(self) -> None:
        experiment, events = self.experiment, self.events
        for warning in self.warnings:
            events.emit("warning", text=warning)
        if self.start.store is not None:
            for line in self.start.lines():
                events.note(line)
        events.phase("connect", f"{experiment.node.host}")
        self.node = connect(experiment)
        events.phase("facts", "reading what the node is")
        asked_s = self.options.lock_wait_s
        wait_s = experiment.limits.lock_wait_s if asked_s is None else asked_s
        self._first_look(self.node, may_wait=wait_s > 0)
        events.phase("guardian", "lock, lease and journal")
        holder = holder_name(detached=self.options.detached)
        self.taking = Taking(self.node, experiment, self.start.run_id, holder, self.gate, events)
        self.taking.take(wait_s)
        prepared = self._prepare(self.node, own_run=self.start.run_id)
        self._open_store(prepared)
        loop = Loop(
            prepared.experiment,
            prepared.facts,
            prepared.plan,
            self.node,
            self._stored(),
            events,
            self.secrets,
            self.base,
        )
        try:
            loop.execute()
        finally:
            self.touched = loop.touched

    def _first_look(self, node: Node, *, may_wait: bool) -> None:
        """Refuse what can be refused before the lock. A tree that another run has in its hands is looked at later."""
        status = node.status()
        if not may_wait:
            refuse_held(status, self.experiment.node, self.start.run_id)
        if status.lock is None and not status.journals:
            self._seen = self._prepare(node)

    def _prepare(self, node: Node, *, own_run: str | None = None) -> Prepared:
        prepared = prepare(
            node,
            self.experiment,
            self.start.arms,
            done=self.start.done,
            own_run=own_run,
            yes=self.options.yes,
            seen=self._seen,
            blocks=self.options.blocks,
        )
        self._told = self.start.check(self._lock_of(prepared))
        return prepared

    def _lock_of(self, prepared: Prepared) -> dict[str, Any]:
        """As it is stored: without secrets."""
        lock = self.redact.tree(lock_of(prepared.facts, prepared.plan, self.prompts_sha256))
        assert isinstance(lock, dict)
        return lock

    def _open_store(self, prepared: Prepared) -> None:
        store = self.start.store or RunStore.create(self.options.results, self.start.run_id, self.redact)
        self.lock.take(store.folder)
        (store.folder / OUTCOME).unlink(missing_ok=True)  # a resumed run is unfinished again
        self.start.kept.set_aside()
        store.mend_events()
        self.store = store
        self.events.attach(store)
        for text in self._told:
            self.events.note(text)
        store.write(LOCK_FILE, lock_text(self.experiment, self.start.lock(self._lock_of(prepared))))
        store.write_json(FACTS, {"facts": prepared.facts})
        typed = {TYPED_KEY: self.options.typed} if self.options.typed is not None else {}
        store.write_json(PLAN, {**typed, "plan": stored_plan(prepared.plan, store, self.start.left)})
        points = sum(isinstance(step.do, RunPoint) for step in prepared.plan.steps)
        self.events.emit("planned", boots=len(prepared.plan.boots), points=points)
        self.options.accepted(store)

    def _stored(self) -> RunStore:
        assert self.store is not None
        return self.store

    def _redact(self, error: DynspecError) -> None:
        """In place: it goes to the screen, and the last lines of a server's log stand in it."""
        error.message, error.help = self.redact(error.message), self.redact(error.help)
        error.details = tuple(map(self.redact, error.details))

    # -- the end, always ---------------------------------------------------------------------------------
    def _give_back(
        self, error: DynspecError | None, signum: int | None, bug: Exception | None
    ) -> DynspecError | None:
        """Returns the error that decides the exit code: a dirty node outranks what went before."""
        if self.taking is None or not self.taking.asked or self.node is None:
            return error
        limits = self.experiment.limits
        reason = f"signal {signum}" if signum else "failed" if error or bug else "done"
        self.events.phase("restore", "stop, restore, verify, unlock")
        try:
            given = give_back(
                self.node,
                lambda: connect(self.experiment),
                run_id=self.start.run_id,
                command=restore_command(self.experiment.node),
                stop_s=limits.interrupt_s if signum else limits.stop_s,
                reason=reason,
                events=self.events,
                ended_elsewhere=isinstance(error, EndedElsewhere),
            )
        except NodeDirty as dirty:
            if error is not None:
                self.events.emit("failed", text=error.render())
            return dirty
        self.node = given.node
        return error

    def _collect(self, *, clean: bool) -> None:
        """Logs come over after the node is `clean`. Losing them is said, and changes no result."""
        if self.node is None or self.taking is None or not self.taking.asked:
            return
        if self.store is None:
            if clean and self.start.store is None:  # an earlier part of a resumed run may have logs there
                remove_folders(self.node, self.start.run_id, self.experiment.node.workdir, self.events)
            return
        self.events.phase("collect", "server logs and GPU samples")
        before = self.gate.repeats if self.gate.first else -1

        def abort() -> bool:
            """A signal that comes while logs are fetched ends the fetching; one that came earlier does not."""
            return self.gate.first is not None and self.gate.repeats > before

        collecting = Collecting(
            self.node,
            lambda: connect(self.experiment),
            self.experiment,
            self.store,
            self.events,
            abort,
            self.start.kept.boots,
        )
        try:
            collecting.run(tuple(dict.fromkeys(boot_order(self.store))))
        except OSError as full:
            self.events.emit("warning", text=f"not everything could be collected: {os_words(full)}")
        self.node = collecting.node


_BUG = "a bug of dynspec ended the run; what it printed helps whoever mends it"
