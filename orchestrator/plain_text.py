"""Text from elsewhere, safe to show: nothing in it steers a terminal, turns a line round or hides what stands there."""

from __future__ import annotations

import re
from typing import Any

# Control characters but tab and newline, and direction overrides.
_STEERING = "\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069"
_UNSAFE = re.compile(f"[{_STEERING}\ud800-\udfff\ufffe\uffff]")
_UNSAFE_FROM_NODE = re.compile(f"[{_STEERING}]")  # halves of pairs stay: a path that is no UTF-8 has them


def clean(text: str) -> str:
    """Each unsafe character becomes U+FFFD; halves of pairs too, which no file could be written with, and the two
    that no XML may hold."""
    return text if text.isprintable() else _UNSAFE.sub("\N{REPLACEMENT CHARACTER}", text)


def os_words(error: OSError) -> str:
    """What the system said, without Python's number and quotes around it."""
    said = error.strerror or str(error)
    return f"{said}: {error.filename}" if error.filename else said


def clean_tree(value: Any) -> Any:
    """The same over every string of a JSON value from a node; line ends of other systems become newlines."""
    if isinstance(value, str):
        if value.isprintable():
            return value
        return _UNSAFE_FROM_NODE.sub("\N{REPLACEMENT CHARACTER}", value.replace("\r\n", "\n"))
    if isinstance(value, dict):
        return {clean_tree(key): clean_tree(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clean_tree(item) for item in value]
    return value
