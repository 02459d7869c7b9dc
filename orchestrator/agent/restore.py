"""Puts every changed file back, from the journal alone; for the guardian, the next guardian and a person alike."""

from __future__ import annotations

import contextlib
import os
import re
from typing import List, NamedTuple, Optional

from . import backup as backup_files
from . import bytecode, durable, files, overlay
from .files import Found
from .journal import Journal
from .story import Backup, Story
from .wire import AgentError, Message, listed

_PATCH_MARK = re.compile(rb"#[^\n]*dynspec:\w")  # the comment of every inserted block


class Problem(NamedTuple):
    """`kind`: "foreign" where somebody else's edit is in the way; then `original` is a whole copy of what was there.

    `patched`: the file as it is now still holds a patch of ours.
    """

    path: str
    why: str
    kind: str = "other"
    original: Optional[str] = None
    patched: bool = False


class Restored(NamedTuple):
    """`problems` names every file that is not as it was; the others are, with mode and owner."""

    restored: List[str]
    problems: List[Problem]


def restore(journal: Journal) -> Restored:
    """A file that is neither the original nor written by us is somebody's work: it is refused and named."""
    done: List[str] = []
    problems: List[Problem] = []
    story = journal.story
    for path, backup in story.backups.items():
        try:
            files.unstage(path, journal.run_id)
            if _put_back(journal, backup):
                done.append(path)
        except Foreign as error:
            problems.append(error.problem)
        except AgentError as error:
            problems.append(Problem(path, error.message))
        except OSError as error:
            problems.append(Problem(path, "cannot put it back: {}".format(error.strerror)))
    bytecode.drop(story.backups, story.bytecode_prefixes)
    remove_made(journal)
    problems += [
        problem for problem in verify_original(journal) if problem.path not in {old.path for old in problems}
    ]
    left = overlay.remove(journal)
    if left is not None:
        problems.append(Problem(overlay.root_in(journal.workdir, journal.run_id), left))
    if not problems and (story.backups or story.overlaid):
        journal.append("restored", files=done)
    return Restored(done, problems)


def _put_back(journal: Journal, backup: Backup) -> bool:
    found = files.look(backup.path)
    current = files.digest(found)
    if current == backup.sha256:
        return False
    if current not in journal.story.intended.get(backup.path, set()):
        raise Foreign(journal, backup, found)
    if backup.sha256 is None:
        durable.remove("file.remove", backup.path)
        return True
    data = backup_files.read_copy(journal, backup)
    assert data is not None
    name = _stage(journal, backup, data)
    now = files.look(backup.path)
    if files.digest(now) != current:
        files.unstage(backup.path, journal.run_id)
        raise Foreign(journal, backup, now)
    durable.replace("file.replace", name, backup.path)
    return True


def _stage(journal: Journal, backup: Backup, data: bytes) -> str:
    try:
        return files.stage(backup.path, data, backup, journal.run_id)
    except AgentError as error:
        lent = backup_files.stage_lent(journal, backup) if error.code == "no_space" else None
        if lent is None:
            raise
        return lent


class Foreign(AgentError):
    """The file is neither the original nor what we wrote: an edit or an upgrade of somebody else."""

    def __init__(self, journal: Journal, backup: Backup, found: Optional[Found]) -> None:
        original = backup_files.whole_copy(journal, backup)
        patched = found is not None and holds_patch(found.data)
        why = "changed by somebody else (now {}, original {}); left as it is. The original is in {}{}".format(
            files.short(files.digest(found)),
            files.short(backup.sha256),
            original or ("(no such file before)" if backup.sha256 is None else "no backup any more"),
            ". It still holds a patch of dynspec" if patched else "",
        )
        super().__init__("dirty", "{} was {}".format(backup.path, why))
        self.problem = Problem(backup.path, why, "foreign", original, patched)


def holds_patch(data: bytes) -> bool:
    return _PATCH_MARK.search(data) is not None


def remove_made(journal: Journal) -> None:
    """Folders that were made for new files, innermost first; one that somebody put a file into stays."""
    made = {folder for backup in journal.story.backups.values() for folder in backup.made}
    for folder in sorted(made, key=len, reverse=True):
        for path in (os.path.join(folder, "__pycache__"), folder):
            with contextlib.suppress(OSError):
                if not os.listdir(path):
                    durable.remove_folder("file.unfolder", path)


def verify_original(journal: Journal) -> List[Problem]:
    """Bytes, mode and owner of every file in the journal against its original."""
    problems = []
    for backup in journal.story.backups.values():
        try:
            found = files.look(backup.path)
        except AgentError as error:
            problems.append(Problem(backup.path, error.message))
            continue
        if files.digest(found) != backup.sha256:
            problems.append(Problem(backup.path, "not the original bytes"))
        elif found is not None and (found.mode, found.uid, found.gid) != (
            backup.mode,
            backup.uid,
            backup.gid,
        ):
            problems.append(Problem(backup.path, "not the original mode or owner"))
        elif os.path.lexists(files.staged_name(backup.path, journal.run_id)):
            problems.append(Problem(backup.path, "a temporary file is left beside it"))
        elif any(os.path.lexists(folder) for folder in backup.made):
            problems.append(Problem(backup.path, "its folder was made by this run and now holds other files"))
    return problems


def changed_now(story: Story) -> List[str]:
    """Files that this run meant to change and that are not as they were. One that cannot be looked at counts."""
    changed = []
    for path in sorted(story.intended):
        try:
            if files.digest(files.look(path)) == story.backups[path].sha256:
                continue
        except (AgentError, KeyError):
            pass
        changed.append(path)
    return changed


def verify(journal: Journal) -> List[Message]:
    """What each file is now: original, patched (written by us) or foreign.

    Behind an overlay these are the installed files, which are never ours to write.
    """
    report: List[Message] = []
    for path, backup in list(journal.story.backups.items()):  # a deed may add some meanwhile
        try:
            current = files.digest(files.look(path))
        except AgentError:
            report.append({"path": path, "state": "foreign", "sha256": None})
            continue
        ours = journal.story.intended.get(path, set())
        state = "original" if current == backup.sha256 else "patched" if current in ours else "foreign"
        report.append({"path": path, "state": state, "sha256": current})
    for path, sha256 in list(journal.story.looked.items()):
        try:
            current = files.digest(files.look(path))
        except AgentError:
            report.append({"path": path, "state": "foreign", "sha256": None})
            continue
        state = "original" if current == sha256 else "foreign"
        report.append({"path": path, "state": state, "sha256": current})
    return report


def dirty_error(problems: List[Problem]) -> AgentError:
    lines = ["{}: {}".format(problem.path, problem.why) for problem in problems]
    return AgentError(
        "dirty",
        listed("not everything could be put back", lines),
        files=[problem._asdict() for problem in problems],
    )
