"""Which releases had a flag that not all of them have: data read from the releases' own sources."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True)
class History:
    """`spans`: option string -> first and last release that had it, of `releases` (those that were read).

    `instead`: option string -> what a later release says to use in its place. `always`: option strings of all releases.
    """

    releases: tuple[str, ...]
    spans: Mapping[str, tuple[str, str]]
    instead: Mapping[str, str]
    always: frozenset[str] = frozenset()

    @property
    def names(self) -> frozenset[str]:
        """Every option string that any of the releases has."""
        return self.always | frozenset(self.spans)

    def note(self, flag: str) -> str:
        """One clause on where `flag` exists; empty when nothing is known."""
        if flag not in self.spans:
            return ""
        first, last = self.spans[flag]
        gone = last != self.releases[-1]
        note = f"last seen in {last}, gone in later releases" if gone else f"not seen before {first}"
        return f"{note}; use {self.instead[flag]}" if flag in self.instead else note


@functools.cache
def flag_history() -> History:
    """The history that comes with the package."""
    data = json.loads(resources.files(__package__).joinpath("history.json").read_text(encoding="utf-8"))
    spans = {name: (first, last) for name, (first, last) in data["spans"].items()}
    return History(tuple(data["releases"]), spans, data["instead"], frozenset(data["always"]))
