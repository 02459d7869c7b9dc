"""Files of the tree that unfinished runs have changed: nothing can be said of the tree by what stands in them now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from orchestrator.errors import NodeDirty
from orchestrator.model.experiment import Node as NodeChoice
from orchestrator.model.facts import Facts, Pristine
from orchestrator.path_lists import few
from orchestrator.runner.restore import restore_command


def changed_by_runs(facts: Facts) -> dict[str, str]:
    """Package-relative path -> the run that changed it and has not put it back; of the files that were asked for."""
    paths = {fact.absolute: fact.path for fact in facts.tree.files} if facts.tree is not None else {}
    return {
        paths[changed]: journal.run_id
        for journal in facts.journals
        for changed in journal.files_changed
        if changed in paths
    }


def refuse_changed(facts: Facts, choice: NodeChoice, own_run: str | None = None) -> None:
    """Raises NodeDirty where a run that nobody drives any more has left files changed that a plan would edit.

    A live run is refused before (`plan.refuse_locked`); a run itself restores first, under the lock.
    """
    left = {path: run_id for path, run_id in changed_by_runs(facts).items() if run_id != own_run}
    if left:
        raise NodeDirty(
            f"run {next(iter(left.values()))} left {choice.host} changed ({few(sorted(left))}); the next run restores "
            "it first",
            restore_command=restore_command(choice),
            details=("what fits can be told of the original files alone; to have them back now:",),
        )


def tree_words(pristine: Pristine, facts: Facts) -> Iterator[str]:
    """What differs from the installed files, and by whom: an unfinished run's own changes are nobody's handwork."""
    ours = changed_by_runs(facts)
    runs = {run_id: sorted(path for path in ours if ours[path] == run_id) for run_id in ours.values()}
    for run_id, paths in runs.items():
        yield f"changed by run {run_id}, which has not given the node back: {few(paths)}"
    rest = tuple(item for item in pristine.changed if item.path not in ours)
    count = pristine.changed_count - (len(pristine.changed) - len(rest))
    if count or not ours:
        yield replace(pristine, changed=rest, changed_count=count).words()
