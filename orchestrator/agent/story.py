"""A journal's records, folded into the state they lead to. Reading only; `journal.py` writes."""

from __future__ import annotations

import json
import os
import re
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

from . import args
from .procs import Identity
from .wire import AgentError, Message

MARK_VARIABLE = "DYNSPEC_RUN"
_SHA256 = re.compile("[0-9a-f]{64}\\Z")
_MOST_PID = 1 << 22  # what the kernel allows
_MOST_MODE = 0o7777
_MOST_ID = (1 << 32) - 2  # of a user or group; the last one means "leave it"
_MOST_TICKS = 1 << 62


class Backup(NamedTuple):
    """The original of one file. `sha256` and `copy` are None for a file that did not exist.

    `made`: folders that did not exist either and are made for it, outermost first.
    """

    path: str
    sha256: Optional[str]
    mode: int
    uid: int
    gid: int
    copy: Optional[str]
    made: Tuple[str, ...] = ()


class Story:
    """A journal's records folded into the state they lead to."""

    def __init__(self) -> None:
        self.opened: Optional[Message] = None
        self.backups: Dict[str, Backup] = {}
        self.intended: Dict[str, Set[Optional[str]]] = {}
        self.overlaid = False
        self.looked: Dict[str, Optional[str]] = {}  # installed files behind an overlay, as they were
        self.set_name = "original"
        self.starting = False
        self.server: Optional[Identity] = None
        self.processes: Set[Identity] = set()
        self.bytecode_prefixes: Set[str] = set()
        self.restored = False
        self.closed: Optional[str] = None

    def fold(self, record: Message) -> None:
        """Raises KeyError, TypeError or ValueError for a record that is not one of ours, or not in its place.

        What is taken in here is acted on: processes are ended and files replaced by its word. So everything in it
        must have the shape that we write, and a damaged journal is left to a person.
        """
        if (self.opened is None) != (record["kind"] == "open") or self.closed is not None:
            raise ValueError("out of place: {!r:.40}".format(record["kind"]))
        _FOLDS[str(record["kind"])](self, record)

    def check(self, record: Message) -> None:
        """Raises AgentError `bad_request` for a record that could not be read back: it must not be written."""
        trial = Story()
        trial.opened = self.opened
        try:
            trial.fold(json.loads(json.dumps(record)))
        except ValueError as error:
            text = "this cannot be noted in the journal: {}".format(error)
            raise AgentError("bad_request", text) from None

    def _open(self, record: Message) -> None:
        for name in ("boot_id", "machine_id", "pid_namespace", "holder"):
            _text(record[name])
        _path(record["workdir"])
        run_id = record["run_id"]
        if not args.is_name(run_id):
            raise ValueError("not a run id: {!r:.60}".format(run_id))
        # Whatever carries the mark is ended: it must be one that nobody else has in his environment.
        if not re.match(re.escape("{}={}.".format(MARK_VARIABLE, run_id)) + "[0-9a-z]+\\Z", record["marker"]):
            raise ValueError("not a mark of ours: {!r:.60}".format(record["marker"]))
        _identity([record["guardian"]["pid"], record["guardian"]["start_time"]])
        self.opened = record

    def _backup(self, record: Message) -> None:
        path = _path(record["path"])
        sha256 = _digest(record["sha256"])
        copy = None if sha256 is None else _path(record["copy"])
        mode, uid, gid = (
            _number(record[name], most)
            for name, most in (("mode", _MOST_MODE), ("uid", _MOST_ID), ("gid", _MOST_ID))
        )
        made = tuple(_path(folder) for folder in record.get("made", ()))
        if not all(path.startswith(folder + "/") for folder in made):
            raise ValueError("a folder made for another file: {!r:.200}".format(made))
        self.backups.setdefault(path, Backup(path, sha256, mode, uid, gid, copy, made))
        self.restored = False

    def _intend(self, record: Message) -> None:
        _text(record["set"])
        for item in record["files"]:
            self.intended.setdefault(_path(item["path"]), set()).add(_digest(item["after_sha256"]))
        self._prefixes(record)
        self.restored = False

    def _overlay(self, record: Message) -> None:
        _path(record["source"])
        for item in record["files"]:
            self.looked.setdefault(_path(item["path"]), _digest(item["sha256"]))
        self.overlaid = True
        self.restored = False

    def _prefixes(self, record: Message) -> None:
        self.bytecode_prefixes.update(_path(prefix) for prefix in record.get("bytecode_prefixes", []))

    def _applied(self, record: Message) -> None:
        self.set_name = _text(record["set"])

    def _starting(self, record: Message) -> None:
        self.starting = True
        self.server = None
        self._prefixes(record)

    def _server(self, record: Message) -> None:
        self.server = _identity([record["pid"], record["start_time"]])
        self.processes.add(self.server)

    def _tree(self, record: Message) -> None:
        self.processes.update(_identity(pair) for pair in record["pids"])

    def _stopped(self, record: Message) -> None:
        self.starting = False
        self.server = None

    def _restored(self, record: Message) -> None:
        self.set_name = "original"
        self.restored = True

    def _close(self, record: Message) -> None:
        self.closed = _text(record["state"])


_FOLDS: Dict[str, Callable[[Story, Message], None]] = {
    "open": Story._open,
    "backup": Story._backup,
    "intend": Story._intend,
    "overlay": Story._overlay,
    "applied": Story._applied,
    "starting": Story._starting,
    "server": Story._server,
    "tree": Story._tree,
    "stopped": Story._stopped,
    "restored": Story._restored,
    "close": Story._close,
}


def _text(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("not text: {!r:.60}".format(value))
    return value


def _path(value: object) -> str:
    text = _text(value)
    os.fsencode(text)  # UnicodeEncodeError is a ValueError: a name that no file can have
    if not text.startswith("/") or os.path.normpath(text) != text:
        raise ValueError("not a whole path: {!r:.200}".format(text))
    return text


def _digest(value: object) -> Optional[str]:
    """A sha256, or None for "no such file"."""
    if value is None:
        return None
    if not _SHA256.match(_text(value)):
        raise ValueError("not a sha256: {!r:.80}".format(value))
    return str(value)


def _number(value: object, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError("not a number up to {}: {!r:.60}".format(most, value))
    return value


def _identity(pair: List[Any]) -> Identity:
    pid, start_time = pair
    if _number(pid, _MOST_PID) < 2:
        raise ValueError("not a process of ours: {}".format(pid))
    return (pid, _number(start_time, _MOST_TICKS))


def unreadable(path: str, why: str) -> AgentError:
    return AgentError(
        "dirty",
        "journal {} cannot be read ({}); nothing was touched. Put the files back by hand from the run's backup folder, "
        "then move the journal away".format(path, why),
        files=[path],
    )


def _in_words(error: Exception) -> str:
    if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError, RecursionError)):
        return "not a record"
    if isinstance(error, KeyError):
        return "it lacks {}, or is of a kind that this version does not write".format(error)
    return str(error) if type(error) is ValueError else "it has another shape than what is written here"


def read(path: str) -> Story:
    """Folds a journal file. A torn last line is ignored; anything else unreadable raises AgentError `dirty`."""
    try:
        with open(path, "rb") as stream:
            data = stream.read()
    except OSError as error:
        raise unreadable(path, error.strerror or str(error)) from None
    story = Story()
    whole = data[: data.rfind(b"\n") + 1]
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            story.fold(json.loads(line.decode("utf-8")))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise unreadable(path, "line {}: {}".format(number, _in_words(error))) from None
    if story.opened is None:
        raise unreadable(path, "it has no opening record" if whole else "it is empty")
    return story
