"""What a scalar of the file means, and why some ways to write one are refused.

One rule covers the surprises of YAML: a plain scalar that YAML 1.1 (PyYAML) and YAML 1.2 (most editors) read
differently is refused, whatever type is wanted. `030000`, `12:30`, `no`, `1e-3`, `1_000` and dates are such.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Refused:
    """Why a scalar is not taken, ending with how to write it."""

    text: str


def kind_of(node: ScalarNode) -> str:
    """YAML 1.1's type of a scalar; quoted ones are text."""
    return "str" if node.quoted else implicit_kind(node.text)


def read_plain(node: ScalarNode) -> Plain | Refused:
    """The value of a scalar, or why it is refused. A float keeps its value, not its text."""
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
    return Refused(_surprise(node))


def _surprise(node: ScalarNode) -> str:
    text, kind = shorten(node.text), kind_of(node)
    quoted = f'"{text}"'
    if kind == "bool":
        return f"`{text}` is read as {_as_read(node)}; write true or false, or {quoted} for the text"
    if kind == "timestamp":
        return f"`{text}` is read as a date; write {quoted} for the text"
    if kind == "str":
        plain = _plain_number(node.text)
        number = f"write {plain} for the number" if plain else "write the number without leading zeros"
        read = f"`{text}` is read as text here and as a number by other YAML readers"
        return f"{read}; {number}, or {quoted} for the text"
    if kind in ("int", "float"):
        return f"`{text}` is read as {_as_read(node)}; write a plain decimal number, or {quoted} for the text"
    return f"`{text}` has a meaning of its own in YAML; write {quoted} for the text"


def _plain_number(text: str) -> str:
    try:
        value = float(text)
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
