"""Brings the serving tree to exactly one patch set: check everything, back up, note it down, only then replace."""

from __future__ import annotations

import os
from typing import Dict, List, NamedTuple, Optional

from . import args, backup, bytecode, durable, files, places, restore
from .files import Found
from .journal import Journal
from .story import Backup
from .wire import AgentError, Message, listed, sha256_hex, unpack_text

_SPACE_MARGIN_BYTES = 1024 * 1024


class Wanted(NamedTuple):
    """One file of a patch set. None stands for "no such file"."""

    path: str
    before_sha256: Optional[str]
    after_sha256: Optional[str]
    data: Optional[bytes]


class Change(NamedTuple):
    path: str
    found: Optional[Found]
    after: Optional[bytes]
    like: Optional[Backup]  # where mode and owner come from when the file is not there now

    @property
    def after_sha256(self) -> Optional[str]:
        return None if self.after is None else sha256_hex(self.after)


def parse(items: List[Message]) -> List[Wanted]:
    """The wire's list of files, checked against itself. Raises AgentError `bad_request`."""
    wanted = []
    for item in items:
        path = places.expand(args.text(item, "path"))
        after_sha256 = args.optional_text(item, "after_sha256")
        data = None if item.get("z") is None else unpack_text(item["z"])
        if (None if data is None else sha256_hex(data)) != after_sha256:
            raise AgentError(
                "bad_request", "the content sent for {} does not have its after_sha256".format(path)
            )
        wanted.append(Wanted(_resolve(path), args.optional_text(item, "before_sha256"), after_sha256, data))
    if len({item.path for item in wanted}) != len(wanted):
        raise AgentError("bad_request", "two entries name the same file (after links are followed)")
    return wanted


def _resolve(path: str) -> str:
    real = os.path.realpath(path)
    if os.path.islink(path) and not os.path.lexists(real):
        raise AgentError("mismatch", "{} is a link to {}, which does not exist".format(path, real), path=path)
    return real


def apply(journal: Journal, set_name: str, wanted: List[Wanted], prefixes: List[str]) -> Message:
    """Files changed earlier and not wanted now go back to their original. Returns the changed and the kept paths.

    Raises AgentError `changed`, `not_writable`, `no_space` or `mismatch` with nothing touched.
    """
    story = journal.story
    changes, kept = _plan(journal, wanted)
    prefixes = sorted({*prefixes, *story.bytecode_prefixes})
    _check_writable(changes, prefixes)
    _check_space(journal, changes)
    if not changes:
        return {"changed": [], "kept": kept}
    backup.back_up(journal, [(change.path, change.found) for change in changes])
    paths = [change.path for change in changes]
    try:
        _change(journal, set_name, changes, prefixes)
    except (AgentError, OSError) as error:
        _undo(journal, paths, error)
        raise
    bytecode.drop(paths, prefixes)
    restore.remove_made(journal)
    journal.append("applied", set=set_name)
    return {"changed": paths, "kept": kept}


def _change(journal: Journal, set_name: str, changes: List[Change], prefixes: List[str]) -> None:
    """All new contents lie ready before the first file changes, so a full disk is found out in time."""
    staged: Dict[str, str] = {}
    for change in changes:
        if change.after is not None:
            like = change.found or change.like
            files.make_folders(journal.story.backups[change.path].made)
            staged[change.path] = files.stage(change.path, change.after, like, journal.run_id)
    journal.append(
        "intend",
        set=set_name,
        files=[{"path": change.path, "after_sha256": change.after_sha256} for change in changes],
        bytecode_prefixes=prefixes,
    )
    for change in changes:
        _replace(change, staged)


def _undo(journal: Journal, paths: List[str], error: Exception) -> None:
    """After a failure half way: no staged file stays, and what was replaced goes back to its original."""
    for path in paths:
        files.unstage(path, journal.run_id)
    if any(path in journal.story.intended for path in paths):
        result = restore.restore(journal)
        if result.problems:
            raise restore.dirty_error(result.problems) from error
    else:
        restore.remove_made(journal)


def _plan(journal: Journal, wanted: List[Wanted]) -> "tuple[List[Change], List[str]]":
    changes: List[Change] = []
    kept: List[str] = []
    strange: List[Message] = []
    for item in [*wanted, *_originals(journal, wanted)]:
        found = files.look(item.path)
        current = files.digest(found)
        allowed = _allowed(journal, item)
        if current == item.after_sha256:
            kept.append(item.path)
        elif current in allowed:
            changes.append(Change(item.path, found, item.data, journal.story.backups.get(item.path)))
        else:
            strange.append({"path": item.path, "expected": item.before_sha256, "found": current})
    if strange:
        raise files.changed_error(strange)
    return changes, kept


def _allowed(journal: Journal, item: Wanted) -> "set[Optional[str]]":
    """The contents that may be replaced: the original, or what this run wrote itself."""
    old = journal.story.backups.get(item.path)
    if old is None:
        return {item.before_sha256}
    if old.sha256 != item.before_sha256:
        raise files.changed_error([{"path": item.path, "expected": item.before_sha256, "found": old.sha256}])
    return {old.sha256} | journal.story.intended.get(item.path, set())


def _originals(journal: Journal, wanted: List[Wanted]) -> List[Wanted]:
    listed = {item.path for item in wanted}
    return [
        Wanted(path, old.sha256, old.sha256, backup.read_copy(journal, old))
        for path, old in journal.story.backups.items()
        if path not in listed
    ]


def _check_writable(changes: List[Change], prefixes: List[str]) -> None:
    problems = []
    for change in changes:
        why = files.why_not_writable(change.path, change.found)
        if why is None and bytecode.undroppable(change.path, prefixes):
            why = "its cached bytecode cannot be removed"
        if why is not None:
            problems.append({"path": change.path, "why": why})
    if problems:
        lines = ["{path}: {why}".format(**problem) for problem in problems]
        raise AgentError("not_writable", listed("cannot replace", lines), files=problems)


def _check_space(journal: Journal, changes: List[Change]) -> None:
    needs: Dict[str, int] = {}
    backups_at = [
        places.work_folder(journal.workdir, journal.run_id),
        places.run_folder(journal.run_id),
    ]
    for change in changes:
        folder = files.standing_folder(change.path)
        needs[folder] = needs.get(folder, 0) + len(change.after or b"")
        if change.path not in journal.story.backups and change.found is not None:
            for place in backups_at:
                needs[place] = needs.get(place, 0) + len(change.found.data)
    for folder, size in needs.items():
        have = files.free_bytes(folder)
        if have < size + _SPACE_MARGIN_BYTES:
            raise AgentError(
                "no_space",
                "{:.1f} MiB needed in {} to put the files of a patch set in place, {:.1f} MiB free".format(
                    (size + _SPACE_MARGIN_BYTES) / 2**20, folder, have / 2**20
                ),
                path=folder,
            )


def _replace(change: Change, staged: Dict[str, str]) -> None:
    current = files.digest(files.look(change.path))
    if current != files.digest(change.found):
        raise files.changed_error(
            [{"path": change.path, "expected": files.digest(change.found), "found": current}]
        )
    if change.after is None:
        durable.remove("file.remove", change.path)
    else:
        durable.replace("file.replace", staged[change.path], change.path)
