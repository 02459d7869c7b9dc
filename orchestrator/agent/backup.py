"""Originals: copied aside before the first change of a file, kept until a restore was verified."""

from __future__ import annotations

import os
from typing import Iterable, Optional, Tuple

from . import durable, files, places
from .files import Found
from .journal import Journal
from .story import Backup
from .wire import AgentError


def folder_of(journal: Journal) -> str:
    return os.path.join(places.work_folder(journal.workdir, journal.run_id), "backup")


def back_up(journal: Journal, wanted: Iterable[Tuple[str, Optional[Found]]]) -> None:
    """The first backup wins: later contents are ours, only the first one is the original."""
    folder = folder_of(journal)
    places.private_way(os.path.dirname(folder), os.path.join(folder, "copy"))
    for path, found in wanted:
        if path in journal.story.backups:
            continue
        if found is None:
            made = files.missing_folders(path)
            journal.append("backup", path=path, sha256=None, mode=0, uid=0, gid=0, copy=None, made=made)
            continue
        copy = os.path.join(folder, found.sha256)
        if files.digest(files.look(copy)) != found.sha256:
            _write_copy(copy, found)
        journal.append(
            "backup", path=path, sha256=found.sha256, mode=found.mode, uid=found.uid, gid=found.gid, copy=copy
        )


def _write_copy(copy: str, found: Found) -> None:
    try:
        if os.path.lexists(copy):
            durable.remove("backup.drop", copy)
        durable.write_new("backup.write", copy, found.data)
        durable.sync_folder(os.path.dirname(copy))
    except OSError as error:
        raise AgentError(
            "no_space", "cannot write backup {}: {}".format(copy, error.strerror), path=copy
        ) from None


def read_copy(backup: Backup) -> Optional[bytes]:
    """The original bytes. Raises AgentError `dirty` when the backup is missing or damaged."""
    if backup.sha256 is None or backup.copy is None:
        return None
    try:
        found = files.look(backup.copy)
    except AgentError as error:
        raise AgentError("dirty", error.message, files=[backup.path]) from None
    if found is None or found.sha256 != backup.sha256:
        state = "missing" if found is None else "damaged"
        raise AgentError(
            "dirty", "the backup {} of {} is {}".format(backup.copy, backup.path, state), files=[backup.path]
        )
    return found.data


def drop(journal: Journal) -> None:
    """Only after a restore that was verified."""
    folder = folder_of(journal)
    if os.path.isdir(folder):
        durable.remove_tree("backup.drop", folder)
