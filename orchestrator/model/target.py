"""Names of nodes as people write them: `local`, a Host of the ssh configuration, `user@host[:port]`, `ssh://...`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from orchestrator.errors import UsageError

_TARGET = re.compile(
    r"(?:ssh://)?(?:(?P<user>[^@\s]+)@)?(?:\[(?P<address>[0-9A-Fa-f:.%\w]+)\]|(?P<name>[^\[\]@\s:/]+))(?::(?P<port>\d{1,9}))?/?"
)


@dataclass(frozen=True)
class Target:
    host: str
    user: str | None = None
    port: int | None = None

    @property
    def is_local(self) -> bool:
        return self.host == "local" and self.user is None and self.port is None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        user = f"{self.user}@" if self.user else ""
        port = f":{self.port}" if self.port else ""
        return f"{user}{host}{port}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises UsageError for text that names no host. A bare IPv6 address is a host without a port."""
        if re.fullmatch(r"[0-9A-Fa-f:]*:[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*", text):
            return cls(text)
        found = _TARGET.fullmatch(text)
        host = (found["address"] or found["name"]) if found else ""
        # A leading dash would be read as an option by ssh.
        if found is None or not host or host.startswith("-") or (found["user"] or "").startswith("-"):
            raise UsageError(
                f"{text!r} names no node",
                help="write `local`, a Host of your ssh configuration, or user@host[:port] ([address]:port for IPv6)",
            )
        port = int(found["port"]) if found["port"] else None
        if port is not None and not 0 < port < 65536:
            raise UsageError(f"{text!r}: port {port} is not between 1 and 65535")
        return cls(host, found["user"], port)
