"""One file of the serving tree: looking at it, and replacing it without ever writing into it.

Installers hard-link packages, so a write in place would change other environments; a new file is renamed over instead.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
from typing import Iterable, List, NamedTuple, Optional, Union

from . import durable
from .story import Backup
from .wire import AgentError, Message, listed, sha256_hex

_FS_IOC_GETFLAGS = 0x80086601
_IMMUTABLE_OR_APPEND_ONLY = 0x10 | 0x20
_NEW_FILE_MODE = 0o644
_NEW_FOLDER_MODE = 0o755


class Found(NamedTuple):
    """A regular file as it lies there."""

    data: bytes
    sha256: str
    mode: int
    uid: int
    gid: int
    nlink: int

    def __repr__(self) -> str:
        return "Found({}, {} bytes)".format(self.sha256[:12], len(self.data))


def look(path: str) -> Optional[Found]:
    """None when there is no such file. Raises AgentError `mismatch` for a folder, link or device."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        code = "mismatch" if error.errno in (errno.ELOOP, errno.ENXIO) else "not_writable"
        raise AgentError(code, "cannot read {}: {}".format(path, error.strerror), path=path) from None
    info = os.fstat(descriptor)
    if not stat.S_ISREG(info.st_mode):
        os.close(descriptor)
        raise AgentError("mismatch", "{} is not a regular file".format(path), path=path)
    with os.fdopen(descriptor, "rb") as stream:
        data = stream.read()
    return Found(data, sha256_hex(data), stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid, info.st_nlink)


def digest(found: Optional[Found]) -> Optional[str]:
    return None if found is None else found.sha256


def short(sha256: Optional[str]) -> str:
    return "absent" if sha256 is None else sha256[:12]


def changed_error(strange: List[Message]) -> AgentError:
    """`strange`: {path, expected, found}, digests or None for no such file."""
    lines = [
        "{path} is {0}, expected {1}".format(short(item["found"]), short(item["expected"]), **item)
        for item in strange
    ]
    return AgentError("changed", listed("not the bytes this patch set was made for", lines), files=strange)


def why_not_writable(path: str, found: Optional[Found]) -> Optional[str]:
    """Why the file cannot be replaced with its owner kept, or None. Nothing is written to find out."""
    folder = standing_folder(path)
    if not os.path.isdir(folder):
        return "{} is not a folder".format(folder)
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        return "the file system is mounted read-only"
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        return "folder {} is not writable".format(folder)
    if _is_immutable(folder) or (found is not None and _is_immutable(path)):
        return "it is marked immutable (lsattr)"
    if found is None or os.geteuid() == 0:
        return None
    if found.uid != os.geteuid():
        return "it belongs to uid {} and that owner could not be kept".format(found.uid)
    if found.gid not in os.getgroups() and found.gid != os.getegid():
        return "it belongs to gid {} and that group could not be kept".format(found.gid)
    return None


def _is_immutable(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        raw = fcntl.ioctl(descriptor, _FS_IOC_GETFLAGS, struct.pack("l", 0))
        return bool(struct.unpack("l", raw)[0] & _IMMUTABLE_OR_APPEND_ONLY)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def standing_folder(path: str) -> str:
    """The innermost folder of `path` that exists: where new folders would be made."""
    folder = os.path.dirname(path)
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    return folder


def missing_folders(path: str) -> List[str]:
    """Folders that have to be made for `path`, outermost first."""
    missing: List[str] = []
    folder = os.path.dirname(path)
    while not os.path.lexists(folder):
        missing.insert(0, folder)
        folder = os.path.dirname(folder)
    return missing


def make_folders(folders: Iterable[str]) -> None:
    for folder in folders:
        if not os.path.isdir(folder):
            try:
                durable.make_folder("file.folder", folder, _NEW_FOLDER_MODE)
                os.chmod(folder, _NEW_FOLDER_MODE)  # whatever the umask is
            except OSError as error:
                raise _stage_error(folder, error) from None


def free_bytes(folder: str) -> int:
    info = os.statvfs(folder)
    return info.f_frsize * (info.f_bfree if os.geteuid() == 0 else info.f_bavail)


def staged_name(path: str, run_id: str) -> str:
    """Beside the target, hidden, and no name that Python would import."""
    return os.path.join(os.path.dirname(path), ".{}.dynspec-{}".format(os.path.basename(path), run_id))


def stage(path: str, data: bytes, like: Union[Found, Backup, None], run_id: str) -> str:
    """Writes the new content beside the target, with the mode, owner and extended attributes it will have."""
    name = staged_name(path, run_id)
    unstage(path, run_id)
    try:
        if like is None:
            durable.write_new("file.stage", name, data, _NEW_FILE_MODE)
        else:
            durable.write_new("file.stage", name, data, like.mode, like.uid, like.gid)
            _copy_attributes(path, name)
    except OSError as error:
        raise _stage_error(path, error) from None
    return name


def stage_copy(path: str, copy: str, like: Backup, run_id: str) -> str:
    """The same with a copy that lies elsewhere on this file system: it moves, and so needs no space. Raises OSError."""
    name = staged_name(path, run_id)
    durable.move("file.lend", copy, name, like.mode, like.uid, like.gid)
    _copy_attributes(path, name)
    return name


def _stage_error(path: str, error: OSError) -> AgentError:
    code = "no_space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "not_writable"
    return AgentError(code, "cannot write beside {}: {}".format(path, error.strerror), path=path)


def _copy_attributes(source: str, target: str) -> None:
    """Access lists and labels; a file system that has none is no error."""
    with contextlib.suppress(OSError):
        for name in os.listxattr(source, follow_symlinks=False):
            with contextlib.suppress(OSError):
                os.setxattr(
                    target, name, os.getxattr(source, name, follow_symlinks=False), follow_symlinks=False
                )


def unstage(path: str, run_id: str) -> bool:
    """Removes what `stage` left beside the target; a link or folder of that name is not ours and stays."""
    name = staged_name(path, run_id)
    try:
        found = os.lstat(name)
    except OSError:
        return False
    if stat.S_ISREG(found.st_mode):
        durable.remove("file.unstage", name)
        return True
    return False
