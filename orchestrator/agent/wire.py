"""Messages: one JSON object a line, ASCII-escaped. The same framing on the SSH channel and on the guardian's socket."""

from __future__ import annotations

import base64
import binascii
import errno
import hashlib
import json
import socket
import struct
import threading
import traceback
import zlib
from typing import Any, BinaryIO, Dict, Iterator, List, Sequence

PROTOCOL = 1
SEND_TIMEOUT_S = 5
MAX_LINE_BYTES = 64 * 1024 * 1024
TOO_LONG = b"\0\n"  # stands for a line beyond the limit; no message
MAX_UNPACKED_BYTES = 256 * 1024 * 1024
CODES = frozenset(
    [
        "bad_request",
        "unknown_verb",
        "busy",
        "dirty",
        "not_found",
        "changed",
        "not_writable",
        "no_space",
        "mismatch",
        "timeout",
        "exited",
        "failed",
        "unsupported",
        "lost",
    ]
)

Message = Dict[str, Any]


class AgentError(Exception):
    """What a request is refused or failed with. `code` is one of `CODES`; `details` is JSON data for the caller."""

    def __init__(self, code: str, message: str, **details: Any) -> None:
        if code not in CODES:
            raise ValueError("not a code of the protocol: " + code)
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details

    def as_json(self) -> Message:
        return {"code": self.code, "message": self.message, "details": self.details}


def as_agent_error(error: Exception, doing: str, code: str = "failed") -> AgentError:
    """Whatever went wrong while `doing`, as an answer for people. `code`: of what has none of its own.

    What nobody thought of is a fault of ours: it is said as one, with its traceback in `details.fault`.
    """
    if isinstance(error, AgentError):
        return error
    if isinstance(error, OSError) and error.strerror:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT) and code == "failed"
        where = " {}".format(error.filename) if error.filename else ""
        return AgentError("no_space" if full else code, "{}: {}{}".format(doing, error.strerror, where))
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    text = "a fault of dynspec's agent on the node, while it was doing {!r:.40}".format(doing)
    return AgentError(code, text, fault="".join(lines).splitlines())


def error_from_json(data: Message) -> AgentError:
    """The error that another process of ours reported, to be passed on as it is."""
    code = data.get("code")
    details = data.get("details")
    return AgentError(
        code if code in CODES else "failed",
        str(data.get("message", "no message")),
        **(details if isinstance(details, dict) else {}),
    )


def listed(head: str, items: Sequence[str]) -> str:
    """`head: item`; of several each on a line of its own, since they hold paths."""
    if len(items) == 1:
        return "{}: {}".format(head, items[0])
    return "\n".join(["{}:".format(head), *("  " + item.replace("\n", "\n  ") for item in items)])


def all_of(problems: List[AgentError], **details: Any) -> AgentError:
    """Several problems as one `dirty` error."""
    for problem in problems:
        for name, value in problem.details.items():
            both = name in details and isinstance(details[name], list) and isinstance(value, list)
            details[name] = details[name] + value if both else value
    return AgentError("dirty", "\n".join(problem.message for problem in problems), **details)


def encode(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n"


def decode(line: bytes) -> Message:
    """One message. Raises AgentError `bad_request` for anything that is not a JSON object."""
    if line == TOO_LONG:
        raise AgentError("bad_request", "a message is longer than {} bytes".format(MAX_LINE_BYTES))
    try:
        message = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise AgentError("bad_request", "not a JSON line: {}".format(error)) from None
    if not isinstance(message, dict):
        raise AgentError("bad_request", "a message is a JSON object, not {}".format(type(message).__name__))
    return message


def pack(data: bytes) -> Message:
    return {"z": base64.b64encode(zlib.compress(data, 6)).decode("ascii")}


def unpack_text(text: object) -> bytes:
    """The bytes of a `z` value. Raises AgentError `bad_request` when damaged or beyond the size limit."""
    if not isinstance(text, str):
        raise AgentError("bad_request", "z must be text, not {}".format(type(text).__name__))
    try:
        opener = zlib.decompressobj()
        data = opener.decompress(base64.b64decode(text, validate=True), MAX_UNPACKED_BYTES)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise AgentError("bad_request", "z cannot be unpacked: {}".format(error)) from None
    if opener.unconsumed_tail or not opener.eof:
        raise AgentError("bad_request", "z is cut short or larger than {} bytes".format(MAX_UNPACKED_BYTES))
    return data


def sha256_hex(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read_lines(stream: BinaryIO) -> Iterator[bytes]:
    """Whole lines of a stream until its end; a torn last line is not a message and is dropped.

    A line beyond the limit is skipped to its end and TOO_LONG is given in its place, so that the next one counts.
    """
    while True:
        line = stream.readline(MAX_LINE_BYTES)
        too_long = False
        while line and not line.endswith(b"\n"):
            if len(line) < MAX_LINE_BYTES:
                return
            too_long = True
            line = stream.readline(MAX_LINE_BYTES)
        if not line:
            return
        if too_long:
            yield TOO_LONG
        elif line.strip():
            yield line


class Link:
    """A connected stream socket that speaks messages. Sending is safe from several threads."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        # A frozen reader must not freeze the writer too: the guardian has a lease to keep.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_TIMEOUT_S, 0))
        self._lock = threading.Lock()
        self._stream = sock.makefile("rb")

    def send(self, message: Message) -> bool:
        """False when the other end is gone; that is found out by reading, so it is no error here."""
        data = encode(message)
        try:
            with self._lock:
                self._sock.sendall(data)
        except OSError:
            return False
        return True

    def messages(self) -> Iterator[Message]:
        try:
            for line in read_lines(self._stream):
                yield decode(line)
        except OSError:
            return

    def close(self) -> None:
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._sock.close()
