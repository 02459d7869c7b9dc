"""Telling a secret from a setting, by its name or by its look. Errs on the side of asking for a reference."""

from __future__ import annotations

import re

_LAST_WORDS = (
    "key",
    "apikey",
    "token",
    "secret",
    "password",
    "passwd",
    "passphrase",
    "credential",
    "credentials",
)
_VALUE = re.compile(
    r"hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}"
    r"|nvapi-[\w-]{16,}|AKIA[0-9A-Z]{16}|xox[abprs]-[\w-]{10,}|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY|[a-z][a-z0-9+.-]*://[^/\s:@]+:[^/\s:@]+@"
)


def secret_name(name: str) -> bool:
    """True for `HF_TOKEN`, `api-key`, `DB_PASSWORD`; false for `max-total-tokens` and `speculative-token-map`."""
    return re.split(r"[-_.]", name.lower())[-1] in _LAST_WORDS


def secret_value(text: str) -> bool:
    """True where the text holds what well-known tokens, private keys or URLs with a password look like."""
    return _VALUE.search(text) is not None


_STAND_IN = "(not shown: looks like a secret)"


def hide(text: str) -> str:
    """The text, or a stand-in for it that says why it is not shown."""
    return _STAND_IN if secret_value(text) else text


def scrub(line: str) -> str:
    """A message without the parts that look like secrets, however they came into it."""
    return _VALUE.sub(_STAND_IN, line)
