"""A real HTTP server on loopback that answers each request by a script: bytes, pauses, hang-ups.

A script is an async function `script(request, reply)`; `request` has the parsed body and its number from 0, `reply` the
verbs `send`, `event`, `pause`, `hang_up`. What the server saw is kept: bodies in order, requests in flight over time.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
)


@dataclass
class Request:
    number: int
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class HungUp(Exception):
    pass


class Reply:
    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%s\r\n" % (len(data), data))

    async def event(self, value: object) -> None:
        text = value if isinstance(value, str) else json.dumps(value)
        await self.chunk(f"data: {text}\n\n".encode())

    async def end(self) -> None:
        await self.event("[DONE]")
        await self.send(b"0\r\n\r\n")

    async def status(self, code: int, text: str, kind: str = "application/json") -> None:
        body = text.encode()
        await self.send(
            f"HTTP/1.1 {code} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def hang_up(self) -> None:
        self._writer.transport.abort()
        raise HungUp


Script = Callable[[Request, Reply], Awaitable[None]]


@dataclass
class Seen:
    requests: list[Request] = field(default_factory=list)
    in_flight: int = 0
    peak: int = 0
    levels: list[tuple[float, int]] = field(default_factory=list)  # time, requests in flight from then on
    connections: int = 0


class LoadStub:
    """`with LoadStub(script) as stub:` serves on `stub.port` in a thread of its own."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.seen = Seen()
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> LoadStub:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=2048)
        )
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.seen.connections += 1
        try:
            while True:
                await self._one(reader, writer)
        except (HungUp, asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        request = Request(len(self.seen.requests), head[0].split(" ")[1], headers, body)
        self.seen.requests.append(request)
        self._level(+1)
        try:
            await self._script(request, Reply(writer))
        finally:
            self._level(-1)

    def _level(self, change: int) -> None:
        self.seen.in_flight += change
        self.seen.peak = max(self.seen.peak, self.seen.in_flight)
        self.seen.levels.append((time.perf_counter(), self.seen.in_flight))


def chat_chunk(content: str | None = None, **more: Any) -> dict[str, Any]:
    """A chat chunk as SGLang sends it; `usage`, `finish_reason`, `reasoning_content`, `role` may be given."""
    delta = {"role": more.get("role"), "content": content, "reasoning_content": more.get("reasoning_content")}
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": more.get("finish_reason")}
    return {"id": "c-1", "object": "chat.completion.chunk", "choices": [choice], "usage": more.get("usage")}


def usage(output: int, prompt: int = 5, cached: int | None = None) -> dict[str, Any]:
    details = None if cached is None else {"cached_tokens": cached}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": details,
    }


def usage_chunk(output: int, **more: Any) -> dict[str, Any]:
    return {"id": "c-1", "object": "chat.completion.chunk", "choices": [], "usage": usage(output, **more)}


def chat_script(tokens: int = 4, first_s: float = 0.0, gap_s: float = 0.0) -> Script:
    """An SGLang chat stream: role, one token a chunk with running usage, finish, usage, [DONE]."""

    async def script(request: Request, reply: Reply) -> None:
        await reply.pause(first_s)
        await reply.send(STREAM_HEAD)
        await reply.event(chat_chunk("", role="assistant"))
        for position in range(1, tokens + 1):
            await reply.event(chat_chunk(f"t{position} ", usage=usage(position)))
            await reply.pause(gap_s)
        await reply.event(chat_chunk(finish_reason="length"))
        await reply.event(usage_chunk(tokens))
        await reply.end()

    return script
