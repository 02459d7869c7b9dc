"""HTTP/1.1 responses: finding the end while bytes arrive, and the places of the payload for afterwards.

While the load runs, only what is needed to know where a response ends is looked at: the head once, then the size line
of each chunk. The places of the payload are noted, so that nothing has to be parsed again.
"""

from __future__ import annotations

import re
from array import array
from typing import Optional

_MAX_HEAD = 65536
_MAX_LINE = 4096
_MAX_BODY = 1 << 40  # far beyond any response; places in it still fit their arrays


class FramingError(ValueError):
    """The bytes are not an HTTP/1.1 response."""


class Framing:
    """One response. `feed` it after every read; true means that its last byte has come.

    Offsets count from the first byte of the response. `segments` holds start, end, start, end, ... of the payload; the
    last end may lie beyond what has come so far.
    """

    __slots__ = (
        "_at",
        "_chunked",
        "_in_trailer",
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
        self._at = 0  # everything before is understood; in a payload, where it will end
        self._chunked = False
        self._in_trailer = False

    def feed(self, raw: bytearray) -> bool:
        """`raw` is all that came so far. True once complete. Raises FramingError, also for bytes after the end."""
        if self.status is None:
            self._head(raw)
        if self.status is not None:
            if self._chunked:
                self._chunks(raw)
            else:
                self._plain(raw)
        if self.done and len(raw) > self._at:
            raise FramingError("bytes after the end of the response")
        return self.done

    def end_of_input(self, raw: bytearray) -> bool:
        """The connection ended: true when that is how this response was meant to end."""
        if self.until_close and not self.done:
            self.segments[1] = len(raw)
            self.done = True
        return self.done

    def _head(self, raw: bytearray) -> None:
        while self.status is None or self.status < 200:  # an interim one, such as 100 Continue, is skipped
            end = raw.find(b"\r\n\r\n", self._at)
            if end < 0:
                start = bytes(raw[self._at : self._at + 5])
                if len(raw) - self._at > _MAX_HEAD or start != b"HTTP/"[: len(start)]:
                    raise FramingError(f"not an HTTP response: {start!r}")
                self.status = None
                return
            self._read_head(raw[self._at : end].decode("latin-1"))
            self._at = end + 4

    def _read_head(self, head: str) -> None:
        lines = head.split("\r\n")
        words = lines[0].split(" ", 2)
        if not lines[0].startswith("HTTP/1.") or len(words) < 2 or not re.fullmatch("[0-9]{3}", words[1]):
            raise FramingError(f"not an HTTP/1 status line: {lines[0][:60]!r}")
        self.status = int(words[1])
        fields = [line.partition(":") for line in lines[1:]]
        self.headers = {name.strip().lower(): value.strip() for name, _, value in fields}
        connection = self.headers.get("connection", "").lower()
        self.keep_alive = connection != "close" and (lines[0][:8] != "HTTP/1.0" or connection == "keep-alive")
        self._chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()

    def _plain(self, raw: bytearray) -> None:
        if not self.segments:
            length = "0" if self.status in (204, 304) else self.headers.get("content-length", "")
            if length and not re.fullmatch("[0-9]{1,12}", length):
                raise FramingError(f"content-length is {length[:20]!r}")
            self.until_close = not length
            self.segments.extend((self._at, self._at + int(length or 0)))
            self._at = self.segments[1]
        if self.until_close:
            self._at = len(raw)
        else:
            self.done = len(raw) >= self._at

    def _chunks(self, raw: bytearray) -> None:
        at, come, segments = self._at, len(raw), self.segments
        while at < come and not self._in_trailer:
            line_end = raw.find(b"\r\n", at)
            if line_end < 0:
                self._refuse_long_line(come - at)
                break
            try:
                size = int(raw[at:line_end], 16)
            except ValueError:
                size = -1
            if size <= 0:
                size = _odd_size(raw[at:line_end])
            if size > _MAX_BODY:
                raise FramingError(f"chunk size is {bytes(raw[at : at + 20])!r}")
            at = line_end + 2
            if size == 0:
                self._in_trailer = True
                break
            segments.append(at)
            segments.append(at + size)
            at += size + 2
        self._at = at
        if self._in_trailer:
            self._trailer(raw)

    def _trailer(self, raw: bytearray) -> None:
        """Skip trailer fields; the empty line ends the response."""
        while not self.done:
            line_end = raw.find(b"\r\n", self._at)
            if line_end < 0:
                self._refuse_long_line(len(raw) - self._at)
                return
            self.done = line_end == self._at
            self._at = line_end + 2

    def _refuse_long_line(self, length: int) -> None:
        if length > _MAX_LINE:
            raise FramingError("chunk size line or trailer without an end")


def _odd_size(line: bytearray) -> int:
    """The size in a chunk's size line that is not a number above 0 alone."""
    digits = bytes(line.partition(b";")[0].strip())
    try:
        if digits.isalnum():
            return int(digits, 16)
    except ValueError:
        pass
    raise FramingError(f"chunk size is {bytes(line[:20])!r}")
