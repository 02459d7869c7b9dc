"""What every way to reach a node can do: run a command with byte pipes, forward a port, end.

`open_transport` picks the way by the target's name. The contract of both protocols is `tests/remote/test_transport.py`:
the same cases over a local shell and over a real sshd.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, Self

from orchestrator.model.experiment import Limits, Node
from orchestrator.model.target import Target

STDERR_KEPT_BYTES = 8192


@dataclass(frozen=True)
class ConnectSettings:
    """How to connect, and how long silence may last. Paths may start with `~/`.

    `known_hosts` None means the files that ssh itself would read for this host. `host_key` pins the target's key
    (a `known_hosts` line's last two words, `ssh-ed25519 AAAA...`); hops in between are always checked by known_hosts.
    """

    timeout_s: float = 20.0
    known_hosts: str | None = None
    host_key: str | None = None
    ssh_config: str | None = None
    lease_s: float = 120.0
    silence_s: float = 25.0

    @property
    def beat_s(self) -> float:
        """Seconds between heartbeats: four chances to renew within one lease, and never slower than 5 s."""
        return min(5.0, self.lease_s / 4)

    @classmethod
    def of(cls, node: Node, limits: Limits) -> Self:
        """A node that was silent for a whole lease has given itself back: there is nothing to wait for."""
        return cls(
            timeout_s=limits.connect_s,
            known_hosts=None if node.known_hosts == Node.known_hosts else node.known_hosts,
            host_key=node.host_key,
            ssh_config=node.ssh_config,
            lease_s=node.lease_s,
            silence_s=min(cls.silence_s, node.lease_s),
        )


class Pipe(Protocol):
    """The stdin, stdout and stderr of one running command."""

    def read(self, size: int) -> bytes:
        """At most `size` bytes, as soon as there are any; b"" at the end, also after `close`."""

    def write(self, data: bytes) -> None:
        """All of `data`; blocks while the other side is not reading. Raises ConnectionLost when it is gone."""

    def close_stdin(self) -> None: ...

    def close(self) -> None:
        """End the command's pipes; a command that reads its stdin ends by it."""

    def stderr_tail(self) -> str: ...

    def exit_status(self, timeout_s: float) -> int | None:
        """The command's exit status (negative: the signal, where known), None when it is not known in time."""


class Transport(Protocol):
    @property
    def label(self) -> str:
        """How messages call the node."""

    def execute(self, command: str) -> Pipe:
        """Run `command` by the user's shell on the node, without a terminal."""

    def forward(self, port: int) -> AbstractContextManager[int]:
        """A local TCP port that reaches `port` on the node's loopback for as long as the context lasts."""

    def close(self) -> None:
        """Drop the connection at once, whatever state it is in; never blocks on a frozen peer."""


def open_transport(target: str, settings: ConnectSettings) -> Transport:
    """Connect to `local`, a Host of the ssh configuration, or user@host[:port].

    Raises UsageError for a target that cannot be one, ConnectionFailed with the reason otherwise.
    """
    parsed = Target.parse(target)
    if parsed.is_local:
        from orchestrator.remote.local import LocalTransport

        return LocalTransport()
    from orchestrator.remote.ssh import connect

    return connect(parsed, settings)


class Tail:
    """The last bytes of a stream, collected by a thread of its own, so that a full stderr never blocks a command."""

    def __init__(self, read: Callable[[int], bytes], kept: int = STDERR_KEPT_BYTES) -> None:
        self._read = read
        self._kept = kept
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._drain, name="dynspec-stderr", daemon=True)
        self._thread.start()

    def text(self, settle_s: float = 0.2) -> str:
        """What is kept; waits a little for a stream that is just ending."""
        self._thread.join(settle_s)
        with self._lock:
            return b"".join(self._chunks)[-self._kept :].decode("utf-8", "replace")

    def _drain(self) -> None:
        while data := self._read(4096):
            with self._lock:
                self._chunks.append(data)
                self._size += len(data)
                while self._size - len(self._chunks[0]) >= self._kept:
                    self._size -= len(self._chunks.popleft())
