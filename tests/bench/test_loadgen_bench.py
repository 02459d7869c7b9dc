"""The bench itself: its server keeps time and its figures can be wrong."""

from __future__ import annotations

import shutil

import pytest

from tests.bench.loadgen_bench import Bench, Case, Outcome, error_ms, own_client, spread_text

needs_tools = pytest.mark.skipif(
    not (shutil.which("gcc") and shutil.which("taskset")), reason="needs gcc and taskset"
)


@needs_tools
def test_the_server_s_truth_and_the_client_s_figures_are_of_the_same_streams(tmp_path):
    case = Case("small", 4, 12, 8, 5.0)
    outcomes = Bench(tmp_path, "0", {"ours": own_client("0")}, 1).run(case)["ours"]
    (run,) = outcomes
    assert len(run.truth) == len(run.ttft_s) == 12
    assert max(row["in_flight"] for row in run.truth) == 4
    assert all(row["tokens"] == 8 for row in run.truth)
    for row in run.truth:
        assert row["first_ns"] - row["recv_ns"] >= 50_000_000  # never early
        assert row["last_ns"] - row["recv_ns"] >= 85_000_000
    assert min(run.ttft_s) >= 0.05


def outcome(ttft_s: list[float], first_ms: float) -> Outcome:
    truth = [{"recv_ns": 0, "first_ns": int(first_ms * 1e6)} for _ in ttft_s]
    return Outcome(1.0, 1.0, ttft_s, [], None, 0.0, None, truth)


def test_the_error_is_client_less_truth():
    assert error_ms(outcome([0.05, 0.06], 50), None) == pytest.approx(5)
    assert error_ms(outcome([0.05] * 98 + [0.08] * 2, 50), 99) == pytest.approx(30)
    assert error_ms(outcome([0.04], 50), 99) == pytest.approx(-10)


def test_figures_show_their_spread_and_nothing_as_a_dash():
    assert spread_text([]) == "-"
    assert spread_text([1.0, 3.0, 2.0]) == "2.00 [1.00 .. 3.00]"
    assert spread_text([250_000.0]) == "250,000 [250,000 .. 250,000]"
