"""Small files that a server reads at its start. They lie in the run's own work folder and are removed with it."""

from __future__ import annotations

import os

from . import places
from .journal import Journal
from .wire import AgentError, Message, sha256_hex

MOST_BYTES = 1 << 20


def put(journal: Journal, path: str, data: bytes) -> Message:
    """Writes `data` (0600), over an earlier file of that name; nothing outside of the run's work folder."""
    target = places.expand(path)
    folder = places.work_folder(journal.workdir, journal.run_id)
    if not target.startswith(folder + os.sep):
        raise AgentError("bad_request", "{} is not below {}".format(target, folder), path=target)
    if len(data) > MOST_BYTES:
        raise AgentError("bad_request", "{} bytes, and at most {} are taken".format(len(data), MOST_BYTES))
    for parent in _between(folder, target):
        places.private_folder(parent)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(target, flags, 0o600), "wb") as stream:
            stream.write(data)
    except OSError as error:
        raise AgentError(
            "not_writable", "cannot write {}: {}".format(target, error.strerror), path=target
        ) from None
    return {"path": target, "sha256": sha256_hex(data)}


def _between(folder: str, target: str) -> "list[str]":
    """`folder` and each folder on the way to `target`: none of them may be a link or somebody else's."""
    parts = os.path.relpath(os.path.dirname(target), folder).split(os.sep)
    found = [folder]
    for part in parts:
        if part != ".":
            found.append(os.path.join(found[-1], part))
    return found
