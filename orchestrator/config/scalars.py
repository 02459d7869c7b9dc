"""What a scalar of the file means, and why some ways to write one are refused.

One rule covers the surprises of YAML: a plain scalar that YAML 1.1 (PyYAML) and YAML 1.2 (most editors) read
differently is refused, whatever type is wanted. `030000`, `12:30`, `no`, `1e-3`, `1_000` and dates are such.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import yaml

from orchestrator.config.parse import implicit_kind
from orchestrator.config.secrets import hide
from orchestrator.config.tree import ListNode, MapNode, ScalarNode, TreeNode

_CONSTRUCTOR = yaml.constructor.SafeConstructor()
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]{0,17})\.[0-9]{1,17}")
_TRUE = ("true", "True", "TRUE")
_FALSE = ("false", "False", "FALSE")
# Numbers of YAML 1.2's core schema; PyYAML takes several of these forms for text.
_NUMBER_1_2 = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|0o[0-7]+|0x[0-9a-fA-F]+")
SHOWN = 60  # characters of a value that a message repeats


@dataclass(frozen=True)
class Null:
    """An explicit `null`: the key counts as not written; in an arm it removes what was inherited."""


NULL = Null()
Plain = str | int | float | bool | Null
Takes = Sequence[
    Literal["text", "number", "flag", "switch"]
]  # what a place can hold, for the advice in a refusal
ALL: Takes = ("number", "flag", "text")


@dataclass(frozen=True)
class Refused:
    """Why a scalar is not taken, ending with how to write it."""

    text: str


def kind_of(node: ScalarNode) -> str:
    """YAML 1.1's type of a scalar; quoted ones are text."""
    return "str" if node.quoted else implicit_kind(node.text)


def read_plain(node: ScalarNode, takes: Takes = ALL, wanted: str = "") -> Plain | Refused:
    """The value of a scalar, or why it is refused. A float keeps its value, not its text.

    `takes`: what the place can hold, so that the refusal advises nothing else; `wanted`: that in words.
    """
    if node.quoted:
        return node.text
    text = node.text
    if _INTEGER.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return float(text)
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if text in ("null", "Null", "NULL"):
        return NULL
    if text == "":
        return Refused("has no value; write one, or delete the key")
    if text == "~":
        return Refused("`~` is null in YAML; write null to remove the key, or '~' for the home folder")
    if kind_of(node) == "str" and not _NUMBER_1_2.fullmatch(text):
        return text
    ways = [way for kind in takes if (way := _WAYS[kind](node))]
    how = f"write {', or '.join(ways)}" if ways else f"{wanted or 'another value'} is wanted"
    return Refused(f"{_surprise(node)}; {how}")


def _surprise(node: ScalarNode) -> str:
    text, kind = shorten(node.text), kind_of(node)
    if kind == "str":
        return f"`{text}` is read as text here and as a number by other YAML readers"
    if kind in ("int", "float", "bool", "timestamp"):
        return f"`{text}` is read as {_as_read(node)}"
    return f"`{text}` has a meaning of its own in YAML"


def _as_number(node: ScalarNode) -> str:
    kind = kind_of(node)
    if kind not in ("str", "int", "float"):
        return ""
    plain = _plain_number(node.text)
    if plain:
        return f"{plain} for the number"
    return "the number without leading zeros" if kind == "str" else "a plain decimal number"


def _as_flag(node: ScalarNode) -> str:
    return "true or false" if kind_of(node) == "bool" else ""


def _as_switch(node: ScalarNode) -> str:
    """A server's flag is there or not; it has no false."""
    if kind_of(node) != "bool":
        return ""
    return "true for the bare flag" if _as_read(node) == "the boolean true" else "null for no such flag"


def _as_text(node: ScalarNode) -> str:
    return f'"{shorten(node.text)}" for the text'


_WAYS = {"number": _as_number, "flag": _as_flag, "switch": _as_switch, "text": _as_text}


def _plain_number(text: str) -> str:
    try:
        value = float(int(text, 16) if re.fullmatch(r"[-+]?0x[0-9a-fA-F]{1,12}", text) else text)
    except ValueError:
        return ""
    if abs(value) >= 1e15:
        return ""
    if value == int(value):
        return str(int(value))
    shown = format(value, ".12f").rstrip("0")
    return shown if float(shown) == value else ""


def _as_read(node: ScalarNode) -> str:
    """The value that PyYAML's constructor would hand over, in words."""
    yaml_node = yaml.ScalarNode(f"tag:yaml.org,2002:{kind_of(node)}", node.text)
    try:
        if kind_of(node) == "int":
            return f"the number {shorten(str(_CONSTRUCTOR.construct_yaml_int(yaml_node)))}"
        if kind_of(node) == "float":
            return f"the number {_CONSTRUCTOR.construct_yaml_float(yaml_node)!r}"
    except (ValueError, OverflowError, IndexError):  # `0x_`, a number of 5,000 digits
        return "a number"
    if kind_of(node) == "bool":
        return f"the boolean {str(_CONSTRUCTOR.construct_yaml_bool(yaml_node)).lower()}"
    return {"null": "nothing (null)", "timestamp": "a date"}.get(kind_of(node), "text")


def describe(node: TreeNode) -> str:
    """The value as read, for messages; what looks like a secret is not repeated."""
    if isinstance(node, MapNode):
        return "a mapping"
    if isinstance(node, ListNode):
        return "a list"
    if kind_of(node) == "str":
        return f'the text "{shorten(node.text)}"'
    return _as_read(node)


def shorten(text: str) -> str:
    """One line of at most `SHOWN` characters, without secrets."""
    text = hide(text)
    line = text.encode("unicode_escape").decode("ascii") if not text.isprintable() else text
    return line if len(line) <= SHOWN else line[: SHOWN - 3] + "..."
