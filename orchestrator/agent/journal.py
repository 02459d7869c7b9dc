"""The journal of a run: what was changed on the node and what was started, written before the deed it speaks of."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
import time
from typing import Any

from . import durable, places, procs
from .story import Story, read
from .wire import AgentError, Message, encode

FILE_NAME = "journal.jsonl"
CLEAN = "clean"
_BALLAST = ".ballast"
_BALLAST_BYTES = 64 * 1024
_ON_THE_WAY_BACK = frozenset(["stopped", "restored", "close"])


def is_closed(path: str) -> bool:
    """A quick look at the last line, for registries with many finished runs."""
    try:
        with open(path, "rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - 4096))
            last = stream.read().rstrip(b"\n").rsplit(b"\n", 1)[-1]
        record = json.loads(last.decode("utf-8"))
        return isinstance(record, dict) and record.get("kind") == "close"
    except (OSError, ValueError, RecursionError):
        return False


class Journal:
    """An open journal. One process writes it and holds a lock on it; the lock tells the living from the dead."""

    def __init__(self, path: str, story: Story, descriptor: int) -> None:
        self.path = path
        self.story = story
        self._descriptor = descriptor
        self._lock = threading.Lock()

    @classmethod
    def create(cls, run_id: str, **opening: Any) -> Journal:
        """The file appears with its opening record or not at all. An older, closed journal of the run moves aside."""
        folder = places.private_folder(places.run_folder(run_id))
        path = os.path.join(folder, FILE_NAME)
        if os.path.lexists(path):
            _rotate(path)
        record = {"kind": "open", "run_id": run_id}
        record.update(opening)
        Story().check(record)
        try:
            _write_first(path, record)
        except OSError as error:
            raise _unwritten(path, error) from None
        return cls.reopen(path)

    @classmethod
    def reopen(cls, path: str) -> Journal:
        """For writing on, by the only process that may. Raises AgentError `busy` while another one has it."""
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _lock(descriptor, path)
            story = read(path)
            _drop_torn_line(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, story, descriptor)

    @property
    def run_id(self) -> str:
        return str(self.opening["run_id"])

    @property
    def opening(self) -> Message:
        assert self.story.opened is not None
        return self.story.opened

    @property
    def workdir(self) -> str:
        return str(self.opening["workdir"])

    def append(self, kind: str, **fields: Any) -> None:
        """Durable when it returns. Raises AgentError `no_space`, `failed` or `bad_request`; then it is as it was."""
        record = {"kind": kind}
        record.update(fields)
        with self._lock:
            if self.story.closed is not None:
                raise AgentError("failed", "journal {} is closed".format(self.path))
            self.story.check(record)
            try:
                self._write(kind, record)
            except OSError as error:
                if not (_is_full(error) and kind in _ON_THE_WAY_BACK and drop_ballast(self.path)):
                    raise _unwritten(self.path, error) from None
                self._write(kind, record)
            self.story.fold(record)

    def _write(self, kind: str, record: Message) -> None:
        size = os.fstat(self._descriptor).st_size
        try:
            durable.append("journal." + kind, self._descriptor, encode(record))
        except OSError:
            os.ftruncate(self._descriptor, size)  # half a line would make the rest unreadable
            raise

    def close_file(self) -> None:
        if self.story.closed is not None:
            drop_ballast(self.path)
        os.close(self._descriptor)


def _is_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _unwritten(path: str, error: OSError) -> AgentError:
    code = "no_space" if _is_full(error) else "failed"
    return AgentError(code, "cannot write journal {}: {}".format(path, error.strerror))


def _write_first(path: str, record: Message) -> None:
    fresh = path + ".new"
    if os.path.lexists(fresh):
        durable.remove("journal.mend", fresh)
    _write_ballast(path)
    durable.write_new("journal.create", fresh, encode(record))
    durable.replace("journal.create", fresh, path)


def _write_ballast(path: str) -> None:
    """Space that is given up when the disk is full, so that the way back can still be noted."""
    if not os.path.lexists(path + _BALLAST):
        durable.write_new("ballast.write", path + _BALLAST, b"\0" * _BALLAST_BYTES)


def drop_ballast(path: str) -> bool:
    """Whether there was some to drop."""
    try:
        durable.remove("ballast.drop", path + _BALLAST)
    except OSError:
        return False
    return True


def _rotate(path: str) -> None:
    if not is_closed(path):
        raise AgentError(
            "dirty", "journal {} is still open; restore that run first".format(path), files=[path]
        )
    number = 1
    while os.path.lexists("{}.{}".format(path, number)):
        number += 1
    durable.replace("journal.rotate", path, "{}.{}".format(path, number))


def _lock(descriptor: int, path: str) -> None:
    """Waits a little: somebody who only looks holds a shared lock for a moment."""
    for _ in range(20):
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        except OSError:
            return None  # a file system without locks: the node lock and the guardian's identity have to do
    raise AgentError("busy", "journal {} belongs to a living guardian".format(path))


def _drop_torn_line(descriptor: int) -> None:
    """So that the next record starts on a line of its own."""
    size = os.fstat(descriptor).st_size
    data = os.pread(descriptor, size, 0)
    whole = data.rfind(b"\n") + 1
    if whole != size:
        durable.truncate("journal.mend", descriptor, whole)


def is_live(path: str, story: Story) -> bool:
    """Whether the guardian that opened the journal still is there."""
    assert story.opened is not None
    guardian = story.opened["guardian"]
    same_kernel = story.opened["boot_id"] == procs.boot_id()
    same_pids = same_kernel and story.opened["pid_namespace"] == procs.pid_namespace()
    if same_pids and procs.is_alive((guardian["pid"], guardian["start_time"])):
        return True
    return _is_locked(path)


def _is_locked(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def same_node(opening: Message) -> bool:
    """False for a journal that another machine left in a shared home folder."""
    return bool(opening["boot_id"] == procs.boot_id() or opening["machine_id"] == procs.machine_id())
