"""known_hosts files as OpenSSH reads them: hashed names, ports, patterns, several key types, revoked keys.

Pure: text in, verdict out. paramiko's own reader knows neither patterns nor markers and looks at one key type only.
Format: sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT".
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from orchestrator.model.host_key import HostKey

DEFAULT_PORT = 22


@dataclass(frozen=True)
class Entry:
    """One line. `names` as written; `marker` is "", "@revoked" or "@cert-authority"."""

    names: tuple[str, ...]
    key: HostKey
    marker: str
    path: str
    line: int

    @property
    def where(self) -> str:
        return f"{self.path} line {self.line}"

    def matches(self, name: str) -> bool:
        found = False
        for pattern in self.names:
            if pattern.startswith("|"):
                found = found or _hash_matches(pattern, name)
            elif pattern.startswith("!"):
                if _pattern_matches(pattern[1:], name):
                    return False
            else:
                found = found or _pattern_matches(pattern, name)
        return found


@dataclass(frozen=True)
class Verdict:
    """What the files say about a key that a host presented.

    `known`: accept. `changed`: the host has other keys of that type. `other_type`: it has keys, none of that type.
    `revoked`: the key is revoked. `unknown`: no entry at all. `entries` are those that decided it.
    """

    state: Literal["known", "changed", "other_type", "revoked", "unknown"]
    entries: tuple[Entry, ...] = ()


def parse_known_hosts(text: str, path: str) -> tuple[Entry, ...]:
    """Lines that cannot be read are skipped, as ssh does: they can only make a host unknown, never known."""
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        marker = words.pop(0) if words[0].startswith("@") else ""
        key = HostKey.parse(" ".join(words[1:3]))
        if key is not None:
            entries.append(Entry(tuple(words[0].split(",")), key, marker, path, number))
    return tuple(entries)


def names_to_look_for(hostname: str, port: int, alias: str | None = None) -> tuple[str, ...]:
    """In ssh's order: an alias stands alone; a host on another port is looked for with its port, then without."""
    if alias:
        return (alias.lower(),)
    host = hostname.lower()
    return (host,) if port == DEFAULT_PORT else (f"[{host}]:{port}", host)


def known_kinds(entries: Iterable[Entry], names: Sequence[str]) -> tuple[str, ...]:
    """Key types that the files have for the first of `names` that they know, so that the server is asked for these."""
    entries = tuple(entries)
    for name in names:
        kinds = [entry.key.kind for entry in entries if not entry.marker and entry.matches(name)]
        if kinds:
            return tuple(dict.fromkeys(kinds))
    return ()


def judge(entries: Iterable[Entry], names: Sequence[str], key: HostKey) -> Verdict:
    """Whether `key` is that host's. The name with the port decides alone as soon as the files know it."""
    entries = tuple(entries)
    revoked = tuple(
        entry
        for entry in entries
        if entry.marker == "@revoked" and entry.key == key and any(map(entry.matches, names))
    )
    if revoked:
        return Verdict("revoked", revoked)
    for name in names:
        matching = tuple(entry for entry in entries if not entry.marker and entry.matches(name))
        if not matching:
            continue
        same = tuple(entry for entry in matching if entry.key == key)
        if same:
            return Verdict("known", same)
        same_kind = tuple(entry for entry in matching if entry.key.kind == key.kind)
        return Verdict("changed", same_kind) if same_kind else Verdict("other_type", matching)
    return Verdict("unknown")


def _pattern_matches(pattern: str, name: str) -> bool:
    # Only `*` and `?` are special in known_hosts; a bracket is part of `[host]:port`.
    return fnmatchcase(name, pattern.lower().replace("[", "[[]"))


def _hash_matches(pattern: str, name: str) -> bool:
    parts = pattern.split("|")
    if len(parts) != 4 or parts[1] != "1":
        return False
    try:
        salt, digest = base64.b64decode(parts[2]), base64.b64decode(parts[3])
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(hmac.digest(salt, name.encode(), "sha1"), digest)
