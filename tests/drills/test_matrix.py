"""Every fault in every phase: bounded, the right exit code, and the node as it was found."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.drills.cells import PHASES, TABLE, Cell, cells
from tests.drills.drill import INTERRUPT_S, Drill
from tests.e2e.controller import Place
from tests.e2e.node import Foreign, SshNode
from tests.sshd import free_port

ORCHESTRATOR = Path(__file__).resolve().parents[2] / "orchestrator"


def _params() -> Iterator[object]:
    for cell in cells():
        if not cell.never:
            marks = [pytest.mark.drill, *([pytest.mark.short] if cell.short else [])]
            yield pytest.param(cell, id=cell.name, marks=marks)


@pytest.fixture
def named(cell: Cell, record_property: Callable[[str, object], None]) -> None:
    """Before the node is made: a cell that is skipped or fails there is in the matrix too."""
    record_property("drill", cell.name)


@pytest.mark.sshd
@pytest.mark.wheels
@pytest.mark.parametrize("cell", list(_params()))
def test_the_node_is_as_it_was_after(
    cell: Cell,
    named: None,
    node: SshNode,
    place: Place,
    elsewhere: Place,
    foreign: Foreign,
    record_property: Callable[[str, object], None],
) -> None:
    drill = Drill(cell, node, place, elsewhere, free_port())
    try:
        drill.run()
    finally:
        for name, value in drill.report.items():
            record_property(name, value)
    assert foreign.alive
    if "signal_s" in drill.report:
        print(f"measured: {cell.name}: signal to exit {drill.report['signal_s']} s (bar {INTERRUPT_S:.0f} s)")
        assert drill.report["signal_s"] <= INTERRUPT_S


def test_the_matrix_has_every_phase_that_the_program_knows() -> None:
    """Phases are words in two places: the steps of a plan, and what a session says of itself."""
    named = set(_first_words("Step")) | set(_first_words("phase"))
    assert named - {"report"} == set(PHASES)  # the report is made when the node is given back


def _first_words(function: str) -> Iterator[str]:
    """The first argument of every call of that name in the program, where it is written out."""
    for file in ORCHESTRATOR.rglob("*.py"):
        for call in ast.walk(ast.parse(file.read_text())):
            if not isinstance(call, ast.Call) or not call.args:
                continue
            name = getattr(call.func, "id", None) or getattr(call.func, "attr", None)
            first = call.args[0]
            if name == function and isinstance(first, ast.Constant):
                yield str(first.value)


def test_the_short_set_names_cells_that_there_are() -> None:
    assert set(TABLE["short"]) <= {cell.name for cell in cells() if not cell.never}
