"""The named mutants as values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("mutants.yaml")


@dataclass(frozen=True)
class Mutant:
    """`files`: per path below the checkout, pairs of the text that stands there once and what replaces it."""

    name: str
    files: dict[str, tuple[tuple[str, str], ...]]
    tests: tuple[str, ...]

    def applied(self, file: str, text: str) -> str:
        """Raises ValueError when the code has moved on: the mutant must follow it."""
        for old, new in self.files[file]:
            if text.count(old) != 1:
                raise ValueError(f"mutant '{self.name}': {file} has {text.count(old)} times {old!r}")
            text = text.replace(old, new)
        return text


def mutants() -> list[Mutant]:
    return [_mutant(item) for item in yaml.safe_load(TABLE.read_text())]


def _mutant(item: dict[str, Any]) -> Mutant:
    parts = [item, *item.get("also", [])]
    files = {part["file"]: tuple((old, new) for old, new in part["edits"]) for part in parts}
    return Mutant(item["name"], files, tuple(item["tests"]))
