"""The end of a response is found to the byte, however the bytes arrive."""

from __future__ import annotations

import pytest

from orchestrator.loadgen.events import payload
from orchestrator.loadgen.framing import Framing, FramingError

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n"
    b"b\r\ndata: 0\r\n\r\n\r\n"  # a payload that looks like the end of the response
    b"5;name=value\r\nhello\r\n"
    b"1A\r\n" + b"x" * 26 + b"\r\n"
    b"0\r\nTrailer: yes\r\n\r\n"
)
CHUNKED_BODY = b"data: 0\r\n\r\nhello" + b"x" * 26
SIZED = b"HTTP/1.1 503 Busy\r\nContent-Length: 7\r\n\r\ntoo bad"


def feed_all(response: bytes, sizes: list[int]) -> Framing:
    """Feed pieces of these sizes; the response must be complete exactly at its last byte."""
    framing, raw = Framing(), bytearray()
    for size in sizes:
        raw += response[len(raw) : len(raw) + size]
        assert framing.feed(raw) == (len(raw) == len(response))
    return framing


@pytest.mark.parametrize("response", [CHUNKED, SIZED], ids=["chunked", "content-length"])
def test_the_payload_and_the_end_are_the_same_for_every_cut(response):
    whole = feed_all(response, [len(response)])
    body = payload(response, whole.segments)
    assert body == (CHUNKED_BODY if response is CHUNKED else b"too bad")
    for cut in range(1, len(response)):
        assert payload(response, feed_all(response, [cut, len(response) - cut]).segments) == body
    assert payload(response, feed_all(response, [1] * len(response)).segments) == body


def test_a_response_without_length_ends_with_its_connection():
    framing = Framing()
    response = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nall there is"
    assert not framing.feed(bytearray(response[:50]))
    assert not framing.feed(bytearray(response))
    assert framing.end_of_input(bytearray(response))
    assert payload(response, framing.segments) == b"all there is"


def test_a_chunked_response_does_not_end_with_its_connection():
    framing = Framing()
    framing.feed(bytearray(CHUNKED[:-3]))
    assert not framing.end_of_input(bytearray(CHUNKED[:-3]))


def test_an_interim_response_is_skipped():
    response = b"HTTP/1.1 100 Continue\r\n\r\n" + SIZED
    framing = feed_all(response, [1] * len(response))
    assert framing.status == 503
    assert payload(response, framing.segments) == b"too bad"


@pytest.mark.parametrize(
    ("head", "keep_alive"),
    [
        (b"HTTP/1.1 200 OK\r\n", True),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n", False),
        (b"HTTP/1.0 200 OK\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n", True),
    ],
)
def test_whether_the_connection_may_be_used_again_is_read_from_the_head(head, keep_alive):
    framing = Framing()
    framing.feed(bytearray(head + b"Content-Length: 0\r\n\r\n"))
    assert framing.done
    assert framing.keep_alive is keep_alive


@pytest.mark.parametrize(
    "response",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        SIZED + b"more",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000,
    ],
)
def test_what_is_no_http_response_is_refused(response):
    with pytest.raises(FramingError):
        Framing().feed(bytearray(response))
