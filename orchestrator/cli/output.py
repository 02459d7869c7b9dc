"""Standard output that takes no more, as on a full disk, told as such; and one that was closed before the start."""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress
from typing import Any

from orchestrator.errors import OutputLost


class _Descriptor(io.FileIO):
    """Raises OutputLost once; what is written after that is dropped. A reader who is gone is no loss."""

    lost: OutputLost | None = None

    def write(self, data: Any, /) -> int:
        if self.lost is not None:
            return memoryview(data).nbytes
        try:
            return super().write(data)
        except OSError as error:
            if error.errno in (errno.EPIPE, errno.EIO):
                raise
            self.lost = OutputLost(error.errno, f"standard output cannot be written: {error.strerror}")
            raise self.lost from None


_out: list[_Descriptor] = []  # of this process, not yet answered for


def prepare() -> None:
    """A character that a terminal lacks ends nothing, nor does a closed stream; see the module for the rest."""
    if sys.stdout is None:
        sys.stdout = _nowhere(1)
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout = _told(sys.stdout)
    if sys.stderr is None:
        sys.stderr = _nowhere(2)
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors="backslashreplace")


def lost(*, answered: str = "") -> str:
    """What is to be said of it, once; empty where all went well, or where `answered` says the same."""
    with suppress(OSError):
        sys.stdout.flush()
    found = next((raw.lost.strerror for raw in _out if raw.lost is not None), None)
    if found is None:
        return ""
    _out.clear()
    return "" if found in answered else f"dynspec: {found}"


def _nowhere(descriptor: int) -> io.TextIOWrapper:
    """Also for children, and so that no file of ours is opened as this descriptor."""
    try:
        os.fstat(descriptor)
    except OSError:
        opened = os.open(os.devnull, os.O_WRONLY)
        os.dup2(opened, descriptor)
        if opened != descriptor:
            os.close(opened)
        os.set_inheritable(descriptor, True)
    return open(os.devnull, "w", encoding="utf-8")


def _told(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    """The same stream, with the same buffering."""
    stream.flush()
    raw = _Descriptor(stream.fileno(), "w", closefd=False)
    _out.append(raw)
    unbuffered = isinstance(stream.buffer, io.RawIOBase)
    return io.TextIOWrapper(
        raw if unbuffered else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
