"""The node over SSH: one fabric connection a hop, each with its host key checked, keys only, and no prompt ever.

Round trips are counted here: small packets and acknowledgements are not held back (dial.py), a key is offered with its
signature at once (eager_auth.py), and compression keeps what follows within fewer TCP windows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import fabric
import paramiko
from paramiko.auth_strategy import AuthSource, AuthStrategy
from paramiko.config import SSHConfig

from orchestrator.errors import ConnectionLost, DynspecError
from orchestrator.model.host_key import HostKey
from orchestrator.model.target import Target
from orchestrator.remote import identities
from orchestrator.remote.dial import Link, dial
from orchestrator.remote.eager_auth import EagerTransport
from orchestrator.remote.forward import forward
from orchestrator.remote.host_key import HostKeyCheck
from orchestrator.remote.ssh_config import HostConfig, resolve
from orchestrator.remote.ssh_errors import explain, session_refused
from orchestrator.remote.transport import ConnectSettings, Tail

KEEPALIVE_S = 15
SESSION_RETRY_S = 2.0
LOG_CHANNEL = "dynspec.ssh"

# paramiko logs what it also raises; without a handler of ours that would land on the user's screen.
logging.getLogger(LOG_CHANNEL).addHandler(logging.NullHandler())


class SshPipe:
    def __init__(self, channel: paramiko.Channel, label: str) -> None:
        self._channel = channel
        self._label = label
        self._stderr = Tail(channel.recv_stderr)

    def read(self, size: int) -> bytes:
        return self._channel.recv(size)

    def write(self, data: bytes) -> None:
        try:
            self._channel.sendall(data)
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise ConnectionLost(f"{self._label}: the connection no longer takes data ({error})") from error

    def close_stdin(self) -> None:
        try:
            self._channel.shutdown_write()
        except (OSError, EOFError):
            pass

    def close(self) -> None:
        self._channel.close()

    def stderr_tail(self) -> str:
        return self._stderr.text()

    def exit_status(self, timeout_s: float) -> int | None:
        if not self._channel.status_event.wait(timeout_s):
            return None
        status = self._channel.recv_exit_status()
        return None if status == -1 else status


class SshTransport:
    def __init__(self, label: str, connections: list[fabric.Connection], timeout_s: float) -> None:
        self._label = label
        self._connections = connections
        self._timeout_s = timeout_s

    @property
    def label(self) -> str:
        return self._label

    def execute(self, command: str) -> SshPipe:
        try:
            channel = self._open_session()
            channel.exec_command(command)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise session_refused(self._label, error) from error
        return SshPipe(channel, self._label)

    def forward(self, port: int) -> AbstractContextManager[int]:
        def connect() -> paramiko.Channel:
            return self._transport.open_channel(
                "direct-tcpip", ("127.0.0.1", port), ("127.0.0.1", 0), timeout=self._timeout_s
            )

        return forward(connect)

    def close(self) -> None:
        # The first hop first: what runs through a closed hop is closed without a word to a peer that may be frozen.
        for connection in self._connections:
            connection.client.close()

    def _open_session(self) -> paramiko.Channel:
        """A session that was just closed counts for sshd's MaxSessions until its process is gone: try for a while."""
        give_up = time.monotonic() + SESSION_RETRY_S
        while True:
            try:
                return self._transport.open_session(timeout=self._timeout_s)
            except paramiko.ChannelException:
                if time.monotonic() > give_up:
                    raise
                time.sleep(SESSION_RETRY_S / 20)

    @property
    def _transport(self) -> paramiko.Transport:
        transport = self._connections[-1].transport
        if transport is None or not transport.is_active():
            raise ConnectionLost(f"{self._label}: the connection has ended")
        return transport  # type: ignore[no-any-return]


def connect(target: Target, settings: ConnectSettings) -> SshTransport:
    """Connect hop by hop. Raises ConnectionFailed naming the hop, the reason and what helps."""
    hops = resolve(target, settings.ssh_config)
    opened: list[fabric.Connection] = []
    try:
        for hop in hops:
            pin = settings.host_key if hop is hops[-1] else None
            opened.append(_open_hop(hop, opened[-1] if opened else None, settings, pin))
    except BaseException:
        for connection in opened:
            connection.client.close()
        raise
    return SshTransport(str(target), opened, settings.timeout_s)


def _open_hop(
    hop: HostConfig, via: fabric.Connection | None, settings: ConnectSettings, pin: str | None
) -> fabric.Connection:
    check = HostKeyCheck.of(hop, settings.known_hosts, pin)
    began = time.monotonic()
    link: Link | None = None
    connection: fabric.Connection | None = None
    try:
        link = _link(hop, via, settings.timeout_s)
        connection = _connection(hop, link.stream, check, settings.timeout_s - (time.monotonic() - began))
        connection.open()
        connection.transport.set_keepalive(KEEPALIVE_S)
    except BaseException as error:
        if connection is not None:
            connection.client.close()
        if link is not None:
            link.stream.close()
        if isinstance(error, DynspecError) or not isinstance(error, Exception):
            raise
        said = link.said() if link else ()
        raise explain(error, hop, settings.timeout_s, time.monotonic() - began, said) from error
    return connection


def _connection(hop: HostConfig, stream: Any, check: HostKeyCheck, left_s: float) -> fabric.Connection:
    strategy = partial(_KeysInOrder, hop)
    config = fabric.Config(
        lazy=True,  # neither fabric.yml nor an ssh configuration: `hop` is resolved already
        ssh_config=SSHConfig(),
        overrides={"authentication": {"strategy_class": strategy}, "load_ssh_configs": False},
    )
    connection = fabric.Connection(
        hop.hostname,
        user=hop.user,
        port=hop.port,
        config=config,
        forward_agent=False,
        connect_kwargs={
            "sock": stream,
            "timeout": left_s,
            "banner_timeout": left_s,
            "auth_timeout": left_s,
            "compress": True,
            "transport_factory": partial(_transport, check, left_s),
        },
    )
    connection.client.set_log_channel(LOG_CHANNEL)
    connection.client.set_missing_host_key_policy(_Strict(check))
    return connection


def _transport(check: HostKeyCheck, handshake_s: float, stream: Any, **options: Any) -> paramiko.Transport:
    transport = EagerTransport(stream, **options)
    transport.handshake_timeout = handshake_s
    security = transport.get_security_options()
    security.key_types = check.algorithms(tuple(security.key_types))
    return transport


class _Strict(paramiko.MissingHostKeyPolicy):
    """Sees every key: the client's own tables stay empty, because they decide by one key type and know no patterns."""

    def __init__(self, check: HostKeyCheck) -> None:
        self._check = check

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        self._check.verify(HostKey(key.get_name(), key.asbytes()))


class _KeysInOrder(AuthStrategy):
    def __init__(self, hop: HostConfig, ssh_config: object, fabric_config: object, username: str) -> None:
        super().__init__(ssh_config=SSHConfig())
        self._hop = hop

    def get_sources(self) -> Iterator[AuthSource]:
        raise NotImplementedError  # `authenticate` does not use sources: it has to see why each key was refused

    def authenticate(self, transport: paramiko.Transport) -> None:  # type: ignore[override]
        identities.authenticate(transport, self._hop)


def _link(hop: HostConfig, via: fabric.Connection | None, timeout_s: float) -> Link:
    if via is None:
        return dial(hop, timeout_s)
    return Link(
        via.transport.open_channel("direct-tcpip", (hop.hostname, hop.port), ("", 0), timeout=timeout_s)
    )
