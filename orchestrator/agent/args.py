"""Typed access to the `args` of a request: a wrong type is one clear `bad_request`, never a traceback."""

from __future__ import annotations

import math
import re
from typing import Dict, List, Optional

from .wire import AgentError, Message

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+@-]{0,149}\Z")


def bad(name: str, wanted: str, value: object) -> AgentError:
    return AgentError("bad_request", "{} must be {}, not {!r:.80}".format(name, wanted, value))


def is_name(value: object) -> bool:
    """Whether it can be one part of a path."""
    return isinstance(value, str) and _NAME.match(value) is not None


def text(args: Message, name: str, default: Optional[str] = None) -> str:
    value = args.get(name, default)
    if not isinstance(value, str) or "\0" in value:
        raise bad(name, "text", value)
    return value


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
        or not math.isfinite(value)
        or value < 0
    ):
        raise bad(name, "a number of seconds", value)
    return float(value)


def integer(args: Message, name: str, default: Optional[int] = None) -> int:
    value = args.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad(name, "a whole number", value)
    return value


def flag(args: Message, name: str) -> bool:
    value = args.get(name, False)
    if not isinstance(value, bool):
        raise bad(name, "true or false", value)
    return value


def words(args: Message, name: str) -> List[str]:
    value = args.get(name, [])
    if not isinstance(value, list) or not all(isinstance(word, str) and "\0" not in word for word in value):
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
        if not key or "=" in key or "\0" in key:
            raise bad(name, "variables with plain names", key)
        if item is not None and (not isinstance(item, str) or "\0" in item):
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
