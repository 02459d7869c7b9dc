"""What was typed to begin a run, or its last part: for whoever is told how to go on with it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from orchestrator.store import LOCK_FILE, PLAN, RunStore, from_here, json_object

KEY = "typed"  # of plan.json


@dataclass(frozen=True)
class Typed:
    """`experiment`: the file, as from the working folder of that time. `overrides`: KEY.PATH=VALUE of each --set."""

    experiment: str
    overrides: tuple[str, ...] = ()

    def shell(self, *options: str) -> str:
        """The words of a command behind its name, quoted; `options` come first, where a reader looks for them."""
        sets = [word for override in self.overrides for word in ("--set", override)]
        return shlex.join((self.experiment, *options, *sets))


def typed_left(store: RunStore) -> Typed | None:
    """None where the run does not say it, as an early version did not, or no longer."""
    found = json_object(store.folder / PLAN).get(KEY)
    if not isinstance(found, dict):
        return None
    experiment, overrides = found.get("experiment"), found.get("overrides")
    if not isinstance(experiment, str) or not isinstance(overrides, list):
        return None
    return Typed(experiment, tuple(map(str, overrides)))


def typed_or_lock(store: RunStore) -> Typed:
    """The file of the run folder can be run as well, where nothing in it is relative to where it lay."""
    return typed_left(store) or Typed(str(from_here(store.folder / LOCK_FILE)))
