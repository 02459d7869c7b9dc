"""Lists of files that people can take in: a few names and how many more. The whole list is for `--json`."""

from __future__ import annotations

from collections.abc import Sequence

SHOWN = 3


def few(paths: Sequence[str], *, where: str = "") -> str:
    """`a, b, c and 16 more`; one more than `SHOWN` is shown too. `where`: how to get all, in brackets."""
    if len(paths) <= SHOWN + 1:
        return ", ".join(paths)
    tail = f" ({where})" if where else ""
    return f"{', '.join(paths[:SHOWN])} and {len(paths) - SHOWN} more{tail}"
