"""Named files that are read only where they are files: a pipe of that name would be waited for without end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_plain(path: Path) -> bytes:
    """All of a regular file, or of one that a link leads to. Raises OSError, also for what is no file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opening a pipe would wait for its writer
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            what = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
            raise OSError(errno.EINVAL, f"{what}, not a file", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)
