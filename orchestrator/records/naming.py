"""How a run is named in a command that somebody is advised to type."""

from __future__ import annotations

import shlex
from pathlib import Path

from orchestrator.store import RunStore, from_here

_USUAL = Path("results")  # where every command looks without --results


def run_word(store: RunStore) -> str:
    """The run id where it is enough, else the path of the folder; quoted for a shell."""
    if store.folder.parent == _USUAL.resolve():
        return store.run_id
    return shlex.quote(str(from_here(store.folder)))
