"""Originals: copied aside before the first change of a file, kept until a restore was verified.

Twice: in the run's work folder, and beside its journal. A work folder may lie on a scratch disk that somebody empties.
"""

from __future__ import annotations

import os
from typing import Iterable, List, Optional, Tuple

from . import durable, files, places, pristine
from .files import Found
from .journal import Journal
from .story import Backup
from .wire import AgentError, listed


def folders_of(journal: Journal) -> List[str]:
    work = places.work_folder(journal.workdir, journal.run_id)
    return [os.path.join(folder, "backup") for folder in (work, places.run_folder(journal.run_id))]


def back_up(journal: Journal, wanted: Iterable[Tuple[str, Optional[Found]]]) -> None:
    """The first backup wins: later contents are ours, only the first one is the original."""
    folders = folders_of(journal)
    for folder in folders:
        places.private_way(os.path.dirname(folder), os.path.join(folder, "copy"))
    for path, found in wanted:
        if path in journal.story.backups:
            continue
        if found is None:
            made = files.missing_folders(path)
            journal.append("backup", path=path, sha256=None, mode=0, uid=0, gid=0, copy=None, made=made)
            continue
        copies = [os.path.join(folder, found.sha256) for folder in folders]
        for copy in copies:
            if files.digest(files.look(copy)) != found.sha256:
                _write_copy(copy, found)
        journal.append(
            "backup",
            path=path,
            sha256=found.sha256,
            mode=found.mode,
            uid=found.uid,
            gid=found.gid,
            copy=copies[0],
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


def read_copy(journal: Journal, backup: Backup) -> Optional[bytes]:
    """The original bytes. Raises AgentError `dirty`, naming the way out, when no backup of them is whole."""
    if backup.sha256 is None:
        return None
    lost = []
    for copy in copies_of(journal, backup):
        data, state = _read(copy, backup.sha256)
        if data is not None:
            return data
        lost.append("{} ({})".format(copy, state))
    way = "it must have the sha256 {} again{}; after that, restore closes the run".format(
        backup.sha256, _way_back(backup.path)
    )
    head = "no backup of {} is left".format(backup.path)
    raise AgentError("dirty", listed(head, [*lost, way]), files=[backup.path])


def copies_of(journal: Journal, backup: Backup) -> List[str]:
    """Where the original lies; the place that the journal names comes first."""
    if backup.sha256 is None or backup.copy is None:
        return []
    beside = [os.path.join(folder, backup.sha256) for folder in folders_of(journal)]
    return list(dict.fromkeys([backup.copy, *beside]))


def whole_copy(journal: Journal, backup: Backup) -> Optional[str]:
    """The first copy that still holds the original, for a person."""
    wanted = backup.sha256 or ""
    return next((copy for copy in copies_of(journal, backup) if _read(copy, wanted)[0] is not None), None)


def stage_lent(journal: Journal, backup: Backup) -> Optional[str]:
    """The staged file where the disk is full: one of two whole copies, moved. None when none can be spared.

    The last copy stays where it is: what is staged is thrown away when the power fails.
    """
    wanted = backup.sha256 or ""
    whole = [copy for copy in copies_of(journal, backup) if _read(copy, wanted)[0] is not None]
    for copy in whole if len(whole) > 1 else ():
        try:
            return files.stage_copy(backup.path, copy, backup, journal.run_id)
        except OSError:  # on another file system, as a rule: the other copy may lie on this one
            continue
    return None


def _read(copy: str, sha256: str) -> "Tuple[Optional[bytes], str]":
    """The bytes, or what is wrong with them."""
    try:
        found = files.look(copy)
    except AgentError as error:
        return None, error.message
    if found is None:
        return None, "missing"
    return (found.data, "") if found.sha256 == sha256 else (None, "damaged")


def _way_back(path: str) -> str:
    command = pristine.command_to_reset(path)
    return "" if command is None else ": {}".format(command)


def drop(journal: Journal) -> None:
    """Only after a restore that was verified."""
    for folder in folders_of(journal):
        if os.path.isdir(folder):
            durable.remove_tree("backup.drop", folder)
