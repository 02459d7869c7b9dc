"""A journal's records, folded into the state they lead to. Reading only; `journal.py` writes."""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

from .procs import Identity
from .wire import AgentError, Message


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
        self.set_name = "original"
        self.starting = False
        self.server: Optional[Identity] = None
        self.processes: Set[Identity] = set()
        self.bytecode_prefixes: Set[str] = set()
        self.restored = False
        self.closed: Optional[str] = None

    def fold(self, record: Message) -> None:
        """Raises KeyError, TypeError or ValueError for a record that is not one of ours."""
        _FOLDS[str(record["kind"])](self, record)

    def _open(self, record: Message) -> None:
        for name in ("run_id", "boot_id", "workdir", "marker", "machine_id", "pid_namespace", "holder"):
            _text(record[name])
        _identity([record["guardian"]["pid"], record["guardian"]["start_time"]])
        self.opened = record

    def _backup(self, record: Message) -> None:
        sha256, copy = record["sha256"], record["copy"]
        path = _text(record["path"])
        numbers = [_number(record[name]) for name in ("mode", "uid", "gid")]
        if sha256 is not None:
            _text(sha256)
            _text(copy)
        made = tuple(_text(folder) for folder in record.get("made", ()))
        self.backups.setdefault(path, Backup(path, sha256, numbers[0], numbers[1], numbers[2], copy, made))
        self.restored = False

    def _intend(self, record: Message) -> None:
        for item in record["files"]:
            sha256 = item["after_sha256"]
            self.intended.setdefault(_text(item["path"]), set()).add(
                None if sha256 is None else _text(sha256)
            )
        self.bytecode_prefixes.update(_text(prefix) for prefix in record.get("bytecode_prefixes", []))
        self.restored = False

    def _applied(self, record: Message) -> None:
        self.set_name = _text(record["set"])

    def _starting(self, record: Message) -> None:
        self.starting = True
        self.server = None
        self.bytecode_prefixes.update(_text(prefix) for prefix in record.get("bytecode_prefixes", []))

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


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("not a number: {!r:.60}".format(value))
    return value


def _identity(pair: List[Any]) -> Identity:
    pid, start_time = (_number(value) for value in pair)
    if pid < 2:
        raise ValueError("not a process of ours: {}".format(pid))
    return (pid, start_time)


def unreadable(path: str, why: str) -> AgentError:
    return AgentError(
        "dirty",
        "journal {} cannot be read ({}); nothing was touched. Put the files back by hand from the run's backup folder, "
        "then move the journal away".format(path, why),
        files=[path],
    )


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
            raise unreadable(path, "line {}: {}: {}".format(number, type(error).__name__, error)) from None
    if story.opened is None:
        raise unreadable(path, "it has no opening record" if whole else "it is empty")
    return story
