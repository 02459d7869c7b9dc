"""Folders of runs that are over. Most are removed by the controller once it has their logs; the rest is removed here.

The rule: a run whose journal was closed clean is removed when it left no log, or 7 days after it was closed. Until then
its logs can still be collected. What is open, cannot be read, belongs to another machine, or was closed with somebody's
edits kept (its originals lie there) stays until a person removes it.
"""

from __future__ import annotations

import os
import shutil
import time
from typing import List, Optional

from . import journal, places, story
from .wire import AgentError

KEPT_S = 7 * 86400.0
_LOG_FOLDERS = ("logs", "load")


def clear(own_run: Optional[str] = None) -> List[str]:
    """Removes what the rule lets go; returns the run ids. The caller holds the lock, so no run is under way.

    Tidying is a courtesy: what cannot be removed is left, and no run fails for it.
    """
    cleared = []
    for run_id in places.run_ids():
        if run_id == own_run:
            continue
        try:
            workdir = _workdir_of(run_id)
            if workdir is not None and _may_go(run_id, workdir):
                remove(run_id, workdir)
                cleared.append(run_id)
        except (AgentError, OSError):
            continue
    return cleared


def remove(run_id: str, workdir: str) -> None:
    """The registry's folder goes last: it alone tells where the other one is."""
    for folder in (places.work_folder(workdir, run_id), places.run_folder(run_id)):
        if os.path.isdir(folder) and not os.path.islink(folder):
            shutil.rmtree(folder)


def _workdir_of(run_id: str) -> Optional[str]:
    """Of a run that was closed clean on this node; None for any other."""
    path = os.path.join(places.run_folder(run_id), journal.FILE_NAME)
    if not journal.is_closed(path):
        return None
    told = story.read(path)
    if told.closed != journal.CLEAN or told.opened is None or told.opened["run_id"] != run_id:
        return None
    return str(told.opened["workdir"]) if journal.same_node(told.opened) else None


def _may_go(run_id: str, workdir: str) -> bool:
    closed_s = os.stat(os.path.join(places.run_folder(run_id), journal.FILE_NAME)).st_mtime
    work = places.work_folder(workdir, run_id)
    left = any(os.path.isdir(os.path.join(work, name)) for name in _LOG_FOLDERS)
    return not left or time.time() - closed_s > KEPT_S
