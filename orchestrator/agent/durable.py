"""Every write that must survive a power cut goes through here, under a registered name.

A power-cut drill sets `DYNSPEC_TEST_KILL_AT=<name>:<before|after>[:<nth>]`: the process kills itself with SIGKILL right
before or after the nth write of that name. A test checks that no other module replaces, removes or syncs files.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from typing import Dict, Iterator, Optional

NAMES = frozenset(
    [
        "folder.make",
        "backup.write",
        "backup.drop",
        "ballast.write",
        "ballast.drop",
        "file.stage",
        "file.lend",
        "file.replace",
        "file.remove",
        "file.unstage",
        "file.folder",
        "file.unfolder",
        "bytecode.drop",
        "overlay.build",
        "overlay.write",
        "overlay.drop",
        "journal.create",
        "journal.mend",
        "journal.rotate",
        "journal.backup",
        "journal.intend",
        "journal.overlay",
        "journal.applied",
        "journal.starting",
        "journal.server",
        "journal.tree",
        "journal.stopped",
        "journal.restored",
        "journal.close",
    ]
)
KILL_VARIABLE = "DYNSPEC_TEST_KILL_AT"
_seen: Dict[str, int] = {}


@contextlib.contextmanager
def durable(name: str) -> Iterator[None]:
    """Marks one durable write; both edges of it are places where a drill may cut the power."""
    if name not in NAMES:
        raise ValueError("not a registered durable write: " + name)
    _seen[name] = _seen.get(name, 0) + 1
    _cut(name, "before")
    yield
    _cut(name, "after")


def _cut(name: str, edge: str) -> None:
    wanted = os.environ.get(KILL_VARIABLE)
    if not wanted:
        return
    at_name, at_edge, *nth = wanted.split(":")
    if (at_name, at_edge) == (name, edge) and _seen[name] == int(nth[0] if nth else 1):
        os.kill(os.getpid(), signal.SIGKILL)


def sync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(name: str, path: str, mode: int) -> None:
    with durable(name):
        os.mkdir(path, mode)
        sync_folder(os.path.dirname(path))


def write_new(
    name: str, path: str, data: bytes, mode: int = 0o600, uid: Optional[int] = None, gid: Optional[int] = None
) -> None:
    """A file that must not exist yet, synced; owner and mode are in place before the first byte is."""
    with durable(name):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                _own(stream.fileno(), mode, uid, gid)
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
        except BaseException:
            os.unlink(path)
            raise


def _own(descriptor: int, mode: int, uid: Optional[int], gid: Optional[int]) -> None:
    found = os.fstat(descriptor)
    new_uid = -1 if uid is None or uid == found.st_uid else uid
    new_gid = -1 if gid is None or gid == found.st_gid else gid
    if (new_uid, new_gid) != (-1, -1):
        os.fchown(descriptor, new_uid, new_gid)
    os.fchmod(descriptor, mode)


def append(name: str, descriptor: int, data: bytes) -> None:
    with durable(name):
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)


def truncate(name: str, descriptor: int, size: int) -> None:
    with durable(name):
        os.ftruncate(descriptor, size)
        os.fsync(descriptor)


def replace(name: str, source: str, target: str) -> None:
    with durable(name):
        os.replace(source, target)
        sync_folder(os.path.dirname(target))


def move(name: str, source: str, target: str, mode: int, uid: int, gid: int) -> None:
    """To another folder of the same file system, with the mode and owner it will have there; needs no space."""
    with durable(name):
        descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _own(descriptor, mode, uid, gid)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(source, target)
        for folder in (os.path.dirname(target), os.path.dirname(source)):
            sync_folder(folder)


def remove(name: str, path: str) -> None:
    with durable(name):
        os.unlink(path)
        sync_folder(os.path.dirname(path))


def remove_folder(name: str, path: str) -> None:
    """An empty one; raises OSError otherwise."""
    with durable(name):
        os.rmdir(path)
        sync_folder(os.path.dirname(path))


def remove_tree(name: str, path: str) -> None:
    """Links inside are removed, never followed."""
    with durable(name):
        shutil.rmtree(path)
        sync_folder(os.path.dirname(path))
