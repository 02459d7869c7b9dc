"""Keep-alive connections, opened ahead of need and dropped before the server would drop them."""

from __future__ import annotations

import asyncio
from time import perf_counter_ns
from typing import Optional

from .connection import Connection

# Servers close idle connections (uvicorn after 5 s); a request written into one that is closing would fail for no
# fault of the server, and nothing is sent twice. So an idle connection is not trusted for long.
_FRESH_NS = 2_000_000_000
_OPEN_AT_ONCE = 64
# OverflowError and UnicodeError: a port and a host's name that there cannot be.
NOT_OPENED = (OSError, asyncio.TimeoutError, OverflowError, UnicodeError)


class Pool:
    """Idle connections to one server. Not a limit: the caller decides how many requests are in flight."""

    def __init__(self, host: str, port: int, connect_timeout_s: float) -> None:
        self._host = host
        self._port = port
        self._timeout_s = connect_timeout_s
        self._idle: "list[Connection]" = []
        self.opened = 0

    def take(self) -> Optional[Connection]:
        """The connection used last that is still fresh, or None."""
        now_ns = perf_counter_ns()
        while self._idle:
            connection = self._idle.pop()
            if connection.open and now_ns - connection.idle_since_ns < _FRESH_NS:
                return connection
            connection.close()
        return None

    def give(self, connection: Connection) -> None:
        if connection.open:
            self._idle.append(connection)

    async def open(self) -> Connection:
        """A new connection. Raises one of NOT_OPENED."""
        loop = asyncio.get_running_loop()
        connecting = loop.create_connection(Connection, self._host, self._port)
        _, connection = await asyncio.wait_for(connecting, self._timeout_s)
        self.opened += 1
        return connection

    async def open_ahead(self, count: int) -> None:
        """Have `count` fresh idle connections, as far as the server lets us; a refusal shows when a request is sent."""
        self.close()
        while len(self._idle) < count:
            batch = [self.open() for _ in range(min(_OPEN_AT_ONCE, count - len(self._idle)))]
            got = await asyncio.gather(*batch, return_exceptions=True)
            fresh = [connection for connection in got if isinstance(connection, Connection)]
            self._idle.extend(fresh)
            if len(fresh) < len(batch):
                return

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()
