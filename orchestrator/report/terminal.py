"""The report on a terminal: 80 columns or wide, with or without colour. rich is imported by the functions that draw."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.model.result import FailureCard, RunInfo
from orchestrator.report.answer import answer, banners, supporting
from orchestrator.report.shapes import Summary
from orchestrator.report.tables import THIN_TAIL, Row, Table, build
from orchestrator.report.text import ABSENT, COMMAND_LAST, PLUS_MINUS, clean, sentence

if TYPE_CHECKING:
    from rich.console import OverflowMethod, RenderableType
    from rich.table import Table as RichTable
    from rich.text import Text

WIDE = 110  # columns from which latency percentiles get their own columns
LEAST_NAME = 9  # columns for the name of an arm, which may break where a number may not

_STYLES = {"better": "green", "worse": "red", "invalid": "yellow", "estimate": "dim", "noise": "dim"}


def _text(words: str, style: str = "", overflow: OverflowMethod | None = None) -> Text:
    """Node text must not steer the terminal: control characters never get through."""
    from rich.text import Text

    return Text(clean(words), style=style, overflow=overflow)


def _command(words: str, style: str = "") -> Text:
    """One line however long: a command that is copied must not break in two."""
    text = _text(words, style)
    text.no_wrap = True
    return text


def _told(words: str, width: int, style: str = "") -> list[Text]:
    """A sentence; a command at its end gets a line of its own where the sentence is too long for one."""
    found = COMMAND_LAST.fullmatch(words) if len(words) > width else None
    if found is None:
        return [_text(words, style)]
    return [_text(found["sentence"], style), _command(f"  {found['command']}", style)]


def render(
    summary: Summary, info: RunInfo, *, width: int = 80, plus_minus: str = PLUS_MINUS
) -> list[RenderableType]:
    """What to print, in order: the answer, the table, reasons, support, failures, where the files are."""

    table = _signed(build(summary), plus_minus)
    parts: list[RenderableType] = [*_told(answer(summary, info), width, style="bold")]
    for words in banners(summary, info):
        parts += _told(words, width, style="yellow")
    parts.append(_text(""))
    if table.rows:
        parts += _results(table, width)
    parts += [_text(f"[{i}] {reason}") for i, reason in enumerate(table.reasons, 1)]
    parts += [_text(sentence(note), style="dim") for note in table.general]
    if info.gate:
        parts += [_text(""), _text(info.gate[0], style="bold"), *(_text(line) for line in info.gate[1:])]
    lines = supporting(summary, info)
    parts += [_text(""), *(part for line in lines for part in _told(line, width))] if lines else []
    for card in info.failures:
        parts += _card(card)
    if info.folder:
        parts += [_text(""), _text(f"Records, logs and reports: {info.folder}", overflow="fold")]
    return parts


def _signed(table: Table, plus_minus: str) -> Table:
    """Before columns are laid out: a terminal without the sign takes two characters for it."""
    if plus_minus == PLUS_MINUS:
        return table
    rows = (replace(row, interval=row.interval.replace(PLUS_MINUS, plus_minus)) for row in table.rows)
    return replace(table, rows=tuple(rows))


def to_text(
    summary: Summary, info: RunInfo, *, width: int = 80, color: bool = False, plus_minus: str = PLUS_MINUS
) -> str:
    """The same as one string; without colour there is no escape code in it."""
    from io import StringIO

    from rich.console import Console

    out = StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        highlight=False,
        markup=False,
        emoji=False,
    )
    for part in render(summary, info, width=width, plus_minus=plus_minus):
        console.print(part, soft_wrap=bool(getattr(part, "no_wrap", None)))  # rich drops the text's own wish
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _results(table: Table, width: int) -> list[RenderableType]:
    """The widest table that fits, else a paragraph a row: a column is never cut, as half a number is another number."""
    rows = table.rows
    wide = width >= WIDE and _least_width(rows, wide=True) <= width
    if not wide and _least_width(rows, wide=False) > width:
        return [*_paragraphs(rows), _text(_legend(table, "in per cent"), style="dim")]
    return [_table(rows, width, wide=wide), _text(_legend(table, "diff"), style="dim")]


def _paragraphs(rows: tuple[Row, ...]) -> list[RenderableType]:
    """Each row in words under its concurrency, for a terminal that is too narrow for columns."""
    parts: list[RenderableType] = []
    previous: tuple[int, int] | None = None
    for row in rows:
        if previous != (row.concurrency, row.index):
            again = ", again" if row.again else ""
            parts.append(_text(f"concurrency {row.concurrency}{again}", style="bold"))
        previous = (row.concurrency, row.index)
        rate, interval, call, ttft, tpot, accept, counts = _narrow_cells(row)
        spread = f"{interval} boots" if " of " in interval else interval
        line = _text(f"- {row.arm}: {' '.join(filter(None, (rate, 'tok/s', spread)))}", overflow="fold")
        if call != ABSENT:
            line.append(", ").append_text(_text(call, style=_STYLES.get(row.verdict, "")))
        line.append_text(_text(f"; ttft {ttft} ms; tpot {tpot} ms; accept {accept}; {counts} ok/fail"))
        parts.append(line)
    return parts


def _table(rows: tuple[Row, ...], width: int, *, wide: bool) -> RichTable:
    from rich import box
    from rich.table import Table as Grid

    at = _VERDICT if wide else _DIFF
    gap = 1 if _width(rows, wide) <= width else 0
    table = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, gap, 0, 0), show_edge=False)
    for head in _WIDE_HEADS if wide else _NARROW_HEADS:
        left = head in ("arm", "verdict", "why") or (head == "diff" and not wide)
        table.add_column(head, justify="left" if left else "right", no_wrap=head != "arm", overflow="fold")
    previous: tuple[int, int] | None = None
    for row in rows:
        new = previous != (row.concurrency, row.index)
        if previous is not None and previous[0] != row.concurrency:
            table.add_section()
        cells = _wide_cells(row) if wide else _narrow_cells(row)
        styled = [
            _text(cell, style=_STYLES.get(row.verdict, "") if i == at else "") for i, cell in enumerate(cells)
        ]
        table.add_row(_level(row) if new else "", _text(row.arm), *styled)
        previous = (row.concurrency, row.index)
    return table


def _width(rows: tuple[Row, ...], wide: bool) -> int:
    """Columns that the table takes with two blanks between cells."""
    widths = _widths(rows, wide)
    return sum(widths) + 2 * (len(widths) - 1)


def _least_width(rows: tuple[Row, ...], *, wide: bool) -> int:
    """The same with one blank, and with names of arms broken into pieces that can still be read."""
    conc, arm, *others = _widths(rows, wide)
    return conc + min(arm, LEAST_NAME) + sum(others) + len(others) + 1


def _widths(rows: tuple[Row, ...], wide: bool) -> list[int]:
    heads = _WIDE_HEADS if wide else _NARROW_HEADS
    lines = [(_level(row), row.arm, *(_wide_cells(row) if wide else _narrow_cells(row))) for row in rows]
    return [max(map(len, column)) for column in zip(heads, *lines, strict=True)]


def _level(row: Row) -> str:
    """A concurrency that stands in the sweep again says so: two rows of an arm are two passes."""
    return "again" if row.again else str(row.concurrency)


_DIFF, _VERDICT = 2, 3  # their places among the cells after concurrency and arm
_WIDE_HEADS = (
    "conc",
    "arm",
    "tok/s",
    "95% CI",
    "diff",
    "verdict",
    "ttft p50 ms",
    "ttft p99 ms",
    "tpot ms",
    "accept",
    "ok/fail/all",
    "why",
)
_NARROW_HEADS = ("conc", "arm", "tok/s", "CI", "diff", "ttft ms", "tpot", "acc", "ok/fail")


def _wide_cells(row: Row) -> list[str]:
    return [
        row.output_tps,
        row.interval,
        row.change,
        row.verdict,
        row.ttft_p50,
        row.ttft_p99,
        row.tpot,
        row.accept_length,
        row.counts,
        row.marks,
    ]


def _narrow_cells(row: Row) -> list[str]:
    ok, failed, attempted = (int(count) for count in row.counts.split("/"))
    return [
        row.output_tps,
        row.interval,
        _narrow_verdict(row),
        f"{row.ttft_p50}/{row.ttft_p99}",
        row.tpot,
        "?" if row.accept_length == "unknown" else row.accept_length,
        f"{ok}/{failed}" if ok + failed == attempted else row.counts,
    ]


def _narrow_verdict(row: Row) -> str:
    """Change, call and marks in one cell: +35% better, -1.0% noise, +12% ?, invalid [1]."""
    call = {"estimate": "?"}.get(row.verdict, row.verdict)
    change = "" if not row.valid or row.change == ABSENT else row.change
    return " ".join(part for part in (change, call, row.marks) if part) or ABSENT


def _legend(table: Table, change: str) -> str:
    """`change`: how the difference is shown."""
    rows = table.rows
    text = f"{change}: tok/s against {table.against}; " if table.against else ""
    text += (
        "ttft: p50 and p99; tpot: median, ms; accept: accept length with the bonus token (? unknown, - none)."
    )
    if any(row.accept_length.startswith("off") for row in rows):
        text += " off: no request had a step that speculated."
    if any(row.accept_length.endswith(")") for row in rows):
        text += " In brackets: the share of steps that speculated."
    if any(row.interval.startswith("1 ") for row in rows):
        text += " 1 boot, or 1 that counts (?): no interval and no verdict."
    if any(row.verdict == "noise" for row in rows):
        text += " noise: not told apart at 95%."
    if any(row.ttft_p99.endswith("*") for row in rows):
        text += f" {THIN_TAIL}"
    if any(not row.valid for row in rows):
        text += " In parentheses: not valid, nothing is claimed from it."
    return text


def _card(card: FailureCard) -> list[RenderableType]:

    at = f", concurrency {card.concurrency}" if card.concurrency else ""
    rank = f" ({card.rank})" if card.rank else ""
    lines: list[RenderableType] = [
        _text(""),
        _text(f"FAILED {card.arm} boot {card.boot}{at}: {card.title}{rank}", style="bold red"),
    ]
    lines += [_text(f"  cause   {card.cause}"), _text(f"  fix     {card.fix}")]
    if card.replay:
        lines.append(_command(f"  replay  {card.replay}"))
    return lines + [_text(f"  | {line}", style="dim") for line in card.excerpt]
