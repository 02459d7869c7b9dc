"""One channel: requests in on stdin, replies and events out on stdout, several requests under way at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import BinaryIO

from . import verbs
from .wire import PROTOCOL, AgentError, Message, decode, encode, read_lines

BANNER = "DYNSPEC-AGENT "


class Channel:
    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._source = source
        self._sink = sink
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._context = verbs.Context(self._send_event, self._ended.is_set)

    def run(self) -> None:
        """Until the other end closes. What still runs then is dropped; children end with the channel."""
        self._write(BANNER.encode("ascii") + encode({"protocol": PROTOCOL, "pid": os.getpid()}))
        try:
            for line in read_lines(self._source):
                self._take(line)
        except AgentError as error:
            self._send({"id": None, "error": error.as_json()})
        except OSError:
            pass
        finally:
            self.close()

    def close(self) -> None:
        self._ended.set()
        self._context.load.close()
        guardian = self._context.guardian
        if guardian is not None:
            guardian.close()

    def _take(self, line: bytes) -> None:
        try:
            message = decode(line)
        except AgentError as error:
            self._send({"id": None, "error": error.as_json()})
            return
        threading.Thread(target=self._answer, args=(message,), daemon=True).start()

    def _answer(self, message: Message) -> None:
        self._send(verbs.answer(self._context, message))

    def _send_event(self, name: str, data: Message) -> None:
        if not self._ended.is_set():
            self._send({"event": name, "data": data})

    def _send(self, message: Message) -> None:
        self._write(encode(message))

    def _write(self, data: bytes) -> None:
        try:
            with self._lock:
                self._sink.write(data)
                self._sink.flush()
        except (OSError, ValueError):
            self._ended.set()  # nobody reads any more; the end of stdin follows


def main() -> int:
    """Standard output belongs to the protocol alone; a stray print goes to standard error."""
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    channel = Channel(sys.stdin.buffer, sink)

    def leave(signum: int, frame: object) -> None:
        channel.close()
        os._exit(128 + signum)

    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(signum, leave)
    channel.run()
    sys.stderr.flush()
    os._exit(0)  # request threads may still wait for something; the channel is over
