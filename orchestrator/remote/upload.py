"""Files for the node that can wait until they are needed: over a channel of their own, after the agent runs."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.errors import ConnectionFailed
from orchestrator.plain_text import clean
from orchestrator.remote import bootstrap
from orchestrator.remote.bootstrap import Blob, Boot
from orchestrator.remote.transport import Pipe

READ_BYTES = 65536


def put(pipe: Pipe, label: str, blobs: Sequence[Blob]) -> None:
    """Store `blobs` beside the agent. `pipe` runs `boot_command`. Raises ConnectionFailed with what the node said."""
    said: list[bytes] = []
    buffer = b""
    sent = False
    while data := pipe.read(READ_BYTES):
        *lines, buffer = (buffer + data).split(b"\n")
        said += lines
        boot = next(filter(None, map(Boot.parse, lines)), None)
        if boot is not None and not sent:
            pipe.write(bootstrap.upload([blob for blob in blobs if not boot.has(blob)], None))
            sent = True
    what = f"{label}: {', '.join(blob.name for blob in blobs)} could not be put on the node"
    failed = [value for line in said if (value := bootstrap.marked(line, bootstrap.FAIL_MARKER)) is not None]
    if failed and isinstance(failed[0], dict) and failed[0].get("message"):
        full = failed[0].get("code") == bootstrap.NO_SPACE
        raise ConnectionFailed(
            f"{what}: {clean(str(failed[0]['message']))}", help=bootstrap.FREE_SOME_SPACE if full else ""
        )
    if failed or not sent:
        heard = [line.decode("utf-8", "replace") for line in said[-5:]] + pipe.stderr_tail().splitlines()[-5:]
        raise ConnectionFailed(what, details=tuple(f"it said: {line}" for line in heard if line.strip()))
