"""Exchanges as the wire would make them: bytes that come at given milliseconds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from orchestrator.loadgen.bodies import CHAT
from orchestrator.loadgen.exchange import LOAD, Exchange
from orchestrator.loadgen.reading import Reading

MS = 1_000_000
HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(value: object) -> bytes:
    """One event in an HTTP chunk of its own."""
    text = value if isinstance(value, str) else json.dumps(value)
    return chunk(f"data: {text}\n\n".encode())


def exchange_of(parts: Sequence[tuple[float, bytes]], failure: str | None = None) -> Exchange:
    """Sent at 0 ms, then reads at (ms, bytes)."""
    exchange = Exchange(LOAD, 0, 0)
    exchange.sent_ns = 0
    for at_ms, data in parts:
        exchange.raw += data
        exchange.stamps.append(int(at_ms * MS))
        exchange.read_ends.append(len(exchange.raw))
        exchange.framing.feed(exchange.raw)
    exchange.end_ns = exchange.stamps[-1] if parts else 0
    exchange.failure = failure
    return exchange


def read(
    parts: Sequence[tuple[float, bytes]], endpoint: str = CHAT, failure: str | None = None
) -> dict[str, Any]:
    """The record of an exchange with these reads."""
    exchange = exchange_of(parts, failure)
    return Reading(exchange, bytes(exchange.raw), endpoint).record()


def stream(events: Sequence[tuple[float, object]], *, done: bool = True) -> list[tuple[float, bytes]]:
    """Reads of a whole 200 response with these events; `[DONE]` and the last chunk come with the last one."""
    parts = [(events[0][0] if events else 1.0, HEAD)]
    parts += [(at_ms, event(value)) for at_ms, value in events]
    last_ms = parts[-1][0]
    return [*parts, (last_ms, (event("[DONE]") if done else b"") + LAST_CHUNK)]
