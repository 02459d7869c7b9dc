"""The experiment of a run folder, as it was run."""

from __future__ import annotations

from orchestrator.analysis.tune import is_tune
from orchestrator.config import Checked, load_begun
from orchestrator.errors import ExperimentError, UsageError
from orchestrator.model.experiment import Experiment
from orchestrator.records.naming import run_name
from orchestrator.records.typed import Typed, typed_left, typed_or_lock
from orchestrator.store import LOCK_FILE, RunStore, from_here


def begun_experiment(store: RunStore) -> Experiment:
    """Raises UsageError where the file is missing or cannot be read; rules newer than the run refuse nothing."""
    return begun(store).experiment


def begun(store: RunStore) -> Checked:
    """The same, with the rules of today that it breaks."""
    path = store.folder / LOCK_FILE
    if not path.is_file():
        raise UsageError(f"{path} is missing: the run folder is incomplete")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is damaged: {error}") from None
    if not text.strip():
        raise UsageError(f"{path} is empty: without the experiment nothing else in the folder can be read")
    try:
        return load_begun(text, name=str(from_here(path)))
    except ExperimentError as wrong:  # the run began with one that could be read
        raise UsageError(
            f"the run folder is damaged: {from_here(path)} is not the experiment that it began with",
            details=wrong.details or (wrong.message,),
            help="put the file back from a copy of the folder, or begin a new run",
        ) from None


def goes_on_with(store: RunStore) -> str:
    """The command that measures what a run that was cut short still lacks; of a damaged folder the usual one."""
    try:
        if is_tune(begun_experiment(store).arms):
            typed = typed_left(store) or Typed("EXPERIMENT.yaml")  # what it ran is no file to tune
            return f"dynspec tune {typed.shell()} (it is repeated as a whole)"
    except UsageError:
        pass
    return f"dynspec run {typed_or_lock(store).shell('--resume', run_name(store))}"


def newer_rules(checked: Checked) -> tuple[str, ...]:
    """A sentence for each rule that the experiment breaks."""
    return tuple(
        f"the run is older than a rule that would refuse it today: {text}" for text in checked.broken
    )
