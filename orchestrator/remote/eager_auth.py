"""Public key authentication without the round trip that asks whether one may authenticate.

RFC 4253 lets a client send its first authentication request right behind the service request; the server works them off
in order. paramiko waits for the accept in between, before every key.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from paramiko import Message, PKey, Transport
from paramiko.auth_handler import AuthHandler
from paramiko.common import MSG_SERVICE_ACCEPT

SERVICE = "ssh-userauth"


class EagerTransport(Transport):
    """A transport whose `auth_publickey` costs one round trip a key."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.service_requested = False

    def auth_publickey(self, username: str, key: PKey, event: threading.Event | None = None) -> list[str]:
        done = event or threading.Event()
        handler = _EagerHandler(self)
        self.auth_handler = handler
        handler.auth_publickey(username, key, done)
        return [] if event else handler.wait_for_response(done)


class _EagerHandler(AuthHandler):
    transport: EagerTransport

    def _request_auth(self) -> None:
        if not self.transport.service_requested:
            self.transport.service_requested = True
            super()._request_auth()  # type: ignore[misc]
        accept = Message()
        accept.add_string(SERVICE)
        accept.rewind()
        self._parse_service_accept(accept)  # type: ignore[attr-defined]

    @property
    def _client_handler_table(self) -> dict[int, Callable[..., None]]:
        # The real accept comes late and has nothing left to do.
        table: dict[int, Callable[..., None]] = super()._client_handler_table  # type: ignore[misc]
        return {**table, MSG_SERVICE_ACCEPT: lambda message: None}
