"""How a run is named in a command that somebody is advised to type."""

from __future__ import annotations

import shlex
from pathlib import Path

from orchestrator.store import RunStore, from_here

_USUAL = Path("results")  # where every command looks without --results


def run_name(store: RunStore) -> str:
    """The run id where it is enough, else the path of the folder."""
    if store.folder.resolve().parent == _USUAL.resolve():
        return store.run_id
    return str(from_here(store.folder))


def run_word(store: RunStore) -> str:
    """The same, quoted for a shell."""
    return shlex.quote(run_name(store))
