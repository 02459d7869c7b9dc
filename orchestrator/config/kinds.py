"""Kinds of values: each knows how to read itself strictly and how to say itself in JSON Schema.

`read` returns the value, or `BAD` after it has added a problem. Checking and schema stand in one class, so that
an editor and `dynspec validate` cannot disagree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, Protocol

from orchestrator.config.scalars import NULL, Null, Refused, Takes, describe, read_plain, shorten
from orchestrator.config.tree import ListNode, Problems, ScalarNode, TreeNode

Json = dict[str, object]


class Bad:
    """What a kind returns for a value that it refused; the problem is in the list."""


BAD: Final = Bad()


class Kind(Protocol):
    def read(self, node: TreeNode, path: str, problems: Problems) -> object: ...

    def schema(self) -> Json: ...

    def spell(self, value: object) -> object:
        """A value of this kind as the file would write it, for defaults in the schema."""
        ...


def plain(
    node: TreeNode, path: str, problems: Problems, wanted: str, takes: Takes
) -> str | int | float | bool | Bad:
    """A scalar that YAML 1.1 and 1.2 read alike, or BAD. `takes`: what of it may be of use here, for the advice."""
    if not isinstance(node, ScalarNode):
        problems.add(node.where, path, f"{describe(node)} where {wanted} is wanted")
        return BAD
    value = read_plain(node, takes, wanted)
    if isinstance(value, Refused):
        problems.add(node.where, path, value.text)
        return BAD
    if isinstance(value, Null):
        problems.add(node.where, path, f"null where {wanted} is wanted; delete the entry")
        return BAD
    return value


def wrong(node: TreeNode, path: str, problems: Problems, wanted: str, how: str = "") -> Bad:
    tail = f"; {how}" if how else ""
    problems.add(node.where, path, f"{describe(node)} where {wanted} is wanted{tail}")
    return BAD


def nul(node: TreeNode, path: str, problems: Problems, wanted: str) -> Bad:
    problems.add(node.where, path, f"a NUL character, which cannot be in {wanted}")
    return BAD


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean x?` for the closest known word, else the known words, else nothing."""
    names = list(known)
    close = get_close_matches(word, names, n=1, cutoff=0.6) or [
        name for name in names if name.lower() == word.lower()
    ]
    if close:
        return f"; did you mean `{close[0]}`?"
    return f"; known: {', '.join(names)}" if names else ""


def too_long(name: str, longest: int) -> str:
    """Of names with a limit (0: none); empty where it holds."""
    if not longest or len(name) <= longest:
        return ""
    return f"{len(name)} characters; a name has at most {longest}"


@dataclass(frozen=True)
class Text:
    """Text. `pattern` is a whole match with `pattern_words` for people; `home` lets a bare `~` mean the home folder.

    `longest`: characters that `pattern` takes at most, for a message that says so.
    """

    what: str = "text"
    pattern: str = ""
    pattern_words: str = ""
    home: bool = False
    longest: int = 0

    def read(self, node: TreeNode, path: str, problems: Problems) -> str | Bad:
        if self.home and isinstance(node, ScalarNode) and node.text == "~":
            return "~"
        value = plain(node, path, problems, self.what, ("text",))
        if isinstance(value, Bad):
            return BAD
        if not isinstance(value, str):
            assert isinstance(node, ScalarNode)
            return wrong(node, path, problems, self.what, f'write "{shorten(node.text)}" for the text')
        if "\0" in value:
            return nul(node, path, problems, self.what)
        if not value.strip():
            problems.add(node.where, path, f"empty where {self.what} is wanted")
            return BAD
        if fault := too_long(value, self.longest):
            return value if problems.rule(node.where, path, fault) else BAD
        if self.pattern and not re.fullmatch(self.pattern, value):
            return wrong(node, path, problems, self.what, self.pattern_words)
        return value

    def schema(self) -> Json:
        found: Json = {"type": "string", "minLength": 1}
        if self.pattern:
            found["pattern"] = f"^({self.pattern})$"
        return {"type": ["string", "null"], "minLength": 1} if self.home else found

    def spell(self, value: object) -> object:
        return value


@dataclass(frozen=True)
class Choice:
    options: tuple[str, ...]

    def read(self, node: TreeNode, path: str, problems: Problems) -> str | Bad:
        value = plain(node, path, problems, f"one of {', '.join(self.options)}", ())
        if isinstance(value, Bad):
            return BAD
        if value not in self.options:
            problems.add(
                node.where, path, f"{describe(node)} is not known here{nearest(str(value), self.options)}"
            )
            return BAD
        return str(value)

    def schema(self) -> Json:
        return {"enum": list(self.options)}

    def spell(self, value: object) -> object:
        return value


@dataclass(frozen=True)
class Flag:
    def read(self, node: TreeNode, path: str, problems: Problems) -> bool | Bad:
        value = plain(node, path, problems, "true or false", ("flag",))
        if isinstance(value, bool | Bad):
            return value
        return wrong(node, path, problems, "true or false")

    def schema(self) -> Json:
        return {"type": "boolean"}

    def spell(self, value: object) -> object:
        return value


@dataclass(frozen=True)
class Whole:
    """An integer within low..high, both included."""

    low: int = 0
    high: int = 10**9
    what: str = "a whole number"

    def read(self, node: TreeNode, path: str, problems: Problems) -> int | Bad:
        value = plain(node, path, problems, self.what, ("number",))
        if isinstance(value, Bad):
            return BAD
        if isinstance(value, bool) or not isinstance(value, int):
            digits = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16
            return wrong(node, path, problems, self.what, f"write {int(value)}" if digits else "")
        if self.low == self.high and value != self.low:
            return wrong(node, path, problems, self.what)
        if not self.low <= value <= self.high:
            allowed = problems.rule(node.where, path, f"{value} is outside {self.low} to {self.high}")
            return value if allowed else BAD
        return value

    def schema(self) -> Json:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}

    def spell(self, value: object) -> object:
        return value


@dataclass(frozen=True)
class Real:
    """A number within low..high, both included; an integer is a number too."""

    low: float
    high: float

    def read(self, node: TreeNode, path: str, problems: Problems) -> float | Bad:
        value = plain(node, path, problems, "a number", ("number",))
        if isinstance(value, Bad):
            return BAD
        if isinstance(value, bool) or not isinstance(value, int | float):
            return wrong(node, path, problems, "a number")
        if not self.low <= value <= self.high:
            allowed = problems.rule(node.where, path, f"{value} is outside {self.low:g} to {self.high:g}")
            return float(value) if allowed else BAD
        return float(value)

    def schema(self) -> Json:
        return {"type": "number", "minimum": self.low, "maximum": self.high}

    def spell(self, value: object) -> object:
        return value


@dataclass(frozen=True)
class ListOf:
    item: Kind
    what: str
    unique: bool = False

    def read(self, node: TreeNode, path: str, problems: Problems) -> tuple[object, ...] | Bad:
        if not isinstance(node, ListNode):
            return wrong(node, path, problems, f"a list of {self.what}", "write [a, b] or one `- ` line each")
        if not node.items:
            problems.add(node.where, path, f"an empty list; at least one of {self.what} is wanted")
            return BAD
        values = [self.item.read(item, f"{path}[{index}]", problems) for index, item in enumerate(node.items)]
        if any(isinstance(value, Bad) for value in values):
            return BAD
        for index, value in enumerate(values):
            if self.unique and value in values[:index]:
                where = node.items[index].where
                if not problems.rule(where, f"{path}[{index}]", f"`{value}` stands here twice"):
                    return BAD
        return tuple(values)

    def schema(self) -> Json:
        return {"type": "array", "items": self.item.schema(), "minItems": 1, "uniqueItems": self.unique}

    def spell(self, value: object) -> object:
        return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True)
class Anything:
    """Taken as it is and not looked at: the `lock:` section of a lock file."""

    def read(self, node: TreeNode, path: str, problems: Problems) -> None:
        return None

    def schema(self) -> Json:
        return {}

    def spell(self, value: object) -> object:
        return value


def is_null(node: TreeNode) -> bool:
    """An explicit null, which counts as a key that was not written."""
    return isinstance(node, ScalarNode) and read_plain(node) == NULL
