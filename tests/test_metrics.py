"""Numbers of one point: one definition each, absent where there is no sample."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.metrics import PERCENTILES, nearest_rank, point_metrics, share_above

S = 1_000_000_000


def record(sent_s: float, end_s: float, **more: Any) -> dict[str, Any]:
    """An ok request that gives 1 token at `first_s` (default: sent + 0.1 s) and 10 in all by its end."""
    first_s = more.pop("first_s", sent_s + 0.1)
    values = {
        "i": 0,
        "phase": "load",
        "due_ns": int(sent_s * S),
        "sent_ns": int(sent_s * S),
        "first_ns": int(first_s * S),
        "last_ns": int(end_s * S),
        "end_ns": int(end_s * S),
        "chunks": 10,
        "prompt_tokens": 20,
        "cached_tokens": 0,
        "first_tokens": 1,
        "output_tokens": 10,
        "finish": "length",
        "ok": True,
        "error": None,
        "output_sha256": "x",
        "verify_steps": None,
        "accepted": None,
        "drafted": None,
    }
    return {**values, **more}


def failed(sent_s: float, end_s: float, error: str = "HTTP 503: busy", **more: Any) -> dict[str, Any]:
    nothing = dict.fromkeys(
        ("first_ns", "last_ns", "first_tokens", "output_tokens", "prompt_tokens", "cached_tokens")
    )
    return record(sent_s, end_s, ok=False, error=error, **{**nothing, **more})


def closed(records: list[dict[str, Any]], concurrency: int = 1, **more: Any):
    return point_metrics(records, concurrency=concurrency, **more)


# Percentiles.


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([10, 20, 30], 99, 30),
        ([10, 20, 30], 50, 20),
        ([10, 20, 30, 40], 50, 20),
        ([10, 20, 30, 40], 75, 30),
        (list(range(1, 13)), 99.9, 12),
        (list(range(1, 101)), 95, 95),
        (list(range(1, 101)), 99, 99),
        ([5], 1, 5),
        ([], 50, None),
    ],
)
def test_percentiles_are_nearest_rank(values, percent, expected):
    assert nearest_rank(values, percent) == expected


def test_every_latency_has_its_mean_and_percentiles():
    point = closed([record(n, n + 0.5, first_s=n + 0.1 * (n + 1)) for n in range(3)])
    assert point.metrics["ttft"] == pytest.approx(0.2)
    assert point.metrics["ttft_p99"] == pytest.approx(0.3)
    assert point.metrics["ttft_std"] == pytest.approx((0.02 / 3) ** 0.5)
    assert point.metrics["e2e_std"] == 0
    assert {f"{name}_p{p}" for name in ("ttft", "tpot", "e2e", "chunk_gap") for p in PERCENTILES} <= set(
        point.metrics
    )


# Absent is None.


def test_with_no_record_everything_is_absent():
    point = closed([])
    assert set(point.metrics.values()) == {None}
    assert (point.attempted, point.ok, point.failed, point.window_s) == (0, 0, 0, None)


def test_all_output_in_one_chunk_has_ttft_and_no_tpot():
    point = closed(
        [record(0, 0.4, first_s=0.4, first_tokens=10), record(0.4, 0.8, first_s=0.8, first_tokens=10)]
    )
    assert point.metrics["ttft"] == pytest.approx(0.4)
    assert point.metrics["tpot"] is None
    assert point.metrics["per_user_tps"] is None
    assert point.metrics["output_tps"] == pytest.approx(25)


def test_without_the_first_chunk_s_token_count_tpot_is_absent():
    assert closed([record(0, 1, first_tokens=None)]).metrics["tpot"] is None


def test_without_token_counts_throughput_is_absent_and_counted_as_unknown():
    point = closed([record(n, n + 1, output_tokens=None, first_tokens=None) for n in range(4)])
    assert point.metrics["output_tps"] is None
    assert point.metrics["output_tokens"] is None
    assert point.tokens_unknown == 4
    assert point.metrics["e2e"] == 1.0


# Definitions.


def test_tpot_divides_by_the_tokens_after_the_first_chunk():
    point = closed([record(0, 1.0, first_s=0.1, first_tokens=3, output_tokens=12)])
    assert point.metrics["tpot"] == pytest.approx(0.9 / 9)
    assert point.metrics["per_user_tps"] == pytest.approx(10)


def test_latency_counts_from_the_sending_and_the_wait_for_a_slot_stands_apart():
    one = record(2.0, 2.5, due_ns=int(0.5 * S))
    point = closed([one])
    assert point.metrics["e2e"] == pytest.approx(0.5)
    assert point.metrics["slot_wait"] == pytest.approx(1.5)


def test_eight_requests_one_at_a_time_have_the_latency_of_one():
    point = closed([record(0.5 * n, 0.5 * (n + 1)) for n in range(8)])
    assert point.metrics["e2e_p99"] == pytest.approx(0.5)
    assert point.metrics["achieved_concurrency"] == pytest.approx(1.0)


def test_failed_requests_enter_no_latency_and_no_throughput_but_are_in_flight():
    good = [record(n, n + 1) for n in range(4)]
    point = closed([*good, failed(4, 9)])
    assert (point.attempted, point.ok, point.failed) == (5, 4, 1)
    assert point.errors == {"HTTP 503: busy": 1}
    assert point.metrics["e2e_p99"] == 1.0
    assert point.metrics["output_tps"] == pytest.approx(40 / 9)
    assert point.metrics["achieved_concurrency"] == pytest.approx(1.0)


def test_a_request_that_was_never_sent_is_a_failed_attempt():
    point = closed([record(0, 1), failed(1, 1, "connect: refused", sent_ns=None)])
    assert (point.attempted, point.failed) == (2, 1)


def test_short_outputs_are_counted_and_throughput_uses_what_came():
    rows = [record(n, n + 1, output_tokens=37 if n == 1 else 256) for n in range(3)]
    point = closed(rows, output_tokens=256)
    assert point.short_outputs == 1
    assert point.metrics["output_tps"] == pytest.approx((256 + 37 + 256) / 3)
    assert closed(rows).short_outputs is None


def test_the_warm_up_is_counted_and_left_out():
    point = closed([record(0, 3, phase="warmup"), failed(0, 3, phase="warmup"), record(3, 4), record(4, 5)])
    assert (point.warmup_requests, point.warmup_failed, point.attempted) == (2, 1, 2)
    assert point.metrics["e2e_p99"] == 1.0


def test_the_cached_share_is_of_all_prompt_tokens():
    rows = [record(0, 1, cached_tokens=5), record(1, 2, cached_tokens=None), record(2, 3, cached_tokens=0)]
    assert closed(rows).metrics["cached_share"] == pytest.approx(5 / 60)
    assert closed([record(0, 1, cached_tokens=None)]).metrics["cached_share"] is None


def test_lag_and_chunk_gaps_come_from_the_generator_s_summary():
    summary = {
        "client": {"lag_ns": {"p99": 2_000_000}},
        "chunk_gap_ns": {"n": 9, "mean": 1e7, "p50": 9_000_000},
    }
    metrics = closed([record(0, 1)], summary=summary).metrics
    assert metrics["client_lag_p99"] == 0.002
    assert metrics["chunk_gap"] == 0.01
    assert metrics["chunk_gap_p50"] == 0.009
    assert metrics["chunk_gap_p99"] is None


# Speculation.


def test_forty_verify_steps_with_sixty_of_a_hundred_and_twenty_drafts_accepted():
    rows = [
        record(0, 1, output_tokens=51, verify_steps=20, accepted=30, drafted=60),
        record(1, 2, output_tokens=51, verify_steps=20, accepted=30, drafted=60),
    ]
    metrics = closed(rows).metrics
    assert metrics["accept_length"] == 2.5
    assert metrics["accept_rate"] == 0.5


def test_plain_steps_in_between_do_not_change_the_accept_length():
    plain_tokens = 300
    rows = [record(0, 1, output_tokens=1 + 100 + plain_tokens, verify_steps=40, accepted=60, drafted=120)]
    assert closed(rows).metrics["accept_length"] == 2.5


def test_unknown_one_and_nothing_accepted_are_three_things():
    assert closed([record(0, 1)]).metrics["accept_length"] is None
    nothing = closed([record(0, 1, verify_steps=9, accepted=0, drafted=27)]).metrics
    assert nothing["accept_length"] == 1.0
    assert nothing["accept_rate"] == 0.0
    never = closed([record(0, 1, verify_steps=0, accepted=0, drafted=0)]).metrics
    assert never["accept_length"] is None
    assert never["verify_steps"] == 0


def test_without_accepted_counts_the_first_token_is_not_a_verify_output():
    rows = [record(0, 1, output_tokens=101, verify_steps=40)]
    assert closed(rows).metrics["accept_length"] == 2.5
    assert closed(rows).metrics["accept_rate"] is None


# The steady window.


def test_the_window_runs_while_the_asked_concurrency_is_in_flight():
    # Two slots, the second starts 1 s late; slot 1 ends at 6, slot 2 at 10.
    rows = [record(0, 2), record(2, 4), record(4, 6), record(1, 4), record(4, 7), record(7, 10)]
    point = closed(rows, 2)
    assert point.window_s == pytest.approx(5.0)  # from 1 to 6
    assert point.window_reason is None
    assert point.metrics["achieved_concurrency"] == pytest.approx(2.0)
    # Ends at 2, 4, 4 and 6; first outputs at 1.1, 2.1, 4.1 and 4.1, of 20 prompt tokens each.
    told = [point.metrics[name] for name in ("window_s", "requests_per_s", "input_tps")]
    assert told == pytest.approx([5.0, 4 / 5, 80 / 5])


def test_rates_count_ok_requests_and_are_unknown_where_the_server_does_not_tell():
    rows = [record(n, n + 1, prompt_tokens=None) for n in range(3)] + [failed(3, 4)]
    metrics = closed(rows, 1).metrics
    assert (metrics["requests_per_s"], metrics["input_tps"]) == (3 / 4, None)


def test_tokens_are_spread_between_first_and_last_output_at_the_window_s_edges():
    rows = [
        record(0, 2, first_s=0.2),
        record(2, 4, first_s=2.2),
        record(1, 3, first_s=1.2),
        record(3, 5, first_s=3.2),
    ]
    point = closed(rows, 2)
    # From 1 to 4: request 1 gives 9 tokens over [0.2, 2.0], of which 5 after 1.0; request 4 gives 1 + 9 * 0.8 / 1.8.
    assert point.window_s == pytest.approx(3.0)
    assert point.metrics["output_tps"] == pytest.approx((5 + 10 + 10 + 1 + 4) / 3)


def test_a_slot_handed_on_within_a_nanosecond_is_not_a_dip():
    rows = [record(n, n + 1) for n in range(5)] + [record(n, n + 1) for n in range(5)]
    point = closed(rows, 2)
    assert point.window_s == pytest.approx(5.0)
    assert point.metrics["achieved_concurrency"] == pytest.approx(2.0)


def test_too_few_requests_for_the_concurrency_are_flagged():
    point = closed([record(0, 1) for _ in range(40)], 32)
    assert point.window_reason == "fewer than two requests a slot: ramp and drain are inside"
    assert point.window_s == 1.0


def test_a_concurrency_never_reached_is_flagged():
    point = closed([record(n, n + 1) for n in range(8)], 3)
    assert point.window_reason == "the asked concurrency was never in flight"
    assert point.metrics["achieved_concurrency"] == pytest.approx(1.0)


def test_an_open_load_counts_from_the_first_end_to_the_last_sending():
    rows = [record(n * 0.5, n * 0.5 + 1) for n in range(9)]
    point = point_metrics(rows, concurrency=None, load="open")
    assert point.window_s == pytest.approx(3.0)  # from 1 to 4
    assert point.metrics["achieved_concurrency"] == pytest.approx(2.0)


def test_a_straddle_counts_from_the_first_to_the_last_sending():
    rows = [record(n * 0.5, n * 0.5 + 0.5) for n in range(9)]
    point = point_metrics(rows, concurrency=None, load="straddle")
    assert point.window_s == pytest.approx(4.0)
    assert point.metrics["output_tps"] == pytest.approx(20)


def test_the_share_of_time_above_a_level_is_what_was_really_in_flight():
    # One slot all along, a second from 1 to 2 and from 3 to 4.
    rows = [record(n, n + 1) for n in range(5)] + [record(1, 2), record(3, 4)]
    assert share_above(rows, 1) == pytest.approx(0.5)  # 2 s of the 4 s from the first to the last sending
    assert share_above(rows, 0) == pytest.approx(1.0)
    assert share_above(rows, 2) == 0.0
    assert share_above([], 1) is None
    assert share_above([record(0, 1)], 0) is None


def test_records_may_come_as_a_generator():
    assert closed(iter([record(0, 1), record(1, 2)])).ok == 2  # type: ignore[arg-type]
