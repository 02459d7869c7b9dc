"""The experiment of a run folder, as it was run."""

from __future__ import annotations

import shlex

from orchestrator.analysis.tune import is_tune
from orchestrator.config import Checked, load_begun
from orchestrator.errors import UsageError
from orchestrator.model.experiment import Experiment
from orchestrator.records.naming import run_word
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
    return load_begun(text, name=str(from_here(path)))


def goes_on_with(store: RunStore, file: str = "EXPERIMENT.yaml") -> str:
    """The command that measures what a run that was cut short still lacks; of a damaged folder the usual one.

    `file`: of the experiment, where it is known.
    """
    try:
        if is_tune(begun_experiment(store).arms):
            return "dynspec tune EXPERIMENT.yaml (it is repeated as a whole)"
    except UsageError:
        pass
    return f"dynspec run {shlex.quote(file)} --resume {run_word(store)}"


def newer_rules(checked: Checked) -> tuple[str, ...]:
    """A sentence for each rule that the experiment breaks."""
    return tuple(
        f"the run is older than a rule that would refuse it today: {text}" for text in checked.broken
    )
