"""What a dead guardian left: processes are stopped, files put back, the journal closed. Needs the node's lock."""

from __future__ import annotations

import os
import signal
import time
from typing import List, NamedTuple, Optional, Set

from . import backup, ending, journal, places, procs, restore
from .journal import Journal
from .procs import Identity
from .story import Story, read, unreadable
from .wire import AgentError, Message, all_of

_STOP_S = 10.0
_LAST_BREATH_S = 5.0


class Entry(NamedTuple):
    """One unfinished journal of the registry. `problem` stands for a story that cannot be read."""

    run_id: str
    path: str
    story: Optional[Story]
    problem: Optional[AgentError]

    @property
    def live(self) -> bool:
        return self.story is not None and journal.is_live(self.path, self.story)

    @property
    def elsewhere(self) -> bool:
        """Left by another machine that shares this home folder: its files are not here."""
        return (
            self.story is not None
            and self.story.opened is not None
            and not journal.same_node(self.story.opened)
        )


def unfinished() -> List[Entry]:
    entries = []
    for run_id in places.run_ids():
        path = os.path.join(places.run_folder(run_id), journal.FILE_NAME)
        if not os.path.lexists(path) or journal.is_closed(path):
            continue
        try:
            story = read(path)
            _check_place(run_id, path, story)
        except AgentError as error:
            entries.append(Entry(run_id, path, None, error))
            continue
        if story.closed is None:
            entries.append(Entry(run_id, path, story, None))
    return entries


def _check_place(run_id: str, path: str, story: Story) -> None:
    """A copy of another run's folder speaks of that run's files and processes."""
    assert story.opened is not None
    if story.opened["run_id"] != run_id:
        raise unreadable(path, "it is the journal of run {run_id}".format(**story.opened))


def facts() -> List[Message]:
    """JournalFacts of every unfinished journal of this node."""
    return [_fact(entry) for entry in unfinished() if not entry.elsewhere]


def _fact(entry: Entry) -> Message:
    story = entry.story
    opened = story.opened if story is not None else None
    server = story.server if story is not None else None
    return {
        "run_id": entry.run_id,
        "path": entry.path,
        "state": "live" if entry.live else "dead",
        "files_changed": restore.changed_now(story) if story is not None else [],
        "server_pid": server[0] if server is not None else None,
        "same_boot": opened is not None and opened["boot_id"] == procs.boot_id(),
    }


def running_pids() -> Set[int]:
    """Pids of everything that unfinished runs of this user have started and that is alive."""
    found: Set[int] = set()
    for entry in unfinished():
        if entry.story is not None and entry.story.starting and _pids_are_ours(entry.story.opened or {}):
            found |= {pid for pid, _ in ours(entry.story)}
    return found


def recover_all(keep_foreign: bool = False) -> List[Message]:
    """Recovers every dead journal of this node; the caller holds the lock, so no living guardian holds the node.

    Raises AgentError when a run could not be cleaned (`dirty`), after all others were; `details.recovered` has those.
    """
    recovered: List[Message] = []
    problems: List[AgentError] = []
    for entry in reversed(unfinished()):
        if entry.elsewhere:
            continue
        try:
            if entry.problem is not None:
                raise entry.problem
            wait_for_death(entry)
            recovered.append(recover(entry.path, keep_foreign))
        except AgentError as error:
            problems.append(error)
    if problems:
        raise all_of(problems, recovered=recovered)
    return recovered


def wait_for_death(entry: Entry) -> None:
    """A guardian that could not clean up gives the lock back a moment before it ends; its journal is then dead."""
    deadline = time.monotonic() + _LAST_BREATH_S
    while entry.live:
        if time.monotonic() >= deadline:
            raise AgentError(
                "busy", "the guardian of run {} lives, but not with this lock".format(entry.run_id)
            )
        time.sleep(0.05)


def recover(path: str, keep_foreign: bool = False) -> Message:
    """Raises AgentError `dirty` naming what could not be put back; the rest was.

    `keep_foreign` gives up files that somebody else changed meanwhile (an upgrade): they stay, the journal is closed.
    """
    opened = Journal.reopen(path)
    try:
        stopped, survivors = stop_processes(opened)
        result = restore.restore(opened)
        if survivors is not None:
            raise survivors
        if result.problems and not keep_foreign:
            raise restore.dirty_error(result.problems)
        if not result.problems:
            backup.drop(opened)
        opened.append("close", state=journal.CLEAN if not result.problems else "foreign files kept")
    finally:
        opened.close_file()
    return {
        "run_id": opened.run_id,
        "restored": result.restored,
        "stopped": stopped,
        "kept": [problem.path for problem in result.problems],
        "patched": [problem.path for problem in result.problems if problem.patched],
    }


def stop_processes(opened: Journal) -> "tuple[List[int], Optional[AgentError]]":
    """Ends what the dead guardian had started; the error names survivors, so that files can be put back first.

    After a reboot, or from another container, recorded pids mean nothing and nothing is signalled.
    """
    story = opened.story
    if not story.starting or not _pids_are_ours(opened.opening):
        return [], None

    def gentle(alive: Set[Identity]) -> None:
        if story.server is not None:
            procs.send_group(story.server[0], alive, signal.SIGTERM)
            return
        for identity in alive:  # the guardian died before it could note which one the server is
            ending.terminate(identity)

    ended = ending.end(lambda: ours(story), _STOP_S, gentle, leader=story.server)
    if ended.survivors:
        text = "processes of run {} did not end: {}".format(
            opened.run_id, ", ".join(map(str, ended.survivors))
        )
        return ended.stopped, AgentError("dirty", text, survivors=ended.survivors)
    opened.append("stopped", exit_code=None, signal=None)
    return ended.stopped, None


def _pids_are_ours(opening: Message) -> bool:
    same_kernel = opening.get("boot_id") == procs.boot_id()
    return same_kernel and opening.get("pid_namespace") == procs.pid_namespace()


def ours(story: Story) -> Set[Identity]:
    """Alive processes of a run: noted in its journal, or carrying its mark in their environment, and all below them."""
    assert story.opened is not None
    mark = str(story.opened["marker"])
    processes = procs.snapshot()
    roots = procs.alive_in(processes, story.processes)
    me = os.geteuid()
    for stat in processes.values():
        if procs.owner(stat.pid) == me and procs.environment_holds(stat.pid, mark):
            roots.add(stat.identity)
    below = procs.descendants(processes, [pid for pid, _ in roots])
    found = roots | {processes[pid].identity for pid in below}
    return {identity for identity in procs.alive_in(processes, found) if identity[0] not in procs.protected()}
