"""Where things lie on the node, and private folders and sockets in them."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import sys
from typing import Iterator, List, Optional

from . import durable
from .wire import AgentError

# Names of our own variables; none of them reaches the server.
HOME_VARIABLE = "DYNSPEC_HOME"
LOCK_VARIABLE = "DYNSPEC_LOCK_NAME"
# A CI runner ends whatever process carries these when its job ends.
CI_VARIABLES = frozenset(["RUNNER_TRACKING_ID"])


def home() -> str:
    """The registry of journals and the uploaded files; one per user, whatever `workdir` is."""
    return os.environ.get(HOME_VARIABLE) or os.path.join(os.path.expanduser("~"), ".dynspec")


def agent_folder() -> str:
    return os.path.join(home(), "agent")


def runs_folder() -> str:
    return os.path.join(home(), "runs")


def run_folder(run_id: str) -> str:
    return os.path.join(runs_folder(), run_id)


def guardian_socket(run_id: str) -> str:
    return os.path.join(run_folder(run_id), "guardian.sock")


def guardian_log(run_id: str) -> str:
    return os.path.join(run_folder(run_id), "guardian.log")


def work_folder(workdir: str, run_id: str) -> str:
    return os.path.join(expand(workdir), run_id)


def expand(path: str) -> str:
    """A path from the wire as an absolute path; only a leading `~` or `~/` is special."""
    if path == "~" or path.startswith("~/"):
        path = os.path.expanduser("~") + path[1:]
    if not os.path.isabs(path):
        raise AgentError("bad_request", "a path must be absolute or start with ~/: {!r}".format(path))
    return os.path.normpath(path)


def private_folder(path: str) -> str:
    """Makes `path` (0700) and missing parents. An existing folder must be ours alone: no link, no other writer."""
    try:
        _make_parents(os.path.dirname(path))
        why = why_replaceable(path)
        if not os.path.lexists(path):
            with contextlib.suppress(FileExistsError):
                durable.make_folder("folder.make", path, 0o700)
        found = os.lstat(path)
    except OSError as error:
        raise AgentError(
            "not_writable", "cannot make folder {}: {}".format(path, error.strerror), path=path
        ) from None
    if why is not None:
        raise AgentError("not_writable", "{} is no place for private files: {}".format(path, why), path=path)
    if not stat.S_ISDIR(found.st_mode):
        raise AgentError("not_writable", "{} is in the way: not a folder".format(path), path=path)
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise AgentError(
            "not_writable", "{} is not ours alone: foreign owner or writers".format(path), path=path
        )
    return path


def why_replaceable(path: str) -> Optional[str]:
    """How anybody could put something else in the place of `path`, or None: a folder above it that all may write in
    (without the sticky bit), or a link on the way that another user made."""
    for way in {path, os.path.realpath(os.path.dirname(path)) + "/"}:
        above = os.path.dirname(way)
        while True:
            found = os.lstat(above)
            if stat.S_ISLNK(found.st_mode) and found.st_uid not in (0, os.geteuid()):
                return "{} is a link of uid {}".format(above, found.st_uid)
            if (
                stat.S_ISDIR(found.st_mode)
                and found.st_mode & stat.S_IWOTH
                and not found.st_mode & stat.S_ISVTX
            ):
                return "everybody may replace what lies in {} (chmod +t prevents that)".format(above)
            if above == os.path.dirname(above):
                break
            above = os.path.dirname(above)
    return None


def private_way(folder: str, path: str) -> str:
    """Makes and checks each folder from `folder`, a run's own, down to the one that `path` lies in; returns `path`.

    Raises AgentError `bad_request` for a path that is not below, `not_writable` for a link or foreign folder on it.
    """
    if not path.startswith(folder + os.sep):
        raise AgentError("bad_request", "{} is not below {}".format(path, folder), path=path)
    private_folder(folder)
    for part in os.path.relpath(os.path.dirname(path), folder).split(os.sep):
        if part != ".":
            folder = private_folder(os.path.join(folder, part))
    return path


def open_private(path: str, flags: int) -> int:
    """Opens (or makes, 0600) a file in a folder that is ours alone, looked at through its descriptor: whatever is put
    in the folder's place meanwhile is not followed. Raises OSError."""
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(folder)
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise PermissionError(errno.EPERM, "its folder is not ours alone", path)
        flags |= os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(os.path.basename(path), flags, 0o600, dir_fd=folder)
    finally:
        os.close(folder)


def _make_parents(path: str) -> None:
    """Each missing parent is synced too: a backup must not vanish with its folder."""
    if os.path.isdir(path):
        return
    _make_parents(os.path.dirname(path))
    with contextlib.suppress(FileExistsError):
        durable.make_folder("folder.make", path, 0o755)


def run_ids() -> List[str]:
    """Every run that the registry knows, newest name last."""
    try:
        return sorted(
            entry.name for entry in os.scandir(runs_folder()) if entry.is_dir(follow_symlinks=False)
        )
    except FileNotFoundError:
        return []


def own_python() -> List[str]:
    """The interpreter of our own processes, deaf to the user's environment and site packages as this one is."""
    return [sys.executable, "-I", "-S"]


def agent_file() -> str:
    """The zipapp (or package folder) this code was started from."""
    return os.path.abspath(sys.argv[0])


@contextlib.contextmanager
def short_socket_path(path: str) -> Iterator[str]:
    """A name for a unix socket that fits the kernel's 108 bytes however deep its folder lies."""
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield "/proc/self/fd/{}/{}".format(folder, os.path.basename(path))
    finally:
        os.close(folder)


def listen_private(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    with short_socket_path(path) as name:
        sock.bind(name)
    os.chmod(path, 0o600)
    sock.listen(16)
    return sock


def connect_private(path: str, timeout_s: float = 5.0) -> socket.socket:
    """Raises OSError when nobody listens there."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(timeout_s)
    try:
        with short_socket_path(path) as name:
            sock.connect(name)
    except OSError:
        sock.close()
        raise
    sock.settimeout(None)
    return sock
