"""`--resume RUN_ID`: keep whole points and go on; a machine is often lent for less than an experiment needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.analysis.tune import is_tune
from orchestrator.errors import DoesNotFit, UsageError
from orchestrator.model.experiment import Experiment
from orchestrator.model.plan import RunPoint
from orchestrator.plan import Done
from orchestrator.records.begun import begun_experiment, goes_on_with
from orchestrator.records.damage import damage
from orchestrator.records.kept import Kept, look
from orchestrator.records.lockfile import joined, stored_lock
from orchestrator.records.missing import no_folders
from orchestrator.records.naming import run_word
from orchestrator.records.parts import arms_to_go_on_with, left_points, left_words, not_begun
from orchestrator.records.sameness import changes, experiment_changes
from orchestrator.records.typed import typed_or_lock
from orchestrator.redact import Redactor
from orchestrator.report.text import listed
from orchestrator.runner.options import RunOptions
from orchestrator.runner.runlock import RunLock
from orchestrator.store import LOCK_FILE, OUTCOME, RunStore, from_here, new_run_id, require_writable


@dataclass(frozen=True)
class Resumed:
    """Where a run starts: a new id, or an old folder, what is kept of it and what it was measured on.

    `arms`: those to measure (empty: all). `left`: points of others, which the run began with.
    `lost`: what of the folder is missing or damaged.
    """

    run_id: str
    store: RunStore | None = None
    kept: Kept = field(default_factory=Kept)
    begun: Mapping[str, Any] = field(default_factory=dict)
    arms: tuple[str, ...] = ()
    left: tuple[RunPoint, ...] = ()
    lost: tuple[str, ...] = ()

    @property
    def done(self) -> Done:
        return self.kept.done

    def lines(self) -> Iterator[str]:
        """For people, of a run that is gone on with."""
        yield from self.kept.lines()
        yield from (f"lost: {text}" for text in self.lost)
        if self.arms:
            yield f"arms to go on with: {', '.join(self.arms)}"
        if self.left:
            yield f"left to do after this: {left_words(self.left)}"

    def lock(self, now: Mapping[str, Any]) -> dict[str, Any]:
        """What the points of the whole run are measured on, for a later part."""
        return joined(self.begun, now) if self.kept.points else dict(now)

    def check(self, lock: Mapping[str, Any]) -> tuple[str, ...]:
        """What is different and does not count. Raises DoesNotFit where kept and new points must not be mixed."""
        if not self.kept.points:
            return ()
        if not self.begun:
            return (f"{LOCK_FILE} does not say what the kept points were measured on: nothing is compared",)
        found = changes(self.begun, lock)
        if found.fatal:
            raise DoesNotFit(
                f"what is kept of run {self.run_id} was measured on something else",
                details=found.fatal,
                help="begin a new run, without --resume; dynspec compare sets the two side by side",
            )
        return tuple(f"not as in the first part: {text}" for text in found.told)


def fresh(options: RunOptions, experiment: Experiment) -> Resumed:
    """Raises UsageError where the results folder cannot keep a run folder."""
    require_writable(options.results, "name another folder with --results")
    return Resumed(new_run_id(experiment.name), arms=options.arms)


def resume(options: RunOptions, experiment: Experiment, redact: Redactor, lock: RunLock) -> Resumed:
    """Goes on in the run's own folder.

    Raises UsageError for an unknown or unwritable run and for arms that cannot go on alone, NodeBusy for one under way,
    DoesNotFit for another experiment's.
    """
    assert options.resume is not None
    store = RunStore.open(options.results, options.resume, redact)
    require_writable(store.folder, "make it writable, or copy it and resume the copy by its path")
    lock.take(store.folder)
    _require_folders(store)
    begun = begun_experiment(store)
    if is_tune(begun.arms):
        raise UsageError(
            f"run {store.run_id} is one of dynspec tune: its repetitions belong to one boot",
            help=goes_on_with(store),
        )
    _same(begun, experiment, store)
    kept = look(store)
    finished = not kept.dropped and _ended_well(store)
    if others := not_begun(store, options.arms, kept.done):
        raise _without(store, others, finished=finished)
    if finished:
        raise UsageError(f"run {store.run_id} is finished", help=f"dynspec report {run_word(store)}")
    arms = arms_to_go_on_with(store, experiment, options.arms)
    left = left_points(store, experiment, arms, kept.done)
    return Resumed(store.run_id, store, kept, stored_lock(store), arms, left, tuple(_lost(store, kept)))


def _lost(store: RunStore, kept: Kept) -> Iterator[str]:
    """As a report tells it, without the points that are told to be measured again."""
    told = tuple(f"arms/{dropped.what}" for dropped in kept.dropped)
    return (text for text in damage(store) if not text.startswith(told))


def _require_folders(store: RunStore) -> None:
    """What a boot leaves could not be stored, which is better known before a server is started."""
    if found := no_folders(store):
        raise UsageError(
            f"the run folder is damaged: {listed([str(from_here(path)) for path in found])} is no folder",
            help="move it away, then go on: what was in it is measured again",
        )


def _without(store: RunStore, arms: tuple[str, ...], *, finished: bool) -> UsageError:
    told = "is finished, and was begun" if finished else "was begun"
    return UsageError(
        f"run {store.run_id} {told} without {listed(arms)}",
        help=f"more arms are measured by a new run: dynspec run {typed_or_lock(store).shell()}",
    )


def _ended_well(store: RunStore) -> bool:
    """A damaged outcome is none."""
    try:
        return bool(store.read_json(OUTCOME)["outcome"]["exit_code"] == 0)
    except (UsageError, KeyError, TypeError):
        return False


def _same(begun: Experiment, now: Experiment, store: RunStore) -> None:
    """What decides the numbers must be the same; where the node is reached and limits may differ."""
    found = experiment_changes(begun, now)
    if found:
        as_begun = from_here(store.folder / LOCK_FILE)
        raise DoesNotFit(
            f"the experiment differs from the one that run {store.run_id} began with",
            details=found,
            help=f"as it was begun: dynspec run {as_begun} --resume {run_word(store)}",
        )
