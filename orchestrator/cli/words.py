"""Words on the command line: values that come in, errors that go out."""

from __future__ import annotations

import re

from orchestrator.errors import DynspecError, NodeDirty, UsageError
from orchestrator.plain_text import clean

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def duration_s(word: str, option: str) -> float:
    """`30s`, `10m`, `2h` in seconds; the spelling of the experiment file."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", word)
    if match is None:
        raise UsageError(f"{option} {word!r} is not a duration", help=f"write for example {option} 10m")
    return float(match[1]) * _UNITS[match[2]]


def error_lines(error: DynspecError) -> list[str]:
    """Message, details, what to do; for a dirty node the restore command is the last line, alone."""
    lines = [clean(f"dynspec: {error.message}"), *(clean(f"  {line}") for line in error.details)]
    if isinstance(error, NodeDirty):
        return [*lines, error.restore_command]
    return [*lines, clean(f"  -> {error.help}")] if error.help else lines


def share(word: str, option: str) -> float:
    """`3%` as 0.03; the spelling of the experiment file."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)%", word)
    if match is None or float(match[1]) > 100:
        raise UsageError(f"{option} {word!r} is not a percentage", help=f"write for example {option} 3%")
    return float(match[1]) / 100
