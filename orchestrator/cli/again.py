"""The command that was typed, as words: to be shown whole in an advice, or given to a process of its own."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from orchestrator.records.typed import Typed
from orchestrator.runner.options import RunOptions
from orchestrator.store import from_here


@dataclass(frozen=True)
class RunCommand:
    """What of `dynspec run` decides which run it is."""

    experiment: Path
    arms: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    results: Path = RunOptions.results

    def words(self, *options: str) -> tuple[str, ...]:
        """Behind `dynspec`; `options` come first, where a reader looks for them."""
        chosen = [word for arm in self.arms for word in ("--arm", arm)]
        chosen += [word for override in self.overrides for word in ("--set", override)]
        if self.results != RunOptions.results:
            chosen += ["--results", str(self.results)]
        return ("run", str(self.experiment), *options, *chosen)

    @property
    def typed(self) -> Typed:
        """What of it a run folder keeps."""
        return Typed(str(self.experiment), self.overrides)

    def resume(self, folder: Path) -> str:
        """What goes on with the run, or shows it while it is under way; for a person to type. By its id where it is
        enough."""
        listed = folder.resolve().parent == self.results.resolve()
        run = folder.name if listed else str(from_here(folder))
        return shlex.join(("dynspec", *self.words("--resume", run)))
