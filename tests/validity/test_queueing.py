"""The client has the asked concurrency in flight; what the server ran of it is told by the server."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.analysis.queueing import Load, running_during, with_queueing
from orchestrator.analysis.trace import read_log
from tests.report.example_runs import ARMS, points

STARTED = 1767323040.0  # 2026-01-02 03:04:00 UTC
BEGIN = STARTED + 60


def log(running: list[int], zone: str = "03", rank: str = "TP0") -> list[str]:
    """A line a second from the begin of the load on, in the node's own time."""
    lines = [f"[2026-01-02 {zone}:04:05] server_args=ServerArgs(...)"]
    for second, count in enumerate(running):
        lines.append(
            f"[2026-01-02 {zone}:05:{second:02d} {rank}] Decode batch, #running-req: {count}, #queue-req: 0"
        )
    return lines


def load(lines: list[str], seconds: float = 20.0) -> Load:
    return Load(BEGIN, BEGIN + seconds, STARTED, read_log(lines))


def notes(lines: list[str]) -> tuple[str, ...]:
    """Of a point at concurrency 70."""
    point = replace(points(1, arms=ARMS[:1])[-1], index=0)
    (judged,) = with_queueing([point], {("baseline", 1, 0): load(lines)})
    assert judged.valid
    return judged.notes


def test_fewer_running_than_sent_is_noted_with_both_numbers():
    (note,) = notes(log([38, 40, 41, 41, 40, 41, 41, 40]))
    assert note.startswith(
        "server_queued: by its log the server ran at most 41 requests at once, 70 were sent"
    )


@pytest.mark.parametrize(
    "running",
    [[70] * 8, [60, 64, 66, 66, 66, 66, 66], [40, 41, 40]],
    ids=["all", "nearly all", "too few lines"],
)
def test_a_whole_batch_and_too_few_lines_are_no_finding(running):
    assert notes(log(running)) == ()


def test_only_the_time_of_the_load_counts_whatever_the_nodes_time_zone():
    assert running_during(load(log(list(range(1, 12)), zone="05"), seconds=6.5)) == (2, 3, 4, 5, 6)


def test_ranks_with_batches_of_their_own_tell_nothing_of_the_whole():
    assert running_during(load(log([20] * 10, rank="DP0 TP0"))) == ()
