"""A threshold without a patch is believed only where the server's log shows that it went plain."""

from __future__ import annotations

import pytest

from orchestrator.analysis.native_acted import natively_plain
from orchestrator.analysis.trace import read_log
from orchestrator.analysis.validity import Finding, judged
from tests.report.example_runs import ARMS, points

START = "[2026-01-02 03:04:05] The server is fired up and ready to roll!"
PLAIN = "[2026-01-02 03:04:15 TP0] Switch adaptive runtime state: steps 3 -> 0, draft_tokens 4 -> 1"
LESS = "[2026-01-02 03:04:15 TP0] Switch adaptive runtime state: steps 3 -> 1, draft_tokens 4 -> 2"


@pytest.mark.parametrize(
    ("log", "invalid", "noted"),
    [
        ([START, PLAIN], [], []),
        ([START], [10, 30, 70], []),
        ([START, LESS], [10, 30, 70], []),  # fewer steps are not none
        (None, [], [10, 30, 70]),
    ],
)
def test_points_above_the_threshold_need_a_change_to_zero_steps_in_their_boots_log(log, invalid, noted):
    logs = {} if log is None else {("dynamic", 1): read_log(log)}
    found = natively_plain(points(1, arms=ARMS), {"dynamic": 5}, logs)
    assert [(p.arm, p.concurrency) for p in found if not p.valid] == [("dynamic", c) for c in invalid]
    assert [(p.arm, p.concurrency) for p in found if p.notes] == [("dynamic", c) for c in noted]
    assert all(
        p.reasons[0].startswith("patch_never_acted: the log of this boot") for p in found if not p.valid
    )


@pytest.mark.parametrize("thresholds", [{"dynamic": 5}, {}], ids=["by a threshold", "by a configuration"])
def test_zero_steps_are_no_drafts_thrown_away(thresholds):
    """A zero step is counted as a verify that accepts nothing; static speculation at 1.00 does throw drafts away."""
    one = Finding("accept_one", "accept length 1.00: drafts are thrown away", fatal=False)
    measured = [judged(p, [one]) if p.concurrency > 5 else p for p in points(1, arms=ARMS)]
    logs = {("dynamic", 1): read_log([START, PLAIN]), ("eagle3", 1): read_log([START])}
    found = {(p.arm, p.concurrency): p for p in natively_plain(measured, thresholds, logs)}
    off = found["dynamic", 30]
    assert (off.metrics["accept_length"], off.metrics["spec_share"], off.notes) == (None, 0.0, ())
    assert found["eagle3", 30].notes == (str(one),)
    assert found["dynamic", 5].metrics["accept_length"] == 2.5
