"""Control requests to the server on the node's loopback: health, info, flush, metrics. One total time limit each."""

from __future__ import annotations

import socket
import threading
import time
from typing import Callable, Optional

from . import args
from .wire import AgentError, Message

_MAX_BODY_BYTES = 4 * 1024 * 1024
_LOOK_S = 0.25
_BROKEN_GRACE_S = 0.5

Alive = Callable[[], bool]


def request(given: Message, server_alive: Alive) -> Message:
    """Raises AgentError `exited` when the server ends meanwhile, `timeout`, or `failed`."""
    import http.client  # with ssl and email a third of the agent's start, and most agents ask no server anything

    method, path = args.text(given, "method", "GET"), args.text(given, "path")
    body = args.optional_text(given, "body")
    timeout_s = args.seconds(given, "timeout_s", 10.0)
    if not path.startswith("/") or not path.isprintable() or not method.isalpha() or " " in path:
        raise args.bad("path", "a path that starts with /", path)
    started = time.monotonic()
    connection = http.client.HTTPConnection(
        args.text(given, "host", "127.0.0.1"), args.port(given), timeout=max(0.001, timeout_s)
    )
    watch = _Watch(started + timeout_s, server_alive)
    try:
        connection.connect()
        with watch.over(connection.sock):
            headers = {"Connection": "close", "Content-Type": "application/json"}
            connection.request(method, path, None if body is None else body.encode("utf-8"), headers)
            response = connection.getresponse()
            data = response.read(_MAX_BODY_BYTES)
        watch.check()
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        raise watch.explain("{} {}".format(method, path), error, timeout_s) from None
    finally:
        connection.close()
    text = data.decode("utf-8", "replace")
    return {"status": response.status, "body": text, "elapsed_s": round(time.monotonic() - started, 6)}


class _Watch:
    """Ends the connection at one deadline for the whole request, or when the server has ended: http.client's own
    limit is per read, and a stream that trickles would never reach it."""

    def __init__(self, deadline: float, server_alive: Alive) -> None:
        self._sock: Optional[socket.socket] = None
        self._deadline = deadline
        self._server_alive = server_alive
        self._done = threading.Event()
        self._fired = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def over(self, sock: socket.socket) -> _Watch:
        """The socket is kept here: http.client lets go of it once the headers are read."""
        self._sock = sock
        return self

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(min(_LOOK_S, max(0.001, self._deadline - time.monotonic()))):
            if time.monotonic() >= self._deadline or not self._server_alive():
                self._fired = True
                self._cut()
                return

    def _cut(self) -> None:
        if self._sock is not None:
            try:
                self._sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def check(self) -> None:
        """A body without a length ends at the end of the connection, so a cut one looks whole."""
        if self._fired:
            raise ConnectionError("the connection was cut")

    def _has_ended(self, error: Exception) -> bool:
        """A broken connection is often the first sign of an end; the word of it may be a moment behind."""
        patience_s = 0.0 if isinstance(error, (ConnectionRefusedError, socket.timeout)) else _BROKEN_GRACE_S
        until = time.monotonic() + patience_s
        while self._server_alive():
            if time.monotonic() >= until:
                return False
            time.sleep(0.02)
        return True

    def explain(self, what: str, error: Exception, timeout_s: float) -> AgentError:
        if self._has_ended(error):
            return AgentError("exited", "{}: the server has ended".format(what))
        if isinstance(error, socket.timeout) or time.monotonic() >= self._deadline:
            return AgentError("timeout", "{}: no whole answer within {:g} s".format(what, timeout_s))
        return AgentError(
            "failed", "{}: {}".format(what, getattr(error, "strerror", None) or error or "broken off")
        )
