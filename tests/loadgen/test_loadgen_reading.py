"""What a response means: tokens, times and success, from the bytes that came and when."""

from __future__ import annotations

import hashlib
import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.loadgen.bodies import CHAT, COMPLETIONS, GENERATE
from orchestrator.loadgen.reading import Reading, record_line
from tests.loadgen.exchanges import HEAD, LAST_CHUNK, MS, chunk, event, exchange_of, read, stream
from tests.loadgen.loadstub import chat_chunk, usage, usage_chunk


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def generate_event(
    text: str | None, tokens: int, finish: dict | None = None, ids: list[int] | None = None, **meta
):
    value = {
        "meta_info": {
            "id": "g",
            "finish_reason": finish,
            "prompt_tokens": 7,
            "completion_tokens": tokens,
            **meta,
        }
    }
    if text is not None:
        value["text"] = text
    if ids is not None:
        value["output_ids"] = ids
    return value


LENGTH = {"type": "length", "length": 6}


# Tokens are counted by the server.


def test_ten_chunks_of_three_tokens_are_thirty_tokens():
    chunks = [(10.0 * n, chat_chunk("abc")) for n in range(1, 11)]
    record = read(stream([*chunks, (101, chat_chunk(finish_reason="length")), (102, usage_chunk(30))]))
    assert record["output_tokens"] == 30
    assert record["chunks"] == 10
    assert record["first_tokens"] is None  # no usage on the first chunk: unknown, not 1
    assert record["ok"]


def test_without_usage_the_token_count_is_unknown():
    chunks = [(10.0 * n, chat_chunk("abc")) for n in range(1, 11)]
    record = read(stream([*chunks, (101, chat_chunk(finish_reason="length"))]))
    assert record["output_tokens"] is None
    assert record["prompt_tokens"] is None
    assert record["ok"]


def test_running_usage_tells_the_tokens_of_the_first_chunk():
    events = [(50, chat_chunk("abc", usage=usage(3))), (60, chat_chunk("de", usage=usage(5)))]
    record = read(stream([*events, (61, chat_chunk(finish_reason="length")), (61, usage_chunk(5))]))
    assert (record["first_tokens"], record["output_tokens"]) == (3, 5)


def test_chunks_that_come_in_one_read_are_the_first_output_together():
    first = event(chat_chunk("a", usage=usage(1))) + event(chat_chunk("b", usage=usage(2)))
    rest = event(chat_chunk("c", usage=usage(3))) + event(chat_chunk(finish_reason="stop")) + LAST_CHUNK
    record = read([(40, HEAD), (50, first), (70, rest)])
    assert record["first_tokens"] == 2
    assert (record["first_ns"], record["last_ns"]) == (50 * MS, 70 * MS)


def test_two_kinds_of_output_of_one_step_have_one_count():
    step = event(chat_chunk(reasoning_content="so", usage=usage(2))) + event(chat_chunk("a", usage=usage(2)))
    end = event(chat_chunk("b", usage=usage(3), finish_reason="stop")) + LAST_CHUNK
    record = read([(40, HEAD), (50, step), (60, end)])
    assert (record["first_tokens"], record["output_tokens"], record["chunks"]) == (2, 3, 3)


def test_cached_tokens_are_those_the_server_reports():
    assert read(stream([(5, chat_chunk("a")), (6, usage_chunk(1, cached=64))]))["cached_tokens"] == 64
    assert read(stream([(5, chat_chunk("a")), (6, usage_chunk(1))]))["cached_tokens"] is None


# The first output.


def test_reasoning_is_output_and_a_role_is_not():
    record = read(
        stream(
            [
                (5, chat_chunk("", role="assistant")),
                (200, chat_chunk(reasoning_content="hm")),
                (500, chat_chunk("so")),
                (501, chat_chunk(finish_reason="stop")),
                (502, usage_chunk(2)),
            ]
        )
    )
    assert record["first_ns"] == 200 * MS
    assert record["last_ns"] == 500 * MS
    assert record["chunks"] == 2
    assert record["output_sha256"] == sha("hmso")


def test_a_tool_call_is_output():
    call = chat_chunk()
    call["choices"][0]["delta"]["tool_calls"] = [{"index": 0, "function": {"name": "run", "arguments": ""}}]
    record = read(stream([(30, call), (40, chat_chunk(finish_reason="tool_calls")), (40, usage_chunk(9))]))
    assert record["first_ns"] == 30 * MS
    assert record["output_sha256"] == sha("run")


def test_all_output_in_one_chunk_has_a_first_time_and_no_span():
    record = read(
        stream([(80, chat_chunk("all of it", usage=usage(9))), (80, chat_chunk(finish_reason="stop"))])
    )
    assert record["first_ns"] == record["last_ns"] == 80 * MS
    assert record["first_tokens"] == record["output_tokens"] == 9


def test_tokens_without_text_end_with_the_finish():
    events = [(50, chat_chunk("a", usage=usage(1))), (60, chat_chunk("b", usage=usage(2)))]
    record = read(stream([*events, (90, chat_chunk(finish_reason="length")), (90, usage_chunk(5))]))
    assert record["last_ns"] == 90 * MS
    assert (
        read(stream([*events, (90, chat_chunk(finish_reason="length")), (90, usage_chunk(2))]))["last_ns"]
        == 60 * MS
    )


# Success and failure.

ERROR = {"error": {"object": "error", "message": "out of KV cache", "type": "X", "code": 500}}
STOP = chat_chunk(finish_reason="stop")
FAILURES = {
    "error event before any token": ([(5, ERROR)], "error event: out of KV cache (500)"),
    "error event after tokens": ([(5, chat_chunk("a")), (6, ERROR)], "error event: out of KV cache (500)"),
    "abort": ([(5, chat_chunk("a")), (6, chat_chunk(finish_reason="abort")), (6, usage_chunk(1))], "finished by abort"),
    "zero tokens": ([(5, chat_chunk("", role="assistant")), (6, STOP), (6, usage_chunk(0))], "no output tokens"),
    "no output, no usage": ([(5, chat_chunk("", role="assistant")), (6, STOP)], "no output"),
    "of another shape": ([(5, {"choices": ["a"]})], 'malformed event: {"choices": ["a"]}'),
    "not json": ([(5, chat_chunk("a")), (6, '{"choices": [')], 'malformed event: {"choices": ['),
    "not an object": ([(5, "17")], "malformed event: 17"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILURES)
def test_a_bad_stream_with_status_200_is_a_failure_with_its_reason(name):
    events, reason = FAILURES[name]
    record = read(stream(events))
    assert not record["ok"]
    assert record["error"] == reason


def test_an_error_key_without_an_error_is_no_failure():
    record = read(stream([(5, {**chat_chunk("a", usage=usage(1), finish_reason="stop"), "error": None})]))
    assert (record["ok"], record["chunks"]) == (True, 1)


def test_a_stream_without_finish_and_end_mark_is_a_failure():
    record = read(stream([(5, chat_chunk("a", usage=usage(1)))], done=False))
    assert record["error"] == "ended without a finish reason"


def test_an_early_stop_is_ok_and_its_tokens_are_those_that_came():
    record = read(stream([(5, chat_chunk("a")), (6, chat_chunk(finish_reason="stop")), (6, usage_chunk(37))]))
    assert record["ok"]
    assert (record["finish"], record["output_tokens"]) == ("stop", 37)


def test_a_status_other_than_200_is_a_failure_with_the_text_of_the_body():
    record = read([(5, b"HTTP/1.1 503 Busy\r\nContent-Length: 11\r\n\r\nqueue full\n")])
    assert record["error"] == "HTTP 503: queue full"
    assert record["first_ns"] is None


def test_a_200_that_is_no_event_stream_is_a_failure():
    body = b'{"error": "unknown model"}'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    assert (
        read([(5, head + body)])["error"]
        == 'not an event stream but application/json: {"error": "unknown model"}'
    )


def test_a_transport_failure_keeps_what_was_measured_before_it():
    parts = stream([(5, chat_chunk("a", usage=usage(1))), (9, chat_chunk("b", usage=usage(2)))])[:3]
    record = read([*parts, (12, b"40\r\ndata: {")], failure="disconnected")
    assert record["error"] == "disconnected"
    assert record["first_ns"] == 5 * MS
    assert record["output_tokens"] == 2


# /generate and completions.


@pytest.mark.parametrize("incremental", [False, True], ids=["repeating", "incremental"])
def test_generate_text_is_digested_once_whether_it_repeats_or_not(incremental):
    pieces = ["one ", "two ", "two "]
    ids = [[11], [12, 13], [12, 14, 15]]
    events, text, seen = [], "", []
    for position, (piece, new) in enumerate(zip(pieces, ids, strict=True)):
        text, seen = text + piece, seen + new
        shown, shown_ids = (piece, new) if incremental else (text, seen)
        finish = LENGTH if position == 2 else None
        events.append((10.0 * (position + 1), generate_event(shown, len(seen), finish, shown_ids)))
    record = read(stream(events), GENERATE)
    assert record["output_sha256"] == sha("one two two ")
    assert (record["first_tokens"], record["output_tokens"], record["chunks"]) == (1, 6, 3)
    assert record["finish"] == "length"


@pytest.mark.parametrize("incremental", [False, True], ids=["repeating", "incremental"])
def test_generate_without_tokenizer_is_digested_by_its_ids(incremental):
    events, seen = [], []
    for position, new in enumerate([[5], [6, 7], [5, 6]]):
        seen = seen + new
        events.append(
            (10.0 + position, generate_event(None, len(seen), LENGTH, new if incremental else seen))
        )
    assert read(stream(events), GENERATE)["output_sha256"] == sha("5,6,7,5,6")


def test_generate_tells_cached_tokens_and_speculation():
    last = generate_event(
        "ab",
        101,
        LENGTH,
        cached_tokens=3,
        spec_verify_ct=40,
        spec_accepted_drafts=60,
        spec_proposed_drafts=120,
    )
    record = read(stream([(5, generate_event("a", 1, None, cached_tokens=3)), (90, last)]), GENERATE)
    assert (record["verify_steps"], record["accepted"], record["drafted"]) == (40, 60, 120)
    assert (record["prompt_tokens"], record["cached_tokens"]) == (7, 3)


@pytest.mark.parametrize(
    ("accepted_key", "drafted_key"),
    [
        ("spec_accept_token_num", "spec_draft_token_num"),
        ("spec_accepted_drafts", "spec_proposed_drafts"),
        ("spec_num_correct_drafts", "spec_num_proposed_drafts"),
    ],
)
def test_generate_speculation_is_read_under_every_release_s_names(accepted_key, drafted_key):
    last = generate_event("a", 9, LENGTH, spec_verify_ct=4, **{accepted_key: 4, drafted_key: 12})
    record = read(stream([(5, last)]), GENERATE)
    assert (record["accepted"], record["drafted"]) == (4, 12)


def test_generate_without_speculation_leaves_it_unknown():
    record = read(stream([(5, generate_event("a", 1, LENGTH))]), GENERATE)
    assert record["verify_steps"] is None
    assert record["accepted"] is None


def test_generate_aborted_is_a_failure_with_its_message():
    abort = {"type": "abort", "message": "input is too long", "status_code": 400}
    record = read(stream([(5, generate_event("", 0, abort))]), GENERATE)
    assert record["error"] == "aborted: input is too long"


def test_completions_text_is_output():
    def text(value: str, finish: str | None = None) -> dict:
        return {
            "object": "text_completion",
            "choices": [{"index": 0, "text": value, "finish_reason": finish}],
        }

    record = read(stream([(20, text("ab")), (30, text("cd")), (40, text("", "length"))]), COMPLETIONS)
    assert (record["first_ns"], record["last_ns"]) == (20 * MS, 30 * MS)
    assert record["output_sha256"] == sha("abcd")
    assert record["finish"] == "length"


# Lines as they come.

ODD = (
    b": ping\n\n"
    b'data:{"choices":[{"delta":{"content":"a\xc3\xa9"}}]}\r\n\r\n'
    b"event: message\rid: 4\rretry: 10\r"
    b'data: {"choices":\rdata:  [{"delta":{"content":"b"}}]}\r\r'
    b": another comment\r\n"
    b'data: {"choices":[{"delta":{"content":"\xf0\x9f\x99\x82"},"finish_reason":"stop"}],'
    b'"usage":{"completion_tokens":3}}\n\n'
    b"data:[DONE]\n\n"
)


def odd_response() -> bytes:
    """Two HTTP chunks that don't end where events end."""
    return HEAD + chunk(ODD[:77]) + chunk(ODD[77:]) + LAST_CHUNK


def test_comments_line_ends_and_fields_do_not_change_the_meaning_for_any_cut():
    response = odd_response()
    start = len(HEAD)
    for cut in range(1, len(response)):
        record = read([(10, response[:cut]), (20, response[cut:])])
        assert record["output_sha256"] == sha("aé" + "b" + "\U0001f642")
        assert (record["chunks"], record["output_tokens"], record["ok"]) == (3, 3, True)
        # The comment alone sets no time: the first event is complete with its blank line.
        first_event_end = start + response[start:].index(b"\r\n\r\n", 8) + 4
        assert record["first_ns"] == (10 * MS if cut >= first_event_end else 20 * MS)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_way_of_cutting_gives_the_same_record_but_for_times(data):
    response = odd_response()
    cuts = sorted(data.draw(st.sets(st.integers(1, len(response) - 1), max_size=12)))
    edges = [0, *cuts, len(response)]
    parts = [(float(at), response[a:b]) for at, (a, b) in enumerate(pairwise(edges))]
    times = ("first_ns", "last_ns", "end_ns", "first_tokens")
    whole, cut = read([(0, response)]), read(parts)
    assert {k: v for k, v in cut.items() if k not in times} == {
        k: v for k, v in whole.items() if k not in times
    }


def test_an_event_is_stamped_by_the_read_that_completed_it():
    one = event(chat_chunk("a", usage=usage(1)))
    parts = [(1, HEAD), (5, one[:20]), (9, one[20:])]
    assert read([*parts, (20, event(chat_chunk(finish_reason="stop")) + LAST_CHUNK)])["first_ns"] == 9 * MS


# The line.


def test_a_record_has_the_contract_s_keys():
    keys = {
        "i", "due_ns", "sent_ns", "first_ns", "last_ns", "chunks", "prompt_tokens", "cached_tokens", "first_tokens",
        "output_tokens", "finish", "ok", "error", "output_sha256",
    }  # fmt: skip
    assert keys <= set(read(stream([(5, chat_chunk("a"))])))


@pytest.mark.parametrize("filler", ["x", "é", '"', "\U0001f642"])
def test_a_record_line_stays_below_500_bytes(filler):
    record = read(stream([(5, chat_chunk("a")), (6, {"error": {"message": filler * 2000}})]))
    big = 9_999_999_999_999_999
    record.update(
        {key: big for key in record if key.endswith("_ns")}, output_tokens=999_999, output_sha256="f" * 64
    )
    line = record_line(record)
    assert len(line.encode()) < 499
    assert json.loads(line)["error"].startswith("error event: " + filler)


def test_the_reading_keeps_every_output_time():
    exchange = exchange_of(
        stream([(5, chat_chunk("a")), (7, chat_chunk("b")), (7, chat_chunk(finish_reason="stop"))])
    )
    assert list(Reading(exchange, bytes(exchange.raw), CHAT).output_ns) == [5 * MS, 7 * MS]
