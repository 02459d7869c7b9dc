"""Words on the command line: values that come in, errors that go out."""

from __future__ import annotations

from typing import Any

from orchestrator.errors import DynspecError, NodeDirty, UsageError
from orchestrator.plain_text import clean


def duration_s(word: str, option: str) -> float:
    """`30s`, `10m`, `2h` in seconds; the spelling of the experiment file."""
    from orchestrator.config.measures import duration

    allowed = duration(0.0)
    seconds = allowed.amount(word)
    if seconds is None:
        raise UsageError(f"{option} {word!r} is not a duration", help=f"write for example {option} 10m")
    if seconds > allowed.high:
        text = f"{option} {word}: at most {allowed.spell(allowed.high)} is wanted"
        raise UsageError(text, help=f"write for example {option} 10m")
    return seconds


def lock_wait_s(word: str | None) -> float | None:
    return None if word is None else duration_s(word, "--lock-wait")


def error_lines(error: DynspecError) -> list[str]:
    """Message, details, what to do; for a dirty node the restore command is the last line, alone."""
    lines = [clean(f"dynspec: {error.message}"), *(clean(f"  {line}") for line in error.details)]
    if isinstance(error, NodeDirty):
        return [*lines, error.restore_command]
    return [*lines, clean(f"  -> {error.help}")] if error.help else lines


def error_value(error: DynspecError) -> dict[str, Any]:
    """The same for programs; `help` is the restore command of a node that is dirty."""
    way_out = error.restore_command if isinstance(error, NodeDirty) else error.help
    said = {"message": error.message, "details": list(error.details), "help": way_out}
    return {"exit_code": error.exit_code, **said}


def share(word: str, option: str) -> float:
    """`3%` as 0.03; the spelling of the experiment file."""
    from orchestrator.config.measures import PERCENT

    found = PERCENT.amount(word)
    if found is None or not PERCENT.low <= found <= PERCENT.high:
        raise UsageError(f"{option} {word!r} is not a percentage", help=f"write for example {option} 3%")
    return found
