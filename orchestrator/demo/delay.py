"""A loopback relay that delivers every byte later, from the first packet on: the distance to a far node."""

from __future__ import annotations

import asyncio
import contextlib


class DelayedRelay:
    """Listens on 127.0.0.1 and passes connections on to `port`, each direction late by `delay_s`.

    Connecting costs a round trip, as a handshake does.
    """

    def __init__(self, port: int, delay_s: float) -> None:
        self._target = port
        self._delay_s = delay_s
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """The port to connect to."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(2 * self._delay_s)
        try:
            back, forth = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(self._pump(reader, forth), self._pump(back, writer))

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Bytes keep their order and their distance in time; the queue is bounded, so a full pipe holds back."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(1024)

        async def read() -> None:
            with contextlib.suppress(ConnectionError):
                while data := await source.read(65536):
                    await queue.put((loop.time() + self._delay_s, data))
            await queue.put((loop.time() + self._delay_s, b""))

        reading = asyncio.ensure_future(read())
        with contextlib.suppress(ConnectionError):
            while True:
                due, data = await queue.get()
                await asyncio.sleep(max(due - loop.time(), 0))
                if not data:
                    break
                sink.write(data)
                await sink.drain()
        reading.cancel()
        sink.close()
