"""One keep-alive connection: writes a request, stamps and keeps what comes back."""

from __future__ import annotations

import asyncio
from time import perf_counter_ns
from typing import Callable, Optional, cast

from .exchange import Exchange
from .framing import FramingError

Done = Callable[["Connection", Exchange], None]


# All connections read into one buffer, one after the other: the loop is one thread. asyncio's own would be 256 KiB of
# new memory for each read, two page faults each, which costs more than all else here.
_BUFFER = memoryview(bytearray(65536))


class Connection(asyncio.BufferedProtocol):
    """Carries one exchange at a time; `on_done` is called once for each, however it ended."""

    def __init__(self) -> None:
        self._on_done: Optional[Done] = None
        self._transport: Optional[asyncio.Transport] = None
        self.exchange: Optional[Exchange] = None
        self.idle_since_ns = 0
        self.open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.idle_since_ns = perf_counter_ns()
        self.open = True

    def send(self, request: bytes, exchange: Exchange, on_done: Done) -> None:
        """Write one request; its sending time is taken just before the write."""
        assert self._transport is not None
        self.exchange = exchange
        self._on_done = on_done
        exchange.sent_ns = perf_counter_ns()
        self._transport.write(request)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        now_ns = perf_counter_ns()
        exchange = self.exchange
        if exchange is None:  # nothing was asked: the connection cannot be trusted any more
            self.close()
            return
        raw = exchange.raw
        raw += _BUFFER[:nbytes]
        exchange.stamps.append(now_ns)
        exchange.read_ends.append(len(raw))
        try:
            done = exchange.framing.feed(raw)
        except FramingError as error:
            self.fail(f"malformed response: {error}")
            return
        if done:
            self._finish(now_ns, exchange.framing.keep_alive)

    def eof_received(self) -> bool:
        return False  # close our side too; connection_lost follows

    def connection_lost(self, error: Optional[Exception]) -> None:
        self.open = False
        exchange = self.exchange
        if exchange is None:
            return
        if error is None and exchange.framing.end_of_input(exchange.raw):
            self._finish(perf_counter_ns(), keep=False)
            return
        detail = f": {error}" if error else ""
        self.fail(f"disconnected after {len(exchange.raw)} bytes of the response{detail}")

    def fail(self, reason: str) -> None:
        """End the exchange under way with a transport failure and drop the connection."""
        if self.exchange is not None:
            self.exchange.failure = reason
            self._finish(perf_counter_ns(), keep=False)
        else:
            self.close()

    def close(self) -> None:
        self.open = False
        if self._transport is not None:
            self._transport.abort()

    def _finish(self, now_ns: int, keep: bool) -> None:
        exchange = self.exchange
        assert exchange is not None
        assert self._on_done is not None
        self.exchange = None
        exchange.end_ns = self.idle_since_ns = now_ns
        if not keep:
            self.close()
        # Later, not now: what follows takes time, and the other connections that are ready have yet to be stamped.
        asyncio.get_running_loop().call_soon(self._on_done, self, exchange)
