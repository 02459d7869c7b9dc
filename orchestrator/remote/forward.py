"""A local port whose connections go through SSH to a port on the node's loopback."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

BLOCK_BYTES = 65536


class Stream(Protocol):
    """What sockets and SSH channels have in common."""

    def recv(self, nbytes: int, /) -> bytes: ...
    def sendall(self, data: bytes, /) -> None: ...
    def shutdown(self, how: int, /) -> None: ...
    def close(self) -> None: ...


@contextmanager
def forward(connect: Callable[[], Stream]) -> Iterator[int]:
    """`connect` opens one stream to the far port; it runs once for each connection that the local port accepts."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(
            target=_accept, args=(listener, connect), name="dynspec-forward", daemon=True
        ).start()
        try:
            yield listener.getsockname()[1]
        finally:
            # close() alone does not wake a thread that is in accept().
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, connect: Callable[[], Stream]) -> None:
    while True:
        try:
            near, _ = listener.accept()
        except OSError:
            return
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_serve, args=(near, connect), name="dynspec-forward", daemon=True).start()


def _serve(near: socket.socket, connect: Callable[[], Stream]) -> None:
    with near:
        try:
            far = connect()
        except Exception:  # noqa: BLE001 - whatever refused the far side, the near side sees a closed connection
            return
        back = threading.Thread(target=_pump, args=(far, near), name="dynspec-forward", daemon=True)
        back.start()
        _pump(near, far)
        back.join()
        far.close()


def _pump(source: Stream, sink: Stream) -> None:
    with suppress(OSError, EOFError):
        while data := source.recv(BLOCK_BYTES):
            sink.sendall(data)
    with suppress(OSError, EOFError):
        sink.shutdown(socket.SHUT_WR)
