"""The report as GitHub-flavoured markdown: `report.md`, and the step summary of a CI job. Pure."""

from __future__ import annotations

from orchestrator.model.result import FailureCard, RunInfo
from orchestrator.report.answer import answer, banners, supporting
from orchestrator.report.shapes import Summary
from orchestrator.report.tables import THIN_TAIL, Row, build
from orchestrator.report.text import clean, sentence

_HEADS = (
    "concurrency",
    "arm",
    "output tok/s",
    "95% interval",
    "",  # against whom the difference is
    "verdict",
    "ttft p50 ms",
    "ttft p99 ms",
    "tpot ms",
    "accept length",
    "ok / failed / attempted",
    "",
)
_CHANGE = 4  # place of the difference among them
_SPECIAL = "\\`*_{}[]<>#|~&!$@"


def escape(text: str) -> str:
    """Text from a node or a user, so that it renders as itself in a line or a table cell."""
    flat = " ".join(clean(text).split())
    return "".join(f"\\{char}" if char in _SPECIAL else char for char in flat)


def render(summary: Summary, info: RunInfo) -> str:
    """The whole report; ends with a newline."""
    blocks = [f"**{escape(answer(summary, info))}**"]
    blocks += [f"> {escape(words)}" for words in banners(summary, info)]
    if info.gate:
        blocks.append(
            "\n".join([f"**{escape(info.gate[0])}**", "", *(f"- {escape(line)}" for line in info.gate[1:])])
        )
    blocks += _table_blocks(summary)
    lines = supporting(summary, info)
    if lines:
        blocks.append("\n".join(f"- {escape(line)}" for line in lines))
    blocks += [_card(card) for card in info.failures]
    blocks += _provenance(info)
    return "\n\n".join(blocks) + "\n"


def _table_blocks(summary: Summary) -> list[str]:
    table = build(summary)
    if not table.rows:
        return ["No point was measured."]
    right = "".join(" ---: |" for _ in _HEADS[2:-1])
    heads = [*_HEADS]
    heads[_CHANGE] = f"vs {escape(table.against.removeprefix('the '))}" if table.against else "difference"
    lines = [f"| {' | '.join(heads)} |", f"| ---: | --- |{right} --- |"]
    lines += [f"| {' | '.join(_cells(row))} |" for row in table.rows]
    reasons = [f"{i}. {escape(reason)}" for i, reason in enumerate(table.reasons, 1)]
    notes = ["What the numbers in brackets say:\n\n" + "\n".join(reasons)] if reasons else []
    thin = [escape(THIN_TAIL)] if any(row.ttft_p99.endswith("*") for row in table.rows) else []
    general = [escape(sentence(note)) for note in table.general]
    return ["\n".join(lines), *thin, *notes, *general]


def _cells(row: Row) -> list[str]:
    return [
        f"{row.concurrency}{' (again)' if row.again else ''}",
        escape(row.arm),
        row.output_tps,
        row.interval,
        row.change,
        f"**{row.verdict}**" if row.verdict in ("better", "worse") else row.verdict,
        row.ttft_p50,
        escape(row.ttft_p99),
        row.tpot,
        row.accept_length,
        row.counts.replace("/", " / "),
        row.marks.replace("[", "\\[").replace("]", "\\]"),
    ]


def _card(card: FailureCard) -> str:
    at = f", concurrency {card.concurrency}" if card.concurrency else ""
    rank = f" ({escape(card.rank)})" if card.rank else ""
    lines = [
        f"### Failed: {escape(card.arm)} boot {card.boot}{at}: {escape(card.title)}{rank}",
        "",
        f"- Likely cause: {escape(card.cause)}",
        f"- Fix: {escape(card.fix)}",
    ]
    if card.replay:
        lines += [f"- Replay: {code(card.replay)}"]
    if card.excerpt:
        lines += ["", fenced(card.excerpt)]
    return "\n".join(lines)


def code(text: str) -> str:
    """Inline code that holds any text, backticks included."""
    flat = " ".join(clean(text).split())
    ticks = "`" * (_longest_run(flat) + 1)
    pad = " " if flat.startswith("`") or flat.endswith("`") else ""
    return f"{ticks}{pad}{flat}{pad}{ticks}"


def fenced(lines: tuple[str, ...]) -> str:
    """A code block that no line in it can close."""
    shown = [clean(line).replace("\n", " ") for line in lines]
    fence = "`" * max(3, *(_longest_run(line) + 1 for line in shown))
    return "\n".join([f"{fence}text", *shown, fence])


def _longest_run(text: str) -> int:
    longest = run = 0
    for char in text:
        run = run + 1 if char == "`" else 0
        longest = max(longest, run)
    return longest


def _provenance(info: RunInfo) -> list[str]:
    head = {"run": info.run_id, "node": info.host, "started": info.started_utc, "ended": info.ended_utc}
    load = {"load": f"{info.load}, from the {info.load_from}", "prompts": info.prompts}
    workers = {f"worker of {arm}": text for arm, text in info.workers.items()}
    rows = {**head, **load, **workers, **info.provenance}
    lines = [f"| {escape(key)} | {escape(value)} |" for key, value in rows.items() if value]
    return ["\n".join(["| | |", "| --- | --- |", *lines])] if lines else []
