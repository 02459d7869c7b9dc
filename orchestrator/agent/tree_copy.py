"""A folder copied file by file, sharing blocks where the file system can. Links are followed: the copy holds none."""

from __future__ import annotations

import os
import stat
from typing import Callable, Iterator, NamedTuple, Tuple

from .wire import AgentError

_BLOCK_BYTES = 1 << 20
_CACHE = "__pycache__"

Abort = Callable[[], bool]
Above = Tuple[Tuple[int, int], ...]  # (device, inode) of the folders on the way down


class Measure(NamedTuple):
    """`stamp` changes when a source file is added, removed or written; caches of bytecode do not count in it."""

    files: int
    size_bytes: int
    stamp: Tuple[int, int, int]


def measure(folder: str) -> Measure:
    """Raises AgentError `mismatch` for a tree that cannot be read."""
    count, size, sources, source_size, newest = 0, 0, 0, 0, 0
    for entry in _files(folder, ()):
        info = entry.stat()
        count, size = count + 1, size + info.st_size
        if os.path.basename(os.path.dirname(entry.path)) != _CACHE:
            sources, source_size = sources + 1, source_size + info.st_size
            newest = max(newest, info.st_mtime_ns)
    return Measure(count, size, (sources, source_size, newest))


def _files(folder: str, above: Above) -> Iterator["os.DirEntry[str]"]:
    below = _enter(folder, above)
    for entry in _entries(folder):
        if entry.is_dir():
            yield from _files(entry.path, below)
        elif entry.is_file():
            yield entry


def copy(source: str, target: str, abort: Abort, above: Above = ()) -> None:
    """Makes `target` (0700, its files 0600 or 0700) with the times of the originals, so that their bytecode holds.

    Broken links, sockets and devices are left out: nothing is imported from them. Raises OSError for what cannot be
    written, AgentError `mismatch` for what cannot be read, `lost` when `abort` says so.
    """
    below = _enter(source, above)
    os.mkdir(target, 0o700)
    for entry in _entries(source):
        if abort():
            raise AgentError("lost", "the guardian is giving the node back")
        path = os.path.join(target, entry.name)
        if entry.is_dir():
            copy(entry.path, path, abort, below)
        elif entry.is_file():
            _copy_file(entry.path, path)


def _enter(folder: str, above: Above) -> Above:
    info = os.stat(folder)
    here = (info.st_dev, info.st_ino)
    if here in above:
        raise AgentError("mismatch", "{} is a link to a folder above it".format(folder), path=folder)
    return (*above, here)


def _entries(folder: str) -> "list[os.DirEntry[str]]":
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        raise _unreadable(folder, error) from None


def _copy_file(source: str, target: str) -> None:
    try:
        reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(source, error) from None
    try:
        info = os.fstat(reading)
        mode = 0o700 if info.st_mode & stat.S_IXUSR else 0o600
        writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            _pour(reading, writing, info.st_size)
            os.utime(writing, ns=(info.st_atime_ns, info.st_mtime_ns))
        finally:
            os.close(writing)
    finally:
        os.close(reading)


def _pour(reading: int, writing: int, size: int) -> None:
    """First the way that shares blocks; what it cannot do, or does not do to the end, is read and written."""
    try:
        while size > 0:
            done = os.copy_file_range(reading, writing, size)
            if not done:
                break
            size -= done
    except OSError:
        pass  # other file systems, old kernels; a full disk is met again below
    while True:
        block = memoryview(os.read(reading, _BLOCK_BYTES))
        if not block:
            return
        while block:
            block = block[os.write(writing, block) :]


def _unreadable(path: str, error: OSError) -> AgentError:
    return AgentError("mismatch", "cannot read {}: {}".format(path, error.strerror), path=path)
