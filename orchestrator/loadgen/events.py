"""Server-sent events out of a finished response, each with the stamp of the read that completed it."""

from __future__ import annotations

import re
from array import array
from itertools import accumulate
from typing import Iterator, Sequence, Tuple

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"
_NEXT = b"\n\ndata: "
Events = Tuple["list[bytes]", "list[int]"]  # the data of each event; the offset in the payload just past it


def payload(raw: bytes, segments: Sequence[int]) -> bytes:
    """The response body without transfer coding; cut short where the response was."""
    pairs = zip(segments[::2], segments[1::2])
    return b"".join([raw[start:end] for start, end in pairs])


def split_events(body: bytes) -> Events:
    """Every event that has data. Comments and other fields are skipped; an event cut off by the end counts."""
    if _is_plain(body):
        datas = body[6:-2].split(_NEXT)
        return datas, list(accumulate([len(data) + 8 for data in datas]))
    datas, ends = [], []
    for data, end in _by_lines(body):
        datas.append(data)
        ends.append(end)
    return datas, ends


def _is_plain(body: bytes) -> bool:
    """True when every line end is one that parts two events of one `data: ` line each, as SGLang sends them."""
    return (
        body.startswith(_NEXT[2:])
        and body.endswith(_NEXT[:2])
        and b"\r" not in body
        and body.count(b"\n") == 2 * body.count(_NEXT) + 2
    )


def _by_lines(body: bytes) -> "Iterator[tuple[bytes, int]]":
    """The reading that the specification describes, line by line."""
    data: "list[bytes]" = []
    position = len(_BOM) if body.startswith(_BOM) else 0
    while position < len(body):
        match = _LINE_END.search(body, position)
        end, after = match.span() if match else (len(body), len(body))
        line = body[position:end]
        position = after
        if not line:
            if data:
                yield b"\n".join(data), after
            data = []
        elif line.startswith(b"data:"):
            data.append(line[6:] if line[5:6] == b" " else line[5:])
        elif line == b"data":
            data.append(b"")
    if data:
        yield b"\n".join(data), len(body)


def stamps_of(
    ends: Sequence[int], segments: Sequence[int], read_ends: Sequence[int], stamps: Sequence[int]
) -> "array[int]":
    """For each payload offset in `ends` (rising), the stamp of the read that brought the byte before it."""
    found = array("q")
    segment = read = segment_from = 0
    for end in ends:
        last = end - 1
        while last - segment_from >= segments[segment + 1] - segments[segment]:
            segment_from += segments[segment + 1] - segments[segment]
            segment += 2
        at = segments[segment] + last - segment_from
        while read_ends[read] <= at:
            read += 1
        found.append(stamps[read])
    return found
