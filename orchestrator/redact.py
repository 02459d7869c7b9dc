"""Secrets out of everything that is written or shown. Pure: names and values in, a text filter out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from urllib.parse import quote

_SHORTEST = 4  # a shorter fragment of a value would blank ordinary words and protect nothing
# Fields by which engines dump credentials that never were in the experiment. Not "tokenizer_path" or "token_map".
_CREDENTIAL_FIELD = re.compile(
    r"(?:^|[_-])(?:api[_-]?key|(?:auth|hf|access|bearer)[_-]?token|password|passwd|secret|credentials?)$",
    re.IGNORECASE,
)
# What well-known tokens look like: nobody named these, so they came from the node's own environment or from somebody
# else's command line. Each repetition is bounded, so that no log can make the search slow.
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{30,80}|sk-[A-Za-z0-9_-]{32,200}|gh[pousr]_[A-Za-z0-9]{36,80}|github_pat_\w{22,100}"
    r"|glpat-[\w-]{20,60}|nvapi-[\w-]{40,100}|AKIA[0-9A-Z]{16}(?![0-9A-Z])|xox[abprs]-[\w-]{20,100})"
    r"|(?<=://)[^/\s:@]{1,80}:[^/\s:@]{1,200}(?=@)"
)


class Redactor:
    """Replaces every spelling of every secret value by `[redacted:NAME]`.

    A value is looked for as it is and as JSON, Python `repr` and URL encoding write it; a value of several
    lines also line by line, since logs are cut at line ends. Longest spellings go first, so that no tail of
    a secret survives the replacement of its head. What looks like a well-known kind of token goes too.
    """

    def __init__(self, secrets: Mapping[str, str]) -> None:
        spellings: dict[str, str] = {}
        for name, value in secrets.items():
            for text in _spellings(value):
                spellings.setdefault(text, name)
        self._names = spellings
        ordered = sorted(spellings, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None

    def __call__(self, text: str) -> str:
        if self._pattern is not None:
            text = self._pattern.sub(lambda match: f"[redacted:{self._names[match.group()]}]", text)
        return _TOKEN.sub("[redacted]", text)

    def data(self, raw: bytes) -> bytes:
        """The same over bytes of any encoding: what is not UTF-8 passes through unchanged."""
        return self(raw.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    def tree(self, value: object) -> object:
        """The same over every string of a JSON-like value, keys too; credential fields lose their value anyway."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, Mapping):
            return {self(str(key)): self._field(str(key), item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.tree(item) for item in value]
        return value

    def _field(self, name: str, value: object) -> object:
        return "[redacted]" if _hidden(name, value) else self.tree(value)


def _hidden(name: str, value: object) -> bool:
    return isinstance(value, str) and bool(value) and _CREDENTIAL_FIELD.search(name) is not None


def _spellings(value: str) -> set[str]:
    parts = {value, *value.splitlines()}
    parts |= {part.strip() for part in parts}
    parts = {part for part in parts if len(part) >= _SHORTEST}
    written = set(parts)
    for part in parts:
        written.add(json.dumps(part)[1:-1])
        written.add(json.dumps(part, ensure_ascii=False)[1:-1])
        written.add(repr(part)[1:-1])
        written.add(quote(part, safe=""))
        written.add(quote(part))
    return written
