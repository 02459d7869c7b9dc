"""A small HTTP/1.1 server on asyncio protocols: keep-alive, Content-Length bodies, chunked streams."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

if TYPE_CHECKING:  # Python 3.8 cannot subscript these when it runs
    Handler = Callable[["HttpRequest"], Awaitable["HttpResponse | None"]]

_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed"}
_REASONS.update(
    {
        411: "Length Required",
        413: "Payload Too Large",
        500: "Internal Server Error",
        503: "Service Unavailable",
    }
)
MAX_BODY = 64 * 1024 * 1024


@dataclass
class HttpRequest:
    """`on_gone` callbacks run when the client goes away before the answer is complete."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    connection: Connection
    on_gone: list[Callable[[], None]] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        """The body as a JSON object; ValueError with a message for the client otherwise."""
        try:
            value = json.loads(self.body or b"{}")
        except ValueError as error:
            raise ValueError(f"the body is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise ValueError("the body must be a JSON object")
        return value


@dataclass
class HttpResponse:
    body: bytes = b""
    status: int = 200
    content_type: str = "application/json"

    @classmethod
    def json(cls, value: Any, status: int = 200) -> HttpResponse:
        return cls(json.dumps(value).encode(), status)

    @classmethod
    def text(cls, value: str, status: int = 200) -> HttpResponse:
        return cls(value.encode(), status, "text/plain; charset=utf-8")


class EventStream:
    """A 200 answer of server-sent events, one chunk of the transfer encoding an event."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._done = asyncio.get_event_loop().create_future()
        connection.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )

    def event(self, data: str) -> None:
        raw = f"data: {data}\n\n".encode()
        self._connection.write(b"%x\r\n%s\r\n" % (len(raw), raw))

    def end(self) -> None:
        self.event("[DONE]")
        self._connection.write(b"0\r\n\r\n")
        self.close()

    def close(self) -> None:
        if not self._done.done():
            self._done.set_result(None)

    async def finished(self) -> None:
        await self._done


class Connection(asyncio.Protocol):
    """One client connection; requests on it are answered one after the other."""

    def __init__(self, handler: Handler, log: logging.Logger) -> None:
        self._handler = handler
        self._log = log
        self._buffer = b""
        self._transport: Any = None
        self._task: asyncio.Task[None] | None = None
        self._current: HttpRequest | None = None
        self._peer = "?"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        host = transport.get_extra_info("peername")
        self._peer = f"{host[0]}:{host[1]}" if host else "?"

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._current is not None:
            for callback in self._current.on_gone:
                callback()

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._next()

    def _next(self) -> None:
        if self._task is not None or self._transport is None:
            return
        request = self._take()
        if request is not None:
            self._current = request
            self._task = asyncio.get_event_loop().create_task(self._answer(request))

    def _take(self) -> HttpRequest | None:
        """The next whole request in the buffer, if it is there."""
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return None
        lines = head.decode("latin-1").split("\r\n")
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        size = int(headers.get("content-length", "0") or 0)
        refused = _refusal(lines[0], headers, size)
        if refused:
            self._refuse(refused)
            return None
        if len(rest) < size:
            return None
        self._buffer = rest[size:]
        method, target, _ = lines[0].split()
        parts = urlsplit(target)
        return HttpRequest(method, parts.path, dict(parse_qsl(parts.query)), headers, rest[:size], self)

    def _refuse(self, status: int) -> None:
        self._send(HttpResponse.text(_REASONS[status], status))
        self._transport.close()

    async def _answer(self, request: HttpRequest) -> None:
        try:
            response = await self._handler(request)
        except ValueError as error:
            response = HttpResponse.json({"error": {"message": str(error)}}, 400)
        except (TypeError, KeyError, AttributeError) as error:
            self._log.exception("Error in request")
            response = HttpResponse.json({"error": {"message": f"Internal server error: {error}"}}, 500)
        status = 200 if response is None else response.status
        self._log.info('%s - "%s %s HTTP/1.1" %d', self._peer, request.method, request.path, status)
        if response is not None:
            self._send(response)
        self._current = None
        self._task = None
        if request.headers.get("connection", "").lower() == "close" and self._transport is not None:
            self._transport.close()
        self._next()

    def _send(self, response: HttpResponse) -> None:
        head = (
            f"HTTP/1.1 {response.status} {_REASONS.get(response.status, 'Unknown')}\r\n"
            f"content-length: {len(response.body)}\r\ncontent-type: {response.content_type}\r\n\r\n"
        )
        self.write(head.encode("latin-1") + response.body)


def _refusal(line: str, headers: dict[str, str], size: int) -> int:
    """The status for a request that cannot be read, or 0."""
    if len(line.split()) != 3:
        return 400
    if "chunked" in headers.get("transfer-encoding", ""):
        return 411
    return 413 if size > MAX_BODY else 0


async def listen(handler: Handler, host: str, port: int, log: logging.Logger) -> asyncio.AbstractServer:
    loop = asyncio.get_event_loop()
    return await loop.create_server(lambda: Connection(handler, log), host, port, backlog=2048)
