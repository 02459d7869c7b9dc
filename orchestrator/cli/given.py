"""Paths of the command line. An empty one is a variable of the shell that was not set, never the working folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.errors import UsageError


def word_of(option: str) -> Callable[[str], str]:
    """A parser for what names a file or a folder. Raises UsageError, which names `option`, where it names none."""

    def word(typed: str) -> str:
        if not typed.strip():
            raise UsageError(
                f"{option}: the path is empty",
                help="name one, or leave it out; is a variable of the shell unset?",
            )
        return typed

    return word


def path_of(option: str) -> Callable[[str | Path], Path]:
    """The same for a path of this machine; a default comes as one already."""
    word = word_of(option)

    def path(typed: str | Path) -> Path:
        return Path(word(str(typed)))

    return path


_RESULTS = path_of("--results")
Results = Annotated[
    Path,
    typer.Option("--results", metavar="DIR", parser=_RESULTS, help="Where run folders are written."),
]
Kept = Annotated[
    Path, typer.Option("--results", metavar="DIR", parser=_RESULTS, help="Where run folders are.")
]
