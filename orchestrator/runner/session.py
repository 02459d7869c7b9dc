"""One run from its first connection to its outcome: guard, plan under the lock, loop, give back, collect, report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.config import Checked
from orchestrator.errors import (
    ConnectionLost,
    DynspecError,
    Interrupted,
    NodeDirty,
    NothingToClaim,
    Regression,
    RemoteError,
)
from orchestrator.model.experiment import Experiment
from orchestrator.model.result import Outcome, RunInfo
from orchestrator.redact import Redactor
from orchestrator.remote.node import Node
from orchestrator.remote.refusals import before_acting
from orchestrator.runner.collect import collect
from orchestrator.runner.events import Events, Listener
from orchestrator.runner.give_back import give_back
from orchestrator.runner.lockfile import lock_text
from orchestrator.runner.loop import Loop, holder_name
from orchestrator.runner.options import RunOptions, resolve_secrets
from orchestrator.runner.prepare import Prepared, connect, prepare
from orchestrator.runner.results import boot_order, conclude, keep_as_good, write_reports
from orchestrator.runner.resume import Resumed, fresh, resume
from orchestrator.runner.signals import SignalGate, watching_signals
from orchestrator.store import RunStore, utc_now


@dataclass(frozen=True)
class Finished:
    """What `run` leaves behind. `store` is None when nothing was started, `summary` when nothing was measured."""

    outcome: Outcome
    error: DynspecError | None
    store: RunStore | None
    summary: dict[str, Any] | None = None
    info: RunInfo | None = None


def run_experiment(
    checked: Checked,
    options: RunOptions,
    *,
    base: Path,
    environ: Mapping[str, str],
    listeners: tuple[Listener, ...],
) -> Finished:
    """Raises UsageError before connecting; anything later becomes the outcome, after the node was given back."""
    secrets = resolve_secrets(checked.experiment, environ)
    redact = Redactor(secrets)
    events = Events(listeners, redact)
    start = (
        resume(options, checked.experiment, redact) if options.resume else fresh(options, checked.experiment)
    )
    with watching_signals(lambda _signum: events.note("still giving the node back; please wait")) as gate:
        return Session(checked, options, base, secrets, redact, events, gate, start).run()


class Session:
    """State of one run. `node` is the connection in use; it may be replaced when the first one is lost."""

    def __init__(
        self,
        checked: Checked,
        options: RunOptions,
        base: Path,
        secrets: Mapping[str, str],
        redact: Redactor,
        events: Events,
        gate: SignalGate,
        start: Resumed,
    ) -> None:
        self.experiment: Experiment = checked.experiment
        self.warnings = checked.warnings
        self.options = options
        self.base = base
        self.secrets = secrets
        self.redact = redact
        self.events = events
        self.gate = gate
        self.start = start
        self.started_utc = utc_now()
        self.node: Node | None = None
        self.store: RunStore | None = start.store
        self.guarded = False
        self.touched = False

    # -- the whole ---------------------------------------------------------------------------------------
    def run(self) -> Finished:
        error: DynspecError | None = None
        signum: int | None = None
        try:
            self._measure()
        except Interrupted as interrupted:
            signum = interrupted.signum
        except DynspecError as failure:
            error = failure
        finally:
            self.gate.disarm()
        error = self._give_back(error, signum)
        signum = signum or self.gate.first
        self._collect()
        finished = self._finish(error, signum)
        if self.node is not None:
            self.node.close()
        return finished

    def _measure(self) -> None:
        experiment, events = self.experiment, self.events
        for warning in self.warnings:
            events.emit("warning", text=warning)
        events.phase("connect", f"{experiment.node.host}")
        self.node = connect(experiment)
        events.phase("facts", "reading what the node is")
        self._first_look()
        events.phase("guardian", "lock, lease and journal")
        self._guard()
        prepared = prepare(
            self.node,
            experiment,
            self.options.arms,
            done=self.start.done,
            own_run=self.start.run_id,
            yes=self.options.yes,
        )
        self._open_store(prepared)
        loop = Loop(
            experiment,
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

    def _first_look(self) -> None:
        """Refuse what can be refused before the lock. A dead run's journal is restored first, so it waits for that."""
        assert self.node is not None
        status = self.node.status()
        if any(journal.state == "dead" for journal in status.journals):
            return
        waits = self.options.lock_wait_s > 0
        prepare(
            self.node,
            self.experiment,
            self.options.arms,
            done=self.start.done,
            may_wait=waits,
            yes=self.options.yes,
        )

    def _guard(self) -> None:
        assert self.node is not None
        limits = self.experiment.limits
        try:
            reply = self.node.guard(
                run_id=self.start.run_id,
                holder=holder_name(),
                workdir=self.experiment.node.workdir,
                lease_s=self.experiment.node.lease_s,
                lock_wait_s=max(self.options.lock_wait_s, limits.lock_wait_s),
                stop_s=limits.stop_s,
                gpu_free_s=limits.gpu_free_s,
            )
        except RemoteError as error:
            raise before_acting(error, self.experiment.node.host) from error
        self.guarded = True
        for item in reply.recovered:
            self.events.emit(
                "recovered",
                run_id=item.run_id,
                text=f"run {item.run_id} had died; its server was stopped and {len(item.restored)} files were put back",
                restored=list(item.restored),
                stopped=list(item.stopped),
            )

    def _open_store(self, prepared: Prepared) -> None:
        if self.store is None:
            self.store = RunStore.create(self.options.results, self.start.run_id, self.redact)
        self.events.attach(self.store)
        self.store.write("experiment.lock.yaml", lock_text(self.experiment, prepared))
        self.store.write_json("facts.json", {"facts": prepared.facts})
        self.store.write_json("plan.json", {"plan": prepared.plan})

    def _stored(self) -> RunStore:
        assert self.store is not None
        return self.store

    # -- the end, always ---------------------------------------------------------------------------------
    def _give_back(self, error: DynspecError | None, signum: int | None) -> DynspecError | None:
        """Returns the error that decides the exit code: a dirty node outranks what went before."""
        if not self.guarded or self.node is None:
            return error
        limits = self.experiment.limits
        reason = "done" if error is None and signum is None else f"signal {signum}" if signum else "failed"
        self.events.phase("restore", "stop, restore, verify, unlock")
        try:
            given = give_back(
                self.node,
                lambda: connect(self.experiment),
                run_id=self.start.run_id,
                host=self.experiment.node.host,
                stop_s=limits.interrupt_s if signum else limits.stop_s,
                reason=reason,
                events=self.events,
            )
        except NodeDirty as dirty:
            if error is not None:
                self.events.emit("failed", text=error.render())
            return dirty
        self.node = given.node
        return error

    def _collect(self) -> None:
        """Logs come over after the node is clean. Losing them is said, and changes no result."""
        if self.store is None or self.node is None or not self.guarded:
            return
        self.events.phase("collect", "server logs")
        try:
            boots = tuple(dict.fromkeys(boot_order(self.store)))
            collect(self.node, self.experiment, self.store, boots, self.events, lambda: self.gate.repeats > 0)
        except (ConnectionLost, RemoteError) as lost:
            self.events.emit("warning", text=f"not everything could be collected: {lost.message}")

    def _finish(self, error: DynspecError | None, signum: int | None) -> Finished:
        something_ran = self.store is not None and any(boot_order(self.store))
        conclusion = conclude(self._stored(), self.experiment) if something_ran else None
        if conclusion is not None and error is None and signum is None:
            error = conclusion.error
        code, state = _verdict(error, signum, self.touched)
        message = error.render() if error is not None else f"interrupted by signal {signum}" if signum else ""
        outcome = Outcome(code, state, message, not isinstance(error, NodeDirty), self.started_utc, utc_now())
        if self.store is None:
            return Finished(outcome, error, None)
        summary, info = None, None
        if conclusion is not None:
            summary, info = write_reports(self.store, self.experiment, conclusion=conclusion, outcome=outcome)
            keep_as_good(self.store, self.experiment, conclusion, outcome)
        self.events.emit("outcome", exit_code=code, state=state, text=message)
        self.store.write_json("outcome.json", {"outcome": outcome})
        return Finished(outcome, error, self.store, summary, info)


def _verdict(error: DynspecError | None, signum: int | None, touched: bool) -> tuple[int, str]:
    if isinstance(error, NodeDirty):
        return error.exit_code, "dirty"
    if signum is not None:
        return 128 + signum, "interrupted"
    if error is None:
        return 0, "ok"
    if isinstance(error, NothingToClaim | Regression):
        return error.exit_code, "regression" if isinstance(error, Regression) else "nothing-to-claim"
    if error.exit_code in (3, 4) and touched:
        return 1, "failed"  # 3 and 4 promise that nothing was touched
    return error.exit_code, "refused" if error.exit_code in (2, 3, 4) else "failed"
