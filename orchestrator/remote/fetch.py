"""Bulk files over a channel of their own: compressed, byte-exact, resumable (agent/protocol.md, "fetch")."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import ConnectionLost
from orchestrator.remote.bootstrap import FETCH_MARKER
from orchestrator.remote.decoding import decode
from orchestrator.remote.transport import Pipe

READ_BYTES = 262144


@dataclass(frozen=True)
class FetchFile:
    """A file to fetch from `offset` on; what lies before is there already."""

    path: str
    offset: int = 0


@dataclass(frozen=True)
class Fetched:
    """One file's end. `sha256` is of the whole file on the node, not of the part sent; `error` is set instead."""

    path: str
    size: int
    offset: int
    sha256: str | None
    error: str | None = None


Sink = Callable[[str, bytes], None]


def fetch(pipe: Pipe, label: str, files: Sequence[FetchFile], sink: Sink) -> tuple[Fetched, ...]:
    """Ask for `files`, pass their bytes to `sink(path, block)` in order.

    Raises ConnectionLost when it breaks off or carries damage, RemoteError for an answer of another shape.
    """
    request = {"files": [{"path": file.path, "offset": file.offset} for file in files]}
    pipe.write(json.dumps(request).encode("ascii") + b"\n")
    pipe.close_stdin()
    source = _Source(pipe, label)
    source.skip_noise()
    return tuple(_one_file(source, sink) for _ in files)


@dataclass(frozen=True)
class _Head:
    path: str
    size: int | None = None
    offset: int | None = None
    error: str | None = None


@dataclass(frozen=True)
class _Part:
    """`n` packed bytes follow; 0 ends the file."""

    n: int
    sha256: str | None = None
    error: str | None = None


def _one_file(source: _Source, sink: Sink) -> Fetched:
    head = decode(_Head, source.message(), "fetch")
    size, offset = head.size or 0, head.offset or 0
    if head.error:
        return Fetched(head.path, size, offset, None, head.error)
    inflate = zlib.decompressobj()
    while True:
        part = decode(_Part, source.message(), "fetch")
        if not part.n:
            return Fetched(head.path, size, offset, part.sha256, part.error)
        if inflate.eof:
            inflate = zlib.decompressobj()
        block = source.unpacked(inflate, part.n)
        if block:
            sink(head.path, block)


class _Source:
    """Lines and counted bytes from one stream."""

    def __init__(self, pipe: Pipe, label: str) -> None:
        self._pipe = pipe
        self._label = label
        self._buffer = bytearray()

    def skip_noise(self) -> None:
        for line in self._lines():
            if line.rstrip() == FETCH_MARKER:
                return

    def message(self) -> dict[str, Any]:
        line = next(self._lines())
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise ConnectionLost(f"{self._label}: the file channel carries foreign output: {line[:200]!r}")
        return value

    def unpacked(self, inflate: zlib._Decompress, size: int) -> bytes:
        """What the next `size` bytes hold."""
        while len(self._buffer) < size:
            self._more()
        packed = bytes(self._buffer[:size])
        del self._buffer[:size]
        try:
            return inflate.decompress(packed)
        except zlib.error as error:
            raise ConnectionLost(
                f"{self._label}: the file channel carries damaged bytes ({error})"
            ) from error

    def _lines(self) -> Iterator[bytes]:
        while True:
            end = self._buffer.find(b"\n")
            if end < 0:
                self._more()
                continue
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            yield line

    def _more(self) -> None:
        data = self._pipe.read(READ_BYTES)
        if not data:
            said = tuple(f"it said: {line}" for line in self._pipe.stderr_tail().splitlines()[-5:])
            raise ConnectionLost(f"{self._label}: the file channel ended early", details=said)
        self._buffer += data
