"""Small files that a server reads at its start. They lie in the run's own work folder and are removed with it."""

from __future__ import annotations

import os

from . import places
from .journal import Journal
from .wire import AgentError, Message, sha256_hex

MOST_BYTES = 1 << 20


def put(journal: Journal, path: str, data: bytes) -> Message:
    """Writes `data` (0600), over an earlier file of that name; nothing outside of the run's work folder."""
    target = places.private_way(places.work_folder(journal.workdir, journal.run_id), places.expand(path))
    if len(data) > MOST_BYTES:
        raise AgentError("bad_request", "{} bytes, and at most {} are taken".format(len(data), MOST_BYTES))
    try:
        with os.fdopen(places.open_private(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as stream:
            stream.write(data)
    except OSError as error:
        raise AgentError(
            "not_writable", "cannot write {}: {}".format(target, error.strerror), path=target
        ) from None
    return {"path": target, "sha256": sha256_hex(data)}
