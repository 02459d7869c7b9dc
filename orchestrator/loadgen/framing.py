"""HTTP/1.1 responses: finding the end while bytes arrive, and the payload afterwards.

While the load runs, only what is needed to know where a response ends is looked at: the head once, then the size line
of each chunk. The places of the payload are noted, so that nothing has to be parsed again.
"""

from __future__ import annotations

from array import array
from typing import Optional

_MAX_HEAD = 65536
_MAX_SIZE_LINE = 4096


class FramingError(ValueError):
    """The bytes are not an HTTP/1.1 response."""


class Framing:
    """One response. `feed` what arrives; true means that its last byte has been seen.

    Offsets count from the first byte of the response. `segments` holds start, end, start, end, ... of the payload.
    """

    __slots__ = (
        "_chunked",
        "_line",
        "_need",
        "_offset",
        "_trailer",
        "done",
        "headers",
        "keep_alive",
        "segments",
        "status",
        "until_close",
    )

    def __init__(self) -> None:
        self.status: Optional[int] = None
        self.headers: "dict[str, str]" = {}
        self.keep_alive = True
        self.until_close = False
        self.done = False
        self.segments = array("q")
        self._offset = 0  # of the first byte not yet fed
        self._line = b""  # a head, size line or trailer that is not complete yet
        self._need = 0  # payload bytes still to skip, with the line end of a chunk
        self._chunked = False
        self._trailer = False

    def feed(self, data: bytes) -> bool:
        """True once the response is complete. Raises FramingError, also for bytes after the end."""
        if self.done:
            raise FramingError("bytes after the end of the response")
        if self._line:
            self._offset -= len(self._line)
            data = self._line + data
            self._line = b""
        position = 0
        if self.status is None:
            position = self._head(data)
        if self.status is not None:
            position = self._chunks(data, position) if self._chunked else self._plain(data, position)
            if self.done and position < len(data):
                raise FramingError("bytes after the end of the response")
        self._offset += len(data)
        return self.done

    def end_of_input(self) -> bool:
        """The connection ended: true when that is how this response was meant to end."""
        if self.until_close and not self.done:
            self.segments[-1] = self._offset
            self.done = True
        return self.done

    def _head(self, data: bytes) -> int:
        position = 0
        while True:
            end = data.find(b"\r\n\r\n", position)
            if end < 0:
                start = data[position : position + 5]
                if len(data) - position > _MAX_HEAD or start != b"HTTP/"[: len(start)]:
                    raise FramingError(f"not an HTTP response: {start!r}")
                self._line = data[position:]
                return len(data)
            self._read_head(data[position:end].decode("latin-1"))
            position = end + 4
            if self.status is None or self.status >= 200:
                return position
            self.status = None  # interim, such as 100 Continue: the real head follows
            self.headers = {}

    def _read_head(self, head: str) -> None:
        lines = head.split("\r\n")
        words = lines[0].split(" ", 2)
        if not lines[0].startswith("HTTP/1.") or len(words) < 2 or not words[1].isdigit():
            raise FramingError(f"not an HTTP/1 status line: {lines[0][:60]!r}")
        self.status = int(words[1])
        for line in lines[1:]:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        connection = self.headers.get("connection", "").lower()
        self.keep_alive = connection != "close" and (lines[0][:8] != "HTTP/1.0" or connection == "keep-alive")
        self._chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()

    def _plain(self, data: bytes, position: int) -> int:
        if not self.segments:
            start = self._offset + position
            length = "0" if self.status in (204, 304) else self.headers.get("content-length", "")
            if length and not length.isdigit():
                raise FramingError(f"content-length is {length[:20]!r}")
            self.until_close = not length
            self._need = int(length or 0)
            self.segments.extend((start, start + self._need))
        if self.until_close:
            return len(data)
        taken = min(self._need, len(data) - position)
        self._need -= taken
        self.done = self._need == 0
        return position + taken

    def _chunks(self, data: bytes, position: int) -> int:
        length = len(data)
        offset = self._offset
        segments = self.segments
        need = self._need
        while position < length:
            if need:
                left = length - position
                if need > left:
                    self._need = need - left
                    return length
                position += need
                need = 0
                continue
            if self._trailer:
                break
            line_end = data.find(b"\r\n", position)
            if line_end < 0:
                self._hold(data, position)
                position = length
                break
            try:
                size = int(data[position:line_end], 16)
            except ValueError:
                size = -1
            if size < 0:
                size = _odd_size(data[position:line_end])
            position = line_end + 2
            if size == 0:
                self._trailer = True
                break
            start = offset + position
            segments.append(start)
            segments.append(start + size)
            need = size + 2
        self._need = need
        return self._end(data, position) if self._trailer else position

    def _end(self, data: bytes, position: int) -> int:
        """Skip trailer lines; the empty one ends the response."""
        while position < len(data):
            line_end = data.find(b"\r\n", position)
            if line_end < 0:
                self._hold(data, position)
                return len(data)
            empty = line_end == position
            position = line_end + 2
            if empty:
                self.done = True
                break
        return position

    def _hold(self, data: bytes, position: int) -> None:
        self._line = data[position:]
        if len(self._line) > _MAX_SIZE_LINE:
            raise FramingError("chunk size line without an end")


def _odd_size(line: bytes) -> int:
    """The size of a chunk whose size line is not a number alone."""
    digits = line.partition(b";")[0].strip()
    if not digits.isalnum():
        raise FramingError(f"chunk size is {line[:20]!r}")
    try:
        return int(digits, 16)
    except ValueError:
        raise FramingError(f"chunk size is {line[:20]!r}") from None
