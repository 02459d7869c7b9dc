"""Typed access to the `args` of a request: a wrong type is one clear `bad_request`, never a traceback."""

from __future__ import annotations

import os
import re
from typing import Dict, List, Optional, Union

from .wire import AgentError, Message

_MOST_S = 1e7  # four months; what waits takes no more
_MOST = 1 << 53  # of sizes and offsets
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+@-]{0,149}\Z")


def bad(name: str, wanted: str, value: object) -> AgentError:
    return AgentError("bad_request", "{} must be {}, not {!r:.80}".format(name, wanted, value))


def request_id(message: Message) -> Union[int, str, None]:
    """What a reply repeats; anything else would not be found again by it."""
    value = message.get("id")
    return value if isinstance(value, (int, str)) and not isinstance(value, bool) else None


def is_name(value: object) -> bool:
    """Whether it can be one part of a path."""
    return isinstance(value, str) and _NAME.match(value) is not None


def text(args: Message, name: str, default: Optional[str] = None) -> str:
    value = args.get(name, default)
    if not isinstance(value, str) or not _is_plain(value):
        raise bad(name, "text", value)
    return value


def word(args: Message, name: str) -> str:
    """Text that says something."""
    value = text(args, name)
    if not value.strip():
        raise bad(name, "a word", value)
    return value


def _is_plain(value: str) -> bool:
    """Whether a path, a word or a variable can hold it: no NUL, and no half of a character."""
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        return False
    return "\0" not in value


def optional_text(args: Message, name: str) -> Optional[str]:
    return None if args.get(name) is None else text(args, name)


def path_name(args: Message, name: str) -> str:
    """A word that becomes one part of a path: no slash, no leading dot."""
    value = text(args, name)
    if not _NAME.match(value):
        raise bad(name, "a plain name (letters, digits, . _ + @ -)", value)
    return value


def seconds(args: Message, name: str, default: float) -> float:
    value = args.get(name, default)
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not 0 <= value <= _MOST_S  # false for nan too
    ):
        raise bad(name, "a number of seconds up to {:.0f}".format(_MOST_S), value)
    return float(value)


def integer(args: Message, name: str, default: Optional[int] = None) -> int:
    value = args.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _MOST:
        raise bad(name, "a whole number", value)
    return value


def port(args: Message, name: str = "port") -> int:
    value = integer(args, name)
    if not 0 < value < 65536:
        raise bad(name, "a port from 1 to 65535", value)
    return value


def flag(args: Message, name: str) -> bool:
    value = args.get(name, False)
    if not isinstance(value, bool):
        raise bad(name, "true or false", value)
    return value


def words(args: Message, name: str) -> List[str]:
    value = args.get(name, [])
    if not isinstance(value, list) or not all(isinstance(word, str) and _is_plain(word) for word in value):
        raise bad(name, "a list of words", value)
    return value


def objects(args: Message, name: str) -> List[Message]:
    value = args.get(name, [])
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise bad(name, "a list of objects", type(value).__name__)
    return value


def environment(args: Message, name: str) -> Dict[str, Optional[str]]:
    """Variables to set; None removes one. The error names the variable and never shows a value."""
    value = args.get(name) or {}
    if not isinstance(value, dict):
        raise bad(name, "an object", type(value).__name__)
    for key, item in value.items():
        if not key or "=" in key or not _is_plain(key):
            raise bad(name, "variables with plain names", key)
        if item is not None and (not isinstance(item, str) or not _is_plain(item)):
            raise AgentError("bad_request", "{}.{} must be text or null".format(name, key))
    return value


def gpu_indices(args: Message, name: str = "gpus") -> Optional[List[int]]:
    """None means all GPUs; the word "all" is taken too."""
    value = args.get(name)
    if value is None or value == "all":
        return None
    if not isinstance(value, list) or not all(
        isinstance(item, int) and not isinstance(item, bool) for item in value
    ):
        raise bad(name, "a list of GPU indices or null", value)
    return value
