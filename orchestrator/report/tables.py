"""The rows of the result table, as text cells. Pure; terminal, markdown and HTML only lay them out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.analysis.tune import PLAIN, SPECULATING
from orchestrator.report.footnotes import footnotes
from orchestrator.report.shapes import Summary
from orchestrator.report.text import ABSENT, half_width, milliseconds, number, percent


@dataclass(frozen=True)
class Row:
    """One arm at one position of the sweep; the rate of an invalid point is in parentheses."""

    index: int  # position in the sweep; a concurrency may stand there twice
    concurrency: int
    arm: str
    valid: bool
    output_tps: str
    interval: str  # ±1.2%; "1 boot" if no more was measured, "1 of 2" if the other does not count
    change: str  # against `Table.against`
    verdict: str
    ttft_p50: str  # ms
    ttft_p99: str  # ms; with * where it is the slowest request only
    tpot: str  # ms/token, median
    accept_length: str  # "2.41", "3.40 (2.5%)" where few steps speculated, "off", "off (0.2%)", "unknown"
    counts: str  # ok/failed/attempted
    marks: str  # "[1][2]", numbers of the reasons below the table
    again: bool = False  # the same concurrency as an earlier position of the sweep


@dataclass(frozen=True)
class Table:
    rows: tuple[Row, ...]
    reasons: tuple[str, ...]  # reason n is marks[n]
    general: tuple[str, ...] = ()  # hold for all points of the arms that they name
    against: str = ""  # whom `Row.change` is against, "the baseline" for instance; "": no arm


ALL_STEPS = 0.995  # share of speculative steps from which an arm is said to speculate all the time
THIN = 100  # ok requests of a boot, below which a nearest-rank p99 is simply the slowest
THIN_TAIL = f"* p99 of fewer than {THIN} requests a boot: the slowest one."


def build(summary: Summary) -> Table:
    """Rows by concurrency, then in the experiment's order of arms."""
    points = list(_points(summary))
    notes = footnotes(summary, points)
    first: dict[int, int] = {}
    for _, point in points:
        first.setdefault(point["concurrency"], point["index"])
    rows = [
        replace(
            _row(summary, arm, point),
            marks=notes.marks.get((arm, point["index"]), ""),
            again=first[point["concurrency"]] != point["index"],
        )
        for arm, point in points
    ]
    return Table(tuple(rows), notes.numbered, notes.general, _against(summary))


def _against(summary: Summary) -> str:
    if summary["roles"]["baseline"] is not None:
        return "the baseline" if len(summary["arms"]) > 1 else ""
    return PLAIN if summary["tune"] else ""


def _points(summary: Summary) -> Iterator[tuple[str, dict[str, Any]]]:
    arms = summary["arms"]
    positions = sorted({(p["concurrency"], p["index"]) for arm in arms.values() for p in arm["points"]})
    for position in positions:
        for name, arm in arms.items():
            yield from ((name, p) for p in arm["points"] if (p["concurrency"], p["index"]) == position)


def _row(summary: Summary, arm: str, point: dict[str, Any]) -> Row:
    metrics = point["metrics"]
    verdict = _verdict(summary, arm, point)
    rate = metrics.get("output_tps")
    value = number(rate["value"] if rate else None)
    return Row(
        point["index"],
        point["concurrency"],
        arm,
        point["valid"],
        value if point["valid"] else f"({value})",
        _spread(rate, len(point["boots"])),
        percent(verdict.get("change")) if point["valid"] else ABSENT,
        _call(verdict) if point["valid"] else "invalid",
        milliseconds(_value(metrics, "ttft_p50")),
        _p99(point, milliseconds(_value(metrics, "ttft_p99"))),
        milliseconds(_value(metrics, "tpot_p50")),
        _accept(summary, arm, metrics),
        f"{point['ok']}/{point['failed']}/{point['attempted']}",
        "",
    )


def _p99(point: dict[str, Any], shown: str) -> str:
    thin = min((boot["ok"] for boot in point["boots"]), default=0) < THIN
    return f"{shown}*" if thin and shown != ABSENT else shown


def _value(metrics: dict[str, Any], name: str) -> float | None:
    return metrics[name]["value"] if name in metrics else None


def _spread(rate: dict[str, Any] | None, boots: int) -> str:
    if rate is None:
        return ""
    if rate["n"] == 1:
        return "1 boot" if boots < 2 else f"1 of {boots}"
    return half_width(rate)


def _verdict(summary: Summary, arm: str, point: dict[str, Any]) -> dict[str, Any]:
    """Against the baseline; in a run of `dynspec tune`, which has none, speculating against plain."""
    if summary["tune"]:
        changes = summary["tune_changes"] if arm == SPECULATING else ()
        return next((item for item in changes if item["concurrency"] == point["concurrency"]), {})
    return _against_baseline(summary, arm, point["index"])


def _against_baseline(summary: Summary, arm: str, index: int) -> dict[str, Any]:
    baseline = summary["roles"]["baseline"]
    for verdict in summary["verdicts"]:
        if (verdict["arm"], verdict["against"]) == (arm, baseline):
            return next((point for point in verdict["points"] if point["index"] == index), {})
    return {}


def _call(verdict: dict[str, Any]) -> str:
    if "change" not in verdict:
        return ""
    if verdict["n"] < 2:
        return "estimate"
    return {"better": "better", "worse": "worse"}.get(verdict["verdict"], "noise")


def _accept(summary: Summary, arm: str, metrics: dict[str, Any]) -> str:
    """Unknown, 0 and 1.0 are three different things, and so are an arm that never speculates (-) and one whose
    speculation was off here. In brackets the share of steps that speculated, where it was not all of them; such a
    step may verify no request, as the last ones of a load that run empty."""
    speculates = arm in (*summary["roles"]["static"], *summary["roles"]["dynamic"])
    value, share = _value(metrics, "accept_length"), _value(metrics, "spec_share")
    if share == 0:
        return "off"
    if value is None and share is not None and _value(metrics, "verify_steps") == 0:
        return f"off ({percent(share, signed=False)})"
    if value is None:
        return "unknown" if speculates else ABSENT
    return (
        f"{value:.2f}"
        if share is None or share > ALL_STEPS
        else f"{value:.2f} ({percent(share, signed=False)})"
    )
