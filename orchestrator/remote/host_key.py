"""Strict host keys: a key that known_hosts (or the experiment's pin) does not vouch for ends the connection.

There is no "accept and remember": the message carries the fingerprint to compare and the exact line to add.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import ConnectionFailed, UsageError
from orchestrator.model.host_key import PIN_FORM, HostKey
from orchestrator.remote.known_hosts import (
    Entry,
    Verdict,
    judge,
    known_kinds,
    names_to_look_for,
    parse_known_hosts,
)
from orchestrator.remote.ssh_config import HostConfig

_RSA_SIGNATURES = ("rsa-sha2-512", "rsa-sha2-256")


@dataclass(frozen=True)
class HostKeyCheck:
    """What is known about one hop's key before it is asked. `pin` replaces the files for the host it is given for."""

    host: str  # for messages
    names: tuple[str, ...]
    files: tuple[str, ...]
    entries: tuple[Entry, ...]
    pin: HostKey | None = None

    @classmethod
    def of(cls, host: HostConfig, known_hosts: str | None, pin: str | None) -> HostKeyCheck:
        """`known_hosts` is the experiment's file, in place of those that ssh reads. A file that is absent is empty."""
        files = (os.path.expanduser(known_hosts),) if known_hosts else host.known_hosts
        entries = tuple(entry for file in files for entry in parse_known_hosts(_text(file), file))
        names = names_to_look_for(host.hostname, host.port, host.host_key_alias)
        return cls(host.alias, names, files, entries, None if pin is None else _pin(pin))

    def algorithms(self, offered: Sequence[str]) -> tuple[str, ...]:
        """`offered` with the types that are known for this host first: a server has several keys and shows one."""
        kinds = (self.pin.kind,) if self.pin else known_kinds(self.entries, self.names)
        wanted = [name for kind in kinds for name in (_RSA_SIGNATURES if kind == "ssh-rsa" else (kind,))]
        first = [name for name in wanted if name in offered]
        return (*first, *(name for name in offered if name not in first))

    def verify(self, key: HostKey) -> None:
        """Raises ConnectionFailed unless `key` is the host's."""
        if self.pin is not None:
            if self.pin != key:
                raise self._pin_differs(self.pin, key)
            return
        verdict = judge(self.entries, self.names, key)
        if verdict.state != "known":
            raise self._refusal(verdict, key)

    def _refusal(self, verdict: Verdict, key: HostKey) -> ConnectionFailed:
        presented = f"it presented {key.kind} {key.fingerprint}"
        add = f"add to {self.files[0] if self.files else 'known_hosts'}: {self.names[0]} {key}"
        compare = (
            "compare the fingerprint with the node's own (`ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub` there)"
        )
        found = tuple(
            f"{entry.where} has {entry.key.kind} {entry.key.fingerprint}" for entry in verdict.entries
        )
        if verdict.state == "revoked":
            return ConnectionFailed(
                f"the host key of {self.host} is marked @revoked",
                details=(presented, *found),
                help="do not connect",
            )
        if verdict.state == "changed":
            remove = "; ".join(
                dict.fromkeys(f"ssh-keygen -R '{self.names[0]}' -f '{e.path}'" for e in verdict.entries)
            )
            return ConnectionFailed(
                f"the host key of {self.host} has changed: somebody may be in between, or the node was set up again",
                details=(presented, *found, f"only if that is right: {remove}"),
                help=f"{compare}, then {add}",
            )
        what = (
            "is unknown"
            if verdict.state == "unknown"
            else "is of a type that known_hosts does not have for it"
        )
        looked = f"looked for: {' and '.join(self.names)} in {', '.join(self.files) or 'no file'}"
        return ConnectionFailed(
            f"the host key of {self.host} {what}",
            details=(presented, *found, looked, *self._authorities()),
            help=f"{compare}, then {add}",
        )

    def _authorities(self) -> tuple[str, ...]:
        """Somebody who relies on host certificates learns that these do not count here."""
        lines = (entry for entry in self.entries if entry.marker == "@cert-authority")
        return tuple(
            f"{entry.where} trusts a @cert-authority for it; host certificates are not supported, add the key itself"
            for entry in lines
            if any(map(entry.matches, self.names))
        )

    def _pin_differs(self, pin: HostKey, key: HostKey) -> ConnectionFailed:
        return ConnectionFailed(
            f"the host key of {self.host} is not the one that is pinned",
            details=(f"pinned: {pin.kind} {pin.fingerprint}", f"presented: {key.kind} {key.fingerprint}"),
            help=f"if that is right, pin this one, by node.host_key or --host-key: {str(key)!r}",
        )


def _pin(text: str) -> HostKey:
    key = HostKey.parse(text)
    if key is None:
        raise UsageError(f"{text!r} is no public key to pin", help=PIN_FORM)
    return key


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        wanted = "a file of host keys is wanted there; correct node.known_hosts or --known-hosts"
        helps = "correct its permissions" if isinstance(error, PermissionError) else wanted
        raise ConnectionFailed(f"cannot read {path}: {error.strerror}", help=helps) from error
