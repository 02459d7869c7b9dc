"""The byte stream that SSH runs on: a TCP socket, a ProxyCommand, or a channel through the hop before."""

from __future__ import annotations

import os
import socket
import subprocess
from dataclasses import dataclass
from typing import Any

from orchestrator.remote.ssh_config import HostConfig
from orchestrator.remote.transport import Tail

QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)  # Linux


@dataclass(frozen=True)
class Link:
    """`stream` behaves as a socket; `stderr` is what a ProxyCommand has to say."""

    stream: Any
    stderr: Tail | None = None

    def said(self) -> tuple[str, ...]:
        lines = self.stderr.text().splitlines() if self.stderr else []
        return tuple(f"the ProxyCommand said: {line}" for line in lines[-5:])


class PromptSocket(socket.socket):
    """A TCP socket that neither holds back small packets nor acknowledgements.

    sshd leaves Nagle's algorithm on: its second small packet waits for the acknowledgement of the first, which Linux
    sends up to 40 ms late once it takes the connection for a conversation. The option is to be set after each read.
    """

    def connect(self, address: Any) -> None:
        self.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        super().connect(address)

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        data = super().recv(size, flags)
        if QUICKACK is not None:
            self.setsockopt(socket.IPPROTO_TCP, QUICKACK, 1)
        return data


def dial(hop: HostConfig, timeout_s: float) -> Link:
    """Connect to the first hop. Raises OSError (of the last address tried)."""
    return _proxy(hop.proxy_command) if hop.proxy_command else Link(_tcp(hop, timeout_s))


def _tcp(hop: HostConfig, timeout_s: float) -> socket.socket:
    last = OSError(f"{hop.hostname} has no address")
    for family, kind, proto, _, address in socket.getaddrinfo(
        hop.hostname, hop.port, hop.family, socket.SOCK_STREAM
    ):
        link = PromptSocket(family, kind, proto)
        try:
            link.settimeout(timeout_s)
            link.connect(address)
        except OSError as error:
            link.close()
            last = error
            continue
        return link
    raise last


def _proxy(command: str) -> Link:
    """By the shell, as ssh runs it. On a socket pair: paramiko's own ProxyCommand has no time limits and no shell."""
    near, far = socket.socketpair()
    with far:
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"],
            stdin=far.fileno(),
            stdout=far.fileno(),
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
    stderr = process.stderr
    assert stderr

    def read(size: int) -> bytes:
        data = os.read(stderr.fileno(), size)
        if not data:
            process.wait()
        return data

    return Link(near, Tail(read))
