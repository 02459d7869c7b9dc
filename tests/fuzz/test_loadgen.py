"""What a server sends back: framing, events and records come out the same however the bytes were cut, and rubbish is a
failed request with a reason, never an end of the load generator."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.loadgen.bodies import CHAT, COMPLETIONS
from orchestrator.loadgen.events import split_events
from orchestrator.loadgen.exchange import Exchange
from orchestrator.loadgen.framing import Framing, FramingError
from orchestrator.loadgen.reading import Reading, record_line
from tests.fuzz.budget import fuzzed
from tests.fuzz.strategies import damaged, with_odd_values

GENERATE = "/generate"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
CHAT_EVENTS: list[Any] = [
    {
        "choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}],
        "usage": {"completion_tokens": 0},
    },
    {"choices": [{"delta": {"reasoning_content": "h\u00e9"}}], "usage": {"completion_tokens": 1}},
    {"choices": [{"delta": {"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}}]},
    {"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]},
    {
        "choices": [],
        "usage": {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}},
    },
    {"error": {"message": "out of memory", "code": 500}},
]
GENERATE_EVENTS: list[Any] = [
    {"text": "a", "output_ids": [1], "meta_info": {"completion_tokens": 1, "cached_tokens": 0}},
    {
        "text": "ab",
        "output_ids": [1, 2],
        "meta_info": {"completion_tokens": 2, "spec_verify_ct": 1, "finish_reason": {"type": "length"}},
    },
    {"text": "", "meta_info": {"finish_reason": {"type": "abort", "message": "too long"}}},
]
EVENTS = {
    CHAT: CHAT_EVENTS,
    COMPLETIONS: [{"choices": [{"text": "x", "finish_reason": "stop"}]}],
    GENERATE: GENERATE_EVENTS,
}
PIECES = [
    b"\r\n", b"\n", b"\r", b": hello\n\n", b"data:", b"data: [DONE]\n\n", b"0\r\n\r\n",
    b"ffffffffffffffff\r\n", b"-1\r\n", b"\xff", b"HTTP/1.1 100 Continue\r\n\r\n",
    b"Content-Length: 5\r\n", b"Content-Length: -5\r\n", b"event: x\n", b"\xef\xbb\xbf", b"{", b"1e999",
    b"data: " + b"[" * 100_000 + b"\n\n",
]  # fmt: skip


def chunked(body: bytes, size: int = 40) -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return HEAD + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def stream(events: list[Any]) -> bytes:
    return (
        b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"
    )


WHOLE = [chunked(stream(events), size) for events in EVENTS.values() for size in (7, 4000)]
WHOLE.append(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy")
WHOLE.append(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + stream(CHAT_EVENTS))


def received(raw: bytes, cuts: list[int]) -> Exchange:
    """An exchange as a connection fills it, read by read."""
    exchange = Exchange("load", 0, 0)
    exchange.sent_ns = 1
    edges = [0, *sorted({cut % (len(raw) + 1) for cut in cuts}), len(raw)]
    for number, (start, end) in enumerate(pairwise(edges), 2):
        if start == end or exchange.framing.done:
            continue
        exchange.raw += raw[start:end]
        exchange.read_ends.append(end)
        exchange.stamps.append(number)
        try:
            exchange.framing.feed(exchange.raw)
        except FramingError as error:
            exchange.failure = f"malformed response: {error}"
            break
    if (
        exchange.failure is None
        and not exchange.framing.done
        and not exchange.framing.end_of_input(exchange.raw)
    ):
        exchange.failure = "disconnected"
    exchange.end_ns = 10_000
    return exchange


def record_of(raw: bytes, endpoint: str, cuts: list[int]) -> dict[str, Any]:
    exchange = received(raw, cuts)
    exchange.tail_tokens()
    exchange.looks_failed()
    record = Reading(exchange, bytes(exchange.raw), endpoint).record()
    line = record_line(record)
    assert len(line) < 500
    assert json.loads(line)["ok"] is record["ok"]
    assert record["ok"] is (record["error"] is None)
    for name in ("prompt_tokens", "output_tokens", "cached_tokens", "first_tokens"):
        assert record[name] is None or (type(record[name]) is int and record[name] >= 0), name
    return record


@fuzzed(0.6)
@given(damaged(WHOLE, PIECES), st.sampled_from(list(EVENTS)), st.lists(st.integers(0, 5000), max_size=6))
def test_a_damaged_answer_is_a_record(raw: bytes, endpoint: str, cuts: list[int]) -> None:
    record_of(raw, endpoint, cuts)


@fuzzed(0.5)
@given(damaged(WHOLE, PIECES), st.lists(st.integers(0, 5000), max_size=8))
def test_where_the_reads_ended_changes_nothing_but_the_stamps(raw: bytes, cuts: list[int]) -> None:
    whole, cut = received(raw, []), received(raw, cuts)
    if whole.failure is None and cut.failure is None:
        assert whole.framing.segments == cut.framing.segments
        assert whole.framing.headers == cut.framing.headers
    assert whole.framing.status == cut.framing.status or whole.failure or cut.failure


@fuzzed(0.4)
@given(st.sampled_from(list(EVENTS)), st.data())
def test_odd_events_are_a_record(endpoint: str, drawn: st.DataObject) -> None:
    events = drawn.draw(with_odd_values([EVENTS[endpoint]]))
    body = stream(events if isinstance(events, list) else [events])
    record_of(chunked(body, 4000), endpoint, [])


@fuzzed(0.5)
@given(st.binary(max_size=300))
def test_any_bytes_are_framed_or_refused(raw: bytes) -> None:
    framing = Framing()
    try:
        framing.feed(bytearray(raw))
    except FramingError:
        return
    framing.end_of_input(bytearray(raw))


@fuzzed()
@given(damaged([stream(CHAT_EVENTS), b"data: a\r\n\r\ndata:b\rdata\n\n"], PIECES))
def test_each_event_ends_after_the_one_before_and_inside_the_body(body: bytes) -> None:
    datas, ends = split_events(body)
    assert len(datas) == len(ends)
    assert list(ends) == sorted(set(ends))
    assert not ends or 0 < ends[0] <= ends[-1] <= len(body)
