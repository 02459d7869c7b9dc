"""What the live view shows, folded from events; and that it stays within the terminal."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from orchestrator.cli.live import LiveView
from orchestrator.cli.progress import Progress, Totals

TOTALS = Totals("trial", "gpu-1", boots=4, points=8, repeats=2)


def told(progress: Progress, *events: tuple[float, str, dict[str, Any]]) -> Progress:
    for now_s, kind, data in events:
        progress.take({"event": kind, **data}, now_s)
    return progress


def boot(at_s: float, arm: str = "a", number: int = 1) -> list[tuple[float, str, dict[str, Any]]]:
    """100 s of load, then points of 10 s and 30 s."""
    events: list[tuple[float, str, dict[str, Any]]] = [
        (at_s, "phase", {"phase": "launch", "text": "start"}),
        (at_s, "started", {"arm": arm, "boot": number}),
        (at_s + 100, "point", {"index": 0, "requests": 8}),
        (at_s + 110, "point_done", {"index": 0}),
        (at_s + 110, "point", {"index": 1, "requests": 64}),
        (at_s + 140, "point_done", {"index": 1}),
    ]
    return events


def test_what_is_left_is_not_guessed_before_a_whole_sweep_was_measured() -> None:
    progress = told(Progress(TOTALS), *boot(0)[:-1])
    assert progress.left_s(120) is None


def test_what_is_left_is_points_and_boots_at_the_pace_so_far() -> None:
    progress = told(Progress(TOTALS), *boot(0))
    assert progress.left_s(140) == pytest.approx(3 * 100 + 6 * 20)
    told(progress, *boot(140, "b"))
    assert progress.left_s(280) == pytest.approx(2 * 100 + 4 * 20)


def test_the_plan_of_the_node_corrects_what_was_expected_of_the_file() -> None:
    """Arms were left out, and the others share a boot: one start, and three times over a sweep of two."""
    expected = Totals("trial", "gpu-1", boots=4, points=8, repeats=1, positions=2)
    progress = told(Progress(expected), (0, "planned", {"boots": 1, "points": 6}), *boot(0))
    assert progress.left_s(140) == pytest.approx(4 * 20)


def test_the_time_that_the_present_point_took_is_no_longer_left() -> None:
    progress = told(Progress(TOTALS), *boot(0), *boot(140, "b")[:3])
    before, after = progress.left_s(240), progress.left_s(248)
    assert before is not None
    assert after == pytest.approx(before - 8)


def test_tokens_per_second_are_those_of_the_last_seconds() -> None:
    progress = Progress(TOTALS)
    for second in range(1, 21):
        tokens = 100 * second if second <= 10 else 1000 + 500 * (second - 10)
        data = {
            "what": "concurrency 4",
            "in_flight": 4,
            "done": second,
            "output_tokens": tokens,
            "elapsed_s": second,
        }
        told(progress, (second, "progress", data))
    assert progress.tokens_per_s == pytest.approx(500)


def test_a_new_load_does_not_mix_with_the_one_before() -> None:
    progress = Progress(TOTALS)
    for elapsed_s, tokens in ((1, 1000), (2, 2000), (1, 10), (2, 30)):
        data = {"what": "concurrency 4", "in_flight": 4, "output_tokens": tokens, "elapsed_s": elapsed_s}
        told(progress, (elapsed_s, "progress", data))
    assert progress.tokens_per_s == pytest.approx(20)


def test_requests_of_a_warm_up_do_not_count_as_done() -> None:
    progress = told(Progress(TOTALS), (0, "point", {"index": 0, "requests": 8}))
    told(progress, (1, "progress", {"what": "warm-up at concurrency 8", "in_flight": 2, "done": 6}))
    assert (progress.what, progress.done) == ("warm-up: ", 0)
    told(progress, (2, "progress", {"what": "concurrency 8", "in_flight": 2, "done": 3}))
    assert (progress.what, progress.done) == ("", 3)


def test_load_progress_has_a_share_only_where_the_server_says_one() -> None:
    progress = told(Progress(TOTALS), (0, "loading", {"text": "loading weights 37 % (3 of 8)"}))
    assert progress.load_share == pytest.approx(0.37)
    told(progress, (1, "loading", {"text": "Init torch distributed begin."}))
    assert progress.load_share is None


# -- on a terminal

GPUS = [
    {"index": index, "memory_mib": 1024.0 * 100, "clock_mhz": 1980.0 - index, "utilization": 90.0}
    for index in range(8)
]
BUSY: list[dict[str, Any]] = [
    {"event": "phase", "phase": "points", "text": "measure concurrency 16: 64 requests of 256 tokens"},
    {"event": "started", "arm": "eagle3", "boot": 1},
    {"event": "point", "index": 0, "requests": 64},
    {
        "event": "progress",
        "what": "concurrency 16",
        "in_flight": 16,
        "done": 20,
        "output_tokens": 10,
        "elapsed_s": 1,
    },
    {
        "event": "progress",
        "what": "concurrency 16",
        "in_flight": 16,
        "done": 32,
        "output_tokens": 1510,
        "elapsed_s": 2,
    },
    {"event": "pulse", "gpus": GPUS, "line": "[2026-01-01] Decode batch, " + "x" * 300},
]


def drawn(width: int, *, no_color: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, no_color=no_color, color_system="truecolor")
    view = LiveView(TOTALS, console)
    for event in BUSY:
        view._take(event)
    console.print(view.draw())
    return out.getvalue()


def plain(text: str) -> list[str]:
    return re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()


@pytest.mark.parametrize("width", [40, 59, 60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal_and_there_are_few(width: int) -> None:
    lines = plain(drawn(width))
    assert max(map(len, lines)) <= width
    assert 3 <= len(lines) <= 6


def test_at_80_columns_all_figures_are_there() -> None:
    text = "\n".join(plain(drawn(80)))
    for figure in (
        "1500 tok/s",
        "16 running",
        "32 of 64",
        "0 of 8 points",
        "100.0 GiB",
        "1973 MHz",
        "Decode batch",
    ):
        assert figure in text


def test_a_narrow_terminal_keeps_the_figures_and_drops_the_bars() -> None:
    text = "\n".join(plain(drawn(50)))
    assert "1500 tok/s" in text
    assert "━" not in text
    assert "GiB" not in text


def test_without_colour_there_is_none() -> None:
    assert "\x1b[3" not in drawn(100, no_color=True)


def test_lines_that_stay_are_broken_by_the_terminal_alone_and_those_that_change_are_cut() -> None:
    out = io.StringIO()
    view = LiveView(TOTALS, Console(file=out, width=60, force_terminal=True, no_color=True))
    command = f"dynspec run results/{'a-long-name/' * 6}experiment.lock.yaml --resume 20260101-000000-x-0001"
    try:
        for event in BUSY:
            view._take(event)
        view.listen({"event": "failed", "text": f"the server died\n-> {command}"})
    finally:
        view.close()
    lines = plain(re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue()))
    assert f"-> {command}" in lines
    assert [line for line in lines if len(line) > 60 and command not in line] == []
