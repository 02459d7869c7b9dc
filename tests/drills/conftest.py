"""Drills: the short set in every test run, all of them and the matrix with `make drills`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import require_sshd
from tests.drills import machine
from tests.drills.cells import FAULTS, PHASES, Cell, cells
from tests.e2e.conftest import elsewhere, foreign, place
from tests.e2e.node import NodeShelf, SshNode
from tests.mutants.table import mutants

__all__ = ["elsewhere", "foreign", "place"]

Results = dict[str, dict[str, object]]
Shelves = dict[str, NodeShelf]


@pytest.fixture(scope="module")
def shelves(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelves]:
    """By kind, a node that tests share as long as each gives it back as it was."""
    require_sshd()
    kinds = {"plain": SshNode, "small disk": machine.SmallDiskNode, "clock": machine.ClockNode}
    with ExitStack() as stack:
        yield {
            kind: stack.enter_context(
                machine.OddShelf(lambda make=make: make(tmp_path_factory.mktemp("sshd")))  # type: ignore[misc]
            )
            for kind, make in kinds.items()
        }


@pytest.fixture
def node(shelves: Shelves, cell: Cell) -> Iterator[SshNode]:
    """A node of the kind that the cell's fault needs, as it was found."""
    if cell.needs == "small disk":
        machine.require(machine.can_mount(), machine.NO_MOUNT)
    if cell.needs == "clock":
        machine.require(machine.compiler(), machine.NO_COMPILER)
    taken = shelves[cell.needs].take()
    yield taken
    shelves[cell.needs].give_back(taken)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The long cells run where they are asked for by their mark or by name."""
    asked = "drill" in (config.option.markexpr or "") or any("@" in word for word in config.args)
    if asked:
        return
    long = [
        item for item in items if item.get_closest_marker("drill") and not item.get_closest_marker("short")
    ]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-matrix", metavar="FILE", help="Write the drill matrix as a markdown table.")
    parser.addoption(
        "--matrix-results", metavar="FILE", help="Keep results here: the matrix can be run in parts."
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """One matrix: every cell has a result, a reason, or a dash when it was not asked for."""
    results: Results = {}
    for outcome in ("passed", "skipped", "failed", "error"):
        for report in terminalreporter.stats.get(outcome, []):
            properties = dict(getattr(report, "user_properties", ()))  # a module that cannot be read has none
            if "drill" in properties:
                results[str(properties["drill"])] = {**properties, "outcome": outcome}
    kept = config.getoption("--matrix-results", None)
    if kept:
        results = _with_kept(Path(kept), results)
    if not results:
        return
    terminalreporter.section("drills")
    for line in matrix_lines(results):
        terminalreporter.line(line)
    file = config.getoption("--write-matrix", None)
    if file:
        Path(file).write_text(matrix_page(results))


def _with_kept(file: Path, results: Results) -> Results:
    """Earlier results of cells that were not run now; all of them are kept in turn."""
    known = {cell.name for cell in cells() if not cell.never}
    earlier = json.loads(file.read_text()) if file.is_file() else {}
    merged = {name: result for name, result in {**earlier, **results}.items() if name in known}
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(merged))
    return merged


def matrix_lines(results: Results) -> list[str]:
    """Rows are faults, columns phases; `130 1.2s` is exit code and seconds from the fault to the exit."""
    every = {cell.name: cell for cell in cells()}
    width = max(map(len, FAULTS)) + 1
    lines = [" " * width + "".join(f"{phase:>11}" for phase in PHASES)]
    for fault in FAULTS:
        shown = [_shown(every[f"{fault}@{phase}"], results) for phase in PHASES]
        lines.append(f"{fault:<{width}}" + "".join(f"{text:>11}" for text in shown))
    outcomes = [result["outcome"] for result in results.values()]
    skipped, clean = outcomes.count("skipped"), outcomes.count("passed")
    never = sum(bool(cell.never) for cell in every.values())
    lines.append(
        f"{clean} cells clean, {len(results) - clean - skipped} not, {never} cannot happen (n/a), "
        f"{skipped} lack something on this machine (SKIPPED), {len(every) - never - len(results)} not asked for (-)"
    )
    return lines


_PAGE = """\
# What was drilled

Every fault in every phase of a run, over a real OpenSSH `sshd`, on a node whose engine is simulated. Written by
`make drills`; the table of cases is `tests/drills/matrix.yaml`.

A cell shows the exit code of `dynspec run` (negative: the signal that ended it) and the seconds from the fault to the
exit; where nobody comes for a dead controller, the seconds until the node has given itself back (the lease is 10 s).
After each cell: every file of the node byte-identical with mode and owner, no process of ours, lock free, journal
closed, a foreign process that looks like a server alive, and the results so far kept. *n/a*: the fault cannot happen
in that phase. A full or read-only disk and an edit happen while the run stands still at the first moment of the phase
(at *points*: among requests), so for each of these cells one code is right: 4 as long as nothing was touched, 1 where
the run fails and the node is as it was, 0 (or 6, where this machine was too busy to measure) where the run needs
nothing of what is gone, 70 only where a file cannot be put back.

{table}

{faults}

## Bars

{bars}

## Mutants

`make mutants` puts each of these faults into a copy of the tree; the command fails when no test turns red.

{mutants}

Durable writes are drilled apart: `tests/agent/test_power_cut.py` cuts the power before and after each of them, and a
new one without a drill fails it, as a new phase without a column here fails `tests/drills/test_matrix.py`.

{count}
"""


def matrix_page(results: Results) -> str:
    every = {cell.name: cell for cell in cells()}
    rows = ["| |" + "".join(f" {phase} |" for phase in PHASES), "|---|" + "---|" * len(PHASES)]
    for fault in FAULTS:
        shown = "".join(f" {_shown(every[f'{fault}@{phase}'], results)} |" for phase in PHASES)
        rows.append(f"| {fault} |{shown}")
    faults = "\n".join(f"- **{name}**: {what}" for name, what in FAULTS.items())
    return _PAGE.format(
        table="\n".join(rows),
        faults=faults,
        bars="\n".join(_bars(results)),
        mutants="\n".join(f"- {mutant.name} ({_files(mutant.tests)})" for mutant in mutants()),
        count=matrix_lines(results)[-1].capitalize() + ".",
    )


def _files(tests: tuple[str, ...]) -> str:
    return ", ".join(dict.fromkeys(f"`{test.partition('::')[0]}`" for test in tests))


_BARS = (
    ("signal to exit, server gone and files restored (`limits.interrupt`)", "signal_s", "8 s"),
    ("connection frozen to node clean by itself", "given_back_s", "lease 10 s + 10 s"),
    ("a second run refused with exit code 3, processor time", "refused_cpu_s", "2 s"),
    ("the same by the clock of the machine, beside the first run and its server", "refused_s", "-"),
)


def _bars(results: Results) -> Iterator[str]:
    """The worst and the middle of all cells that measured it."""
    yield "| what | worst | median | cells | bar |\n|---|---|---|---|---|"
    for what, key, bar in _BARS:
        found = sorted(float(str(result[key])) for result in results.values() if key in result)
        if found:
            middle = found[len(found) // 2]
            yield f"| {what} | {found[-1]:.1f} s | {middle:.1f} s | {len(found)} | {bar} |"


def _shown(cell: Cell, results: Results) -> str:
    if cell.never:
        return "n/a"
    result = results.get(cell.name)
    if result is None:
        return "-"
    if result["outcome"] == "skipped":
        return "SKIPPED"
    if result["outcome"] != "passed":
        return f"FAILED {result.get('code', '')}"
    if "free_s" in result and cell.codes == (-9,):  # what counts is when the node is free
        return f"free {result['free_s']}s"
    return f"{result['code']} {result['exit_s']}s"
