"""The end of a run, once the node is given back: what its records say, the reports, and the outcome, written last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import (
    DynspecError,
    EndedElsewhere,
    NodeDirty,
    NothingToClaim,
    PartLeft,
    PhaseFailed,
    Regression,
)
from orchestrator.model.experiment import Experiment
from orchestrator.model.plan import RunPoint
from orchestrator.model.result import PARTIAL, Outcome, RunInfo
from orchestrator.plain_text import os_words
from orchestrator.records.events import boot_order
from orchestrator.records.gating import pointer_problem
from orchestrator.records.naming import run_word
from orchestrator.records.parts import part_left
from orchestrator.records.results import conclude, keep_as_good, write_reports
from orchestrator.remote.replies import Recovered
from orchestrator.runner.events import Events
from orchestrator.runner.guarding import undone
from orchestrator.store import OUTCOME, RunStore, utc_now


@dataclass(frozen=True)
class Finished:
    """What `run` leaves behind. `store` is None when nothing was started, `summary` when nothing was measured."""

    outcome: Outcome
    error: DynspecError | None
    store: RunStore | None
    summary: dict[str, Any] | None = None
    info: RunInfo | None = None
    node: str = ""  # what became of the node, for a run that did not come to its end


@dataclass(frozen=True)
class Ending:
    """How the measuring ended. `touched`: this run changed something on the node beyond our own folders.
    `recovered`: dead runs whose leftovers the node put back for it. `left`: points that it was not to measure and that
    the run still lacks.
    """

    experiment: Experiment
    store: RunStore | None
    events: Events
    started_utc: str
    touched: bool
    recovered: tuple[Recovered, ...] = ()
    left: tuple[RunPoint, ...] = ()

    def finish(self, error: DynspecError | None, signum: int | None) -> Finished:
        """Reports and outcome. A report that cannot be made costs neither the records nor the outcome."""
        if error is None and signum is None and self.left and self.store is not None:
            error = part_left(self.store, self.left)
        if error is not None and not isinstance(error, NodeDirty) and self.recovered and self.store is None:
            error.details = (*error.details, self._node())  # no run folder tells of it
        if self.store is None or not any(boot_order(self.store)):
            return self._without_summary(error, signum)
        try:
            return self._with_reports(self.store, error, signum)
        except (DynspecError, OSError) as failure:
            return self._without_summary(self._first(error, _unreported(self.store, failure)), signum)
        except Exception as bug:
            self._without_summary(self._first(error, _unreported(self.store, bug)), None)
            if isinstance(error, NodeDirty):
                raise error from bug
            raise

    def _first(self, error: DynspecError | None, unreported: PhaseFailed) -> DynspecError:
        """What ended the run outranks what became of its report: a dirty node must still be told."""
        if error is None:
            return unreported
        self.events.emit("warning", text=unreported.message)
        return error

    def _with_reports(self, store: RunStore, error: DynspecError | None, signum: int | None) -> Finished:
        self._check_pointer(store)
        conclusion = conclude(store, self.experiment)
        if error is None and signum is None:
            error = conclusion.error
        outcome = self._outcome(error, signum)
        summary, info = write_reports(store, self.experiment, conclusion=conclusion, outcome=outcome)
        try:
            keep_as_good(store, self.experiment, conclusion, outcome)
        except PhaseFailed as unwritten:  # the run itself passed
            self.events.emit("warning", text=f"{unwritten.message}; {unwritten.help}")
        self._write(store, outcome)
        return Finished(outcome, error, store, summary, info, self._node())

    def _check_pointer(self, store: RunStore) -> None:
        gate = self.experiment.gate
        problem = gate and pointer_problem(store.folder.parent, self.experiment, gate.against)
        if problem:
            self.events.emit("warning", text=f"gate: {problem}")

    def _without_summary(self, error: DynspecError | None, signum: int | None) -> Finished:
        outcome = self._outcome(error, signum)
        if self.store is not None:
            try:
                self._write(self.store, outcome)
            except OSError as failure:
                text = f"{OUTCOME} could not be written, so the run counts as unfinished: {os_words(failure)}"
                self.events.emit("warning", text=text)
                error = error or PhaseFailed(text)
                outcome = self._outcome(error, signum)
                self._tell(outcome)
        return Finished(outcome, error, self.store, node=self._node())

    def _outcome(self, error: DynspecError | None, signum: int | None) -> Outcome:
        code, state = verdict(error, signum, self.touched)
        interrupted = f"interrupted by signal {signum}; {self._node()}" if signum else ""
        message = error.render() if error is not None else interrupted
        return Outcome(code, state, message, not isinstance(error, NodeDirty), self.started_utc, utc_now())

    def _node(self) -> str:
        return node_words(self.touched, self.recovered)

    def _write(self, store: RunStore, outcome: Outcome) -> None:
        self._tell(outcome)
        store.write_json(OUTCOME, {"outcome": outcome})

    def _tell(self, outcome: Outcome) -> None:
        self.events.emit("outcome", exit_code=outcome.exit_code, state=outcome.state, text=outcome.message)


def node_words(touched: bool, recovered: Sequence[Recovered]) -> str:
    """What became of a node that was given back clean, by this run and by dead ones before it."""
    if not recovered:
        return "the node is as it was" if touched else "the node was not touched"
    own = "the node is as it was" if touched else "this run changed nothing on the node"
    told = [f"what run {run.run_id}, which had died, had left is undone: {undone(run)}" for run in recovered]
    return "; ".join([own, *told])


def verdict(error: DynspecError | None, signum: int | None, touched: bool) -> tuple[int, str]:
    """Exit code and state: a dirty node outranks a signal, and a signal what it cut short."""
    if isinstance(error, NodeDirty):
        return error.exit_code, "dirty"
    if signum is not None:
        return 128 + signum, "interrupted"
    if isinstance(error, EndedElsewhere):
        return error.exit_code, "interrupted"
    if error is None:
        return 0, "ok"
    if isinstance(error, PartLeft):
        return error.exit_code, PARTIAL
    if isinstance(error, NothingToClaim | Regression):
        return error.exit_code, "regression" if isinstance(error, Regression) else "nothing-to-claim"
    if error.exit_code in (3, 4) and touched:
        return 1, "failed"  # 3 and 4 promise that nothing was touched
    return error.exit_code, "refused" if error.exit_code in (2, 3, 4) else "failed"


def _unreported(store: RunStore, failure: Exception) -> PhaseFailed:
    if isinstance(failure, OSError):
        words = os_words(failure)
    else:
        words = failure.message if isinstance(failure, DynspecError) else "a bug of dynspec"
    return PhaseFailed(
        f"the report could not be made: {words}",
        help=f"the records are kept; dynspec report {run_word(store)} tries again",
    )
