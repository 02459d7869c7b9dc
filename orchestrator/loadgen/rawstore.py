"""Keeps finished exchanges until they are parsed; beyond a limit their bytes wait in a temporary file."""

from __future__ import annotations

import tempfile
from typing import IO, Optional

from .exchange import Exchange

# /generate repeats the whole text and all ids in every event, so raw bytes grow with the square of the output.
_IN_MEMORY_BYTES = 256 << 20


class RawStore:
    """Finished exchanges in the order they ended. The file lies in `folder` and has no name there."""

    def __init__(self, folder: str, in_memory_bytes: int = _IN_MEMORY_BYTES) -> None:
        self._folder = folder
        self._room = in_memory_bytes
        self._file: Optional[IO[bytes]] = None
        self.exchanges: "list[Exchange]" = []
        self.spilled_bytes = 0

    def keep(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        size = len(exchange.raw)
        if size <= self._room:
            self._room -= size
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
        exchange.spilled_at = self.spilled_bytes
        self._file.write(exchange.raw)
        self.spilled_bytes += size
        exchange.raw = bytearray()

    def raw_of(self, exchange: Exchange) -> bytes:
        """The response bytes of one exchange, wherever they are. Takes them: memory is free afterwards."""
        if exchange.spilled_at is None or self._file is None:
            raw = bytes(exchange.raw)
            self._room += len(raw)
        else:
            self._file.seek(exchange.spilled_at)
            raw = self._file.read(exchange.read_ends[-1] if exchange.read_ends else 0)
        exchange.raw = bytearray()
        return raw
