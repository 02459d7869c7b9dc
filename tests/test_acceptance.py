"""Accept length and the share of speculative steps come from the best source there is, and say which."""

from __future__ import annotations

import pytest

from orchestrator.analysis.acceptance import FROM_SERVER, with_acceptance


def rank(plain: int = 0, spec: int = 0, reqs: int = 0, tokens: int = 0) -> dict:
    counters = {"plain_steps": plain, "spec_steps": spec, "spec_reqs": reqs, "spec_tokens": tokens}
    return {"dynspec_stats": counters}


def found(client: float | None, before: list, after: list, *, speculates: bool = True, flushed: bool = True):
    metrics = {"accept_length": client, "accept_rate": 0.4, "verify_steps": None}
    return with_acceptance(metrics, speculates=speculates, before=before, after=after, flushed=flushed)


def test_the_patchs_counters_outrank_what_requests_say():
    """A v2 worker counts a plain step as a verify step of one token: requests say 1.00, the few real ones 3.4."""
    metrics, notes = found(1.00, [rank(416, 260, 514, 1769)], [rank(608, 265, 524, 1803)])
    assert metrics["accept_length"] == pytest.approx(3.4)
    assert metrics["spec_share"] == pytest.approx(5 / 197)
    assert metrics["verify_steps"] == 10
    assert metrics["accept_rate"] is None  # the requests' drafts count plain steps too
    assert notes == ()


def test_without_a_speculative_step_there_is_no_accept_length():
    metrics, _ = found(1.00, [rank(10, 7, 7, 14)], [rank(90, 7, 7, 14)])
    assert metrics["accept_length"] is None
    assert metrics["spec_share"] == 0


def test_where_all_steps_speculated_the_requests_accept_rate_stays():
    metrics, _ = found(2.0, [rank()], [rank(0, 50, 100, 250)])
    assert (metrics["accept_length"], metrics["accept_rate"], metrics["spec_share"]) == (2.5, 0.4, 1.0)


def test_counters_are_summed_over_ranks():
    metrics, _ = found(None, [rank(), rank()], [rank(10, 10, 10, 20), rank(0, 20, 30, 100)])
    assert metrics["accept_length"] == pytest.approx(3.0)
    assert metrics["spec_share"] == pytest.approx(0.75)


def test_counters_that_went_back_are_no_counters():
    metrics, _ = found(2.2, [rank(10, 10, 10, 20)], [rank(1, 1, 1, 2)])
    assert (metrics["accept_length"], metrics["spec_share"]) == (2.2, None)


def test_requests_that_tell_verify_steps_outrank_the_servers_average():
    metrics, notes = found(2.2, [{}], [{"avg_spec_accept_length": 3.3}])
    assert (metrics["accept_length"], notes) == (2.2, ())


def test_a_chat_endpoint_falls_back_to_the_servers_average_since_the_flush_and_says_so():
    metrics, notes = found(None, [{}], [{"avg_spec_accept_length": 2.7}, {"avg_spec_accept_length": 9.0}])
    assert (metrics["accept_length"], notes) == (2.7, (FROM_SERVER,))


@pytest.mark.parametrize(
    "change",
    [
        {"flushed": False},
        {"speculates": False},
        {"before": [{"avg_spec_accept_length": 2.1}]},  # others' requests are in the average
        {"after": [{"avg_spec_accept_length": None}]},
        {"after": []},
    ],
)
def test_a_server_average_that_may_hold_anything_else_is_not_used(change):
    given = {"before": [{}], "after": [{"avg_spec_accept_length": 2.7}], **change}
    metrics, notes = found(None, given.pop("before"), given.pop("after"), **given)
    assert (metrics["accept_length"], notes) == (None, ())
