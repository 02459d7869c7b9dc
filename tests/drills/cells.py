"""The matrix as values: every fault in every phase, with the exit codes that are right, or why it cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.controller import MEASURED

TABLE: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("matrix.yaml").read_text())
PHASES: tuple[str, ...] = tuple(TABLE["phases"])
FAULTS: dict[str, str] = {fault["name"]: fault["what"] for fault in TABLE["faults"]}


@dataclass(frozen=True)
class Cell:
    """`never`: why the fault cannot happen in that phase; then there is nothing to run. `needs`: the kind of node."""

    fault: str
    phase: str
    codes: tuple[int, ...] = ()
    never: str = ""
    needs: str = "plain"

    @property
    def name(self) -> str:
        return f"{self.fault}@{self.phase}"

    @property
    def short(self) -> bool:
        return self.name in TABLE["short"]


def cells() -> Iterator[Cell]:
    for fault in TABLE["faults"]:
        never = fault.get("never", {})
        codes = fault.get("codes", {})
        strange = {*never, *codes} - set(PHASES)
        assert not strange, f"{fault['name']}: no phase {strange}"
        for phase in PHASES:
            if phase in never:
                yield Cell(fault["name"], phase, never=never[phase])
            else:
                right = tuple(_numbers(codes.get(phase, fault["code"])))
                yield Cell(fault["name"], phase, right, needs=fault.get("needs", "plain"))


def _numbers(words: list[int | str]) -> Iterator[int]:
    for word in words:
        if isinstance(word, int):
            yield word
        else:
            assert word == "measured"
            yield from MEASURED
