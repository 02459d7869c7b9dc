"""guardian.log: one line a deed. Never an environment value, never an argument of the server."""

from __future__ import annotations

import os
import time


def utc_now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class LogFile:
    def __init__(self, path: str) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self.descriptor = os.open(path, flags, 0o600)

    def write(self, text: str) -> None:
        """A full disk must not stop an unwind, so a log line may be lost."""
        line = "{} {}\n".format(utc_now(), " ".join(text.split()))
        try:
            os.write(self.descriptor, line.encode("utf-8", "replace"))
        except OSError:
            pass
