"""A host's public key as a value: of a known_hosts line, of `node.host_key`, of a server that presents it."""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass

PIN_FORM = 'write it as "ssh-ed25519 AAAA...", as the node\'s line of known_hosts has it'


@dataclass(frozen=True)
class HostKey:
    """A public key as it stands on the wire. `kind` is the key's type, e.g. `ssh-ed25519`."""

    kind: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        digest = base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")
        return f"SHA256:{digest}"

    def __str__(self) -> str:
        return f"{self.kind} {base64.b64encode(self.blob).decode()}"

    @classmethod
    def parse(cls, text: str) -> HostKey | None:
        """From `ssh-ed25519 AAAA... [comment]`; None when it is no key."""
        words = text.split()
        if len(words) < 2:
            return None
        try:
            blob = base64.b64decode(words[1], validate=True)
        except (binascii.Error, ValueError):
            return None
        size = int.from_bytes(blob[:4], "big")
        return cls(words[0], blob) if blob[4 : 4 + size] == words[0].encode() else None
