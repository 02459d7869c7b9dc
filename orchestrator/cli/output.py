"""Standard output that takes no more, as on a full disk, told as such; one that nobody reads; and a closed one.

A reader who goes away ends a command that only shows something, quietly. A run goes on without the screen.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from contextlib import suppress
from typing import Any

from orchestrator.errors import OutputLost

_UNREAD = (errno.EPIPE, errno.EIO)  # the pipe's reader, or the terminal, is gone
# What our own texts have beyond ASCII; anything else, such as a path, is escaped.
_SPELLED = {
    "\N{PLUS-MINUS SIGN}": "+-",
    "\N{HORIZONTAL ELLIPSIS}": "...",
    "\N{BOX DRAWINGS LIGHT HORIZONTAL}": "-",
}
_SPELLED |= {"\N{MIDDLE DOT}": "-", "\N{DEGREE SIGN}": " ", "\N{REPLACEMENT CHARACTER}": "?"}


def _spell(error: UnicodeError) -> tuple[str, int]:
    """A codec's error handler: one character at a time, since an escape needs its own error."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    spelled = _SPELLED.get(error.object[error.start])
    if spelled is not None:
        return spelled, error.start + 1
    error.end = error.start + 1
    escaped, end = codecs.backslashreplace_errors(error)
    return str(escaped), end


codecs.register_error("dynspec.spell", _spell)


def draws(character: str) -> bool:
    """Whether standard output has it."""
    try:
        character.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


class _Descriptor(io.FileIO):
    """Raises OutputLost once; what is written after that is dropped. A reader who is gone is no loss."""

    lost: OutputLost | None = None
    unread = False  # from some moment on
    outlived = False  # neither ends anything: see `outlive_screen`

    def write(self, data: Any, /) -> int:
        if self.lost is None and not self.unread:
            try:
                return super().write(data)
            except OSError as error:
                self._ended(error)
        return memoryview(data).nbytes

    def _ended(self, error: OSError) -> None:
        unread = error.errno in _UNREAD
        if not unread:
            self.lost = OutputLost(error.errno, f"standard output cannot be written: {error.strerror}")
        if not self.outlived:
            raise self.lost or error from None
        self.unread = unread
        why = self.lost.strerror if self.lost is not None else "nobody reads standard output any more"
        with suppress(OSError):
            os.write(2, f"dynspec: {why}; the run goes on without it\n".encode())


class _Errors(io.FileIO):
    """Standard error: where it takes nothing, nothing can be told, and that changes no exit code."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


_out: list[_Descriptor] = []  # of this process, not yet answered for


def prepare() -> None:
    """A character that a terminal lacks ends nothing, nor does a closed stream; see the module for the rest."""
    if sys.stdout is None:
        sys.stdout = _nowhere(1)
    elif isinstance(sys.stdout, io.TextIOWrapper):
        raw = _Descriptor(sys.stdout.fileno(), "w", closefd=False)
        _out.append(raw)
        sys.stdout = _through(raw, sys.stdout)
    if sys.stderr is None:
        sys.stderr = _nowhere(2)
    elif isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = _through(_Errors(sys.stderr.fileno(), "w", closefd=False), sys.stderr)


def outlive_screen() -> None:
    """From now on a screen that ends, ends nothing else: hours of measuring are not given up for a `| head`."""
    for raw in _out:
        raw.outlived = True


def unread() -> bool:
    """Whether the reader of standard output went away since `outlive_screen`."""
    return any(raw.unread for raw in _out)


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


def _through(raw: io.FileIO, stream: io.TextIOWrapper) -> io.TextIOWrapper:
    """The same stream, with the same buffering."""
    stream.flush()
    unbuffered = isinstance(stream.buffer, io.RawIOBase)
    return io.TextIOWrapper(
        raw if unbuffered else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors="dynspec.spell",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
