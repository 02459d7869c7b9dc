"""Lists of files that people can take in: the folder, a few names and how many more. Whole lists are for `--json`."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

SHOWN = 3


def few(paths: Sequence[str], *, where: str = "") -> str:
    """`a, b, c and 16 more`; one more than `SHOWN` is shown too. `where`: how to get all, in brackets."""
    if len(paths) <= SHOWN + 1:
        return ", ".join(paths)
    tail = f" ({where})" if where else ""
    return f"{', '.join(paths[:SHOWN])} and {len(paths) - SHOWN} more{tail}"


def below(paths: Sequence[str], *, where: str = "") -> str:
    """Absolute paths by the folder that they have in common: `19 files below /x: a, b, c and 16 more`."""
    folder = posixpath.commonpath(paths) if len(paths) > 1 else ""
    if folder in ("", "/"):
        return few(paths, where=where)
    names = [posixpath.relpath(path, folder) for path in paths]
    return f"{len(paths)} files below {folder}: {few(names, where=where)}"
