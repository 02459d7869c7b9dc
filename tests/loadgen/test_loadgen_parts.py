"""The small parts: raw bytes kept until they are parsed, and the generator's own figures."""

from __future__ import annotations

import pytest

from orchestrator.loadgen.meter import histogram, nearest_rank, spread
from orchestrator.loadgen.rawstore import RawStore
from tests.loadgen.exchanges import exchange_of, stream
from tests.loadgen.loadstub import chat_chunk, usage


def test_raw_bytes_beyond_the_limit_come_back_from_the_file(tmp_path):
    exchanges = [exchange_of([(1, b"HTTP/1.1 500 X\r\nContent-Length: 3\r\n\r\nno%d" % n)]) for n in range(5)]
    wanted = [bytes(exchange.raw) for exchange in exchanges]
    store = RawStore(str(tmp_path), in_memory_bytes=100)
    for exchange in exchanges:
        store.keep(exchange)
    assert store.spilled_bytes == sum(map(len, wanted[2:]))
    assert not any(exchange.raw for exchange in exchanges[2:])
    assert [store.raw_of(exchange) for exchange in reversed(exchanges)] == wanted[::-1]
    assert list(tmp_path.iterdir()) == []  # nothing is left, whatever happens


def test_the_token_count_for_progress_is_the_last_one():
    events = [(n, chat_chunk("a", usage=usage(n))) for n in (1, 2, 3)]
    assert exchange_of(stream(events)).tail_tokens() == 3
    assert exchange_of(stream([(1, chat_chunk("a"))])).tail_tokens() is None
    assert exchange_of([]).tail_tokens() is None


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([10, 20, 30], 0.99, 30),
        ([10, 20, 30], 0.5, 20),
        ([10, 20, 30, 40], 0.5, 20),
        ([7], 0.01, 7),
        ([], 0.5, None),
    ],
)
def test_percentiles_are_nearest_rank(values, share, expected):
    assert nearest_rank(values, share) == expected


def test_a_spread_of_nothing_is_unknown_and_not_zero():
    assert spread([]) == {
        "n": 0,
        "mean": None,
        "p50": None,
        "p90": None,
        "p95": None,
        "p99": None,
        "max": None,
    }


def test_a_histogram_counts_below_powers_of_two():
    assert histogram([0, 1, 2, 3, 1000]) == {"1": 1, "2": 1, "4": 2, "1024": 1}
