"""`--resume RUN_ID`: keep finished points and go on; a machine is often lent for less than an experiment needs."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.config import load_experiment
from orchestrator.errors import DoesNotFit, UsageError
from orchestrator.model.experiment import Experiment
from orchestrator.plan import Done
from orchestrator.redact import Redactor
from orchestrator.runner.options import RunOptions
from orchestrator.store import RunStore, new_run_id


@dataclass(frozen=True)
class Resumed:
    """Where a run starts: a new id, or an old folder and what is finished in it."""

    run_id: str
    store: RunStore | None
    done: Done


def fresh(options: RunOptions, experiment: Experiment) -> Resumed:
    return Resumed(new_run_id(experiment.name), None, Done())


def resume(options: RunOptions, experiment: Experiment, redact: Redactor) -> Resumed:
    """Raises UsageError for an unknown run, DoesNotFit when the experiment is not the one that was begun."""
    assert options.resume is not None
    store = RunStore.open(options.results, options.resume, redact)
    begun = begun_experiment(store)
    _same(begun, experiment, store.run_id)
    outcome = store.folder / "outcome.json"
    if outcome.is_file() and store.read_json("outcome.json")["outcome"]["exit_code"] == 0:
        raise UsageError(f"run {store.run_id} is finished", help=f"dynspec report {store.run_id}")
    points = frozenset((point.arm, point.boot, point.index) for point in store.points())
    return Resumed(store.run_id, store, Done(points=points))


def begun_experiment(store: RunStore) -> Experiment:
    """The experiment of a run folder, as it was run."""
    path = store.folder / "experiment.lock.yaml"
    if not path.is_file():
        raise UsageError(f"{path} is missing: the run folder is incomplete")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is damaged: {error}") from None
    return load_experiment(text, name=str(path)).experiment


def _same(begun: Experiment, now: Experiment, run_id: str) -> None:
    """What decides the numbers must be the same; where the node is reached and limits may differ."""
    for what in ("name", "server", "arms", "sweep"):
        if getattr(begun, what) != getattr(now, what):
            raise DoesNotFit(
                f"{what} of the experiment differs from the one that run {run_id} began with",
                help=f"resume with the experiment as it was: results/{run_id}/experiment.lock.yaml",
            )
