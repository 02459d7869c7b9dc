"""The experiment of a run folder, as it was run."""

from __future__ import annotations

from orchestrator.config import load_experiment
from orchestrator.errors import UsageError
from orchestrator.model.experiment import Experiment
from orchestrator.store import LOCK_FILE, RunStore


def begun_experiment(store: RunStore) -> Experiment:
    """The experiment of a run folder, as it was run."""
    path = store.folder / LOCK_FILE
    if not path.is_file():
        raise UsageError(f"{path} is missing: the run folder is incomplete")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is damaged: {error}") from None
    if not text.strip():
        raise UsageError(f"{path} is empty: without the experiment nothing else in the folder can be read")
    return load_experiment(text, name=str(path)).experiment
