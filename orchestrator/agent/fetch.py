"""The bulk channel: files out, compressed, resumable at any offset, each ending with the digest of the whole file."""

from __future__ import annotations

import hashlib
import os
import sys
import zlib
from typing import BinaryIO

from . import args, places
from .wire import AgentError, Message, decode, encode

_CHUNK_BYTES = 256 * 1024


def main() -> int:
    out = sys.stdout.buffer
    try:
        request = decode(sys.stdin.buffer.readline())
        wanted = args.objects(request, "files")
    except AgentError as error:
        out.write(encode({"error": error.message}))
        out.flush()
        return 1
    for item in wanted:
        send(item, out)
        out.flush()
    return 0


def send(item: Message, out: BinaryIO) -> None:
    """A file that grows meanwhile is sent as long as it was at the start, so that digest and bytes agree."""
    path = item.get("path")
    try:
        stream = open(places.expand(args.text(item, "path")), "rb")  # noqa: SIM115 - closed below
        offset = args.integer(item, "offset", 0)
    except (OSError, AgentError) as error:
        said = error.strerror if isinstance(error, OSError) else error.message
        out.write(encode({"path": path, "size": 0, "offset": 0, "error": said or "cannot be read"}))
        return
    with stream:
        size = os.fstat(stream.fileno()).st_size
        if not 0 <= offset <= size:
            offset = 0  # the copy over there is of another file: begin again
        out.write(encode({"path": path, "size": size, "offset": offset}))
        out.write(encode({"n": 0, "sha256": _send_bytes(stream, size, offset, out)}))


def _send_bytes(stream: BinaryIO, size: int, offset: int, out: BinaryIO) -> str:
    digest = hashlib.sha256()
    packer = zlib.compressobj(6)
    position = 0
    while position < size:
        data = stream.read(min(_CHUNK_BYTES, size - position))
        if not data:
            break  # it was cut short meanwhile; the digest tells
        digest.update(data)
        if position + len(data) > offset:
            _send_chunk(packer.compress(data[max(0, offset - position) :]), out)
        position += len(data)
    _send_chunk(packer.flush(), out)
    return digest.hexdigest()


def _send_chunk(data: bytes, out: BinaryIO) -> None:
    if data:
        out.write(encode({"n": len(data)}))
        out.write(data)
