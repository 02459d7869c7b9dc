"""`args` and `env`: free names, values that become words of the server's command line and its environment."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from orchestrator.config.kinds import BAD, Bad, Json, is_null, nul, wrong
from orchestrator.config.scalars import Refused, describe, read_plain, shorten
from orchestrator.config.secrets import secret_name, secret_value
from orchestrator.config.sections import join, unique_entries
from orchestrator.config.tree import ListNode, MapNode, Problems, ScalarNode, TreeNode
from orchestrator.model.experiment import ArgValue, Scalar, SecretRef

_FLAG = r"[A-Za-z0-9][A-Za-z0-9-]*"
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
_HOW_ENV = (
    "secrets stand in the file by reference only: write {{from_env: {name}}} and export it where dynspec runs"
)


@dataclass(frozen=True)
class ArgsMap:
    """`flag: value` of the server's command line, without the leading dashes. None marks a removed key."""

    def read(self, node: TreeNode, path: str, problems: Problems) -> dict[str, ArgValue | None] | Bad:
        if not isinstance(node, MapNode):
            return wrong(
                node, path, problems, "a mapping of server arguments", "write {model-path: /models/x, tp: 8}"
            )
        values: dict[str, ArgValue | None] = {}
        for entry in unique_entries(node, path, problems):
            name, where = entry.key.text, join(path, shorten(entry.key.text))
            if not re.fullmatch(_FLAG, name):
                problems.add(entry.key.where, where, _flag_help(name))
            elif is_null(entry.value):
                values[name] = None
            elif secret_name(name) or _holds_secret(entry.value):
                problems.add(entry.value.where, where, _how_arg(name))
            else:
                value = _arg(entry.value, where, problems)
                if not isinstance(value, Bad):
                    values[name] = value
        return values

    def schema(self) -> Json:
        scalar: Json = {"type": ["string", "number"]}
        return {
            "type": "object",
            "propertyNames": {"pattern": f"^({_FLAG})$"},
            "additionalProperties": {
                "anyOf": [scalar, {"enum": [True, None]}, {"type": "array", "items": scalar, "minItems": 1}]
            },
        }

    def spell(self, value: object) -> object:
        return value


def _how_arg(name: str) -> str:
    own = name in ("api-key", "admin-api-key")
    leave = "leave it out: dynspec needs none on the node's loopback" if own else "leave it out"
    variable = "HF_TOKEN" if own else re.sub(r"\W", "_", name).upper()
    return (
        f"a secret on a command line shows in the process list; {leave}. What the server reads from its environment "
        f"goes into server.env by reference, such as {{{variable}: {{from_env: {variable}}}}}"
    )


def _flag_help(name: str) -> str:
    flag = name.lstrip("-").replace("_", "-")
    if flag != name and not secret_value(name) and re.fullmatch(_FLAG, flag):
        return f"write the flag without leading dashes and with `-`: {flag}"
    return "not the name of a flag: letters, digits and `-` are wanted"


def _holds_secret(node: TreeNode) -> bool:
    if isinstance(node, ListNode):
        return any(map(_holds_secret, node.items))
    return isinstance(node, ScalarNode) and secret_value(node.text)


def _arg(node: TreeNode, path: str, problems: Problems) -> ArgValue | Bad:
    if isinstance(node, MapNode):
        problems.add(node.where, path, "a mapping is no argument; write JSON as quoted text: '{\"a\": 1}'")
        return BAD
    if isinstance(node, ScalarNode):
        return _word(node, path, problems, in_list=False)
    if not node.items:
        problems.add(node.where, path, "an empty list makes a flag without words; write true for a bare flag")
        return BAD
    words: list[Scalar] = []
    for index, item in enumerate(node.items):
        place = f"{path}[{index}]"
        if not isinstance(item, ScalarNode):
            problems.add(item.where, place, f"{describe(item)} where one word is wanted")
            continue
        word = _word(item, place, problems, in_list=True)
        if not isinstance(word, Bad):
            words.append(word)
    return tuple(words) if len(words) == len(node.items) else BAD


def _word(node: ScalarNode, path: str, problems: Problems, *, in_list: bool) -> Scalar | Bad:
    value = read_plain(node, ("number", "text") if in_list else ("number", "switch", "text"))
    if isinstance(value, Refused):
        problems.add(node.where, path, value.text)
        return BAD
    if value is False:
        problems.add(
            node.where,
            path,
            "false does not switch a flag off: the flag is there or not. Delete the key, write null to remove an "
            'inherited one, or "false" when the flag takes that word',
        )
        return BAD
    if in_list and not (isinstance(value, str | int | float) and value is not True):
        problems.add(
            node.where, path, f"{describe(node)} where one word is wanted; quote it if it is meant as text"
        )
        return BAD
    if isinstance(value, str) and "\0" in value:
        return nul(node, path, problems, "a word of a command line")
    # 0.90 must reach the server as it was written, and 0.9 is not how it was written.
    if isinstance(value, float) and str(value) != node.text:
        return node.text
    return value if isinstance(value, str | int | float) else BAD


@dataclass(frozen=True)
class EnvMap:
    """Variables of the server's environment. Text only; `{from_env: NAME}` is a reference to a secret."""

    def read(self, node: TreeNode, path: str, problems: Problems) -> dict[str, Any] | Bad:
        if not isinstance(node, MapNode):
            return wrong(node, path, problems, "a mapping of environment variables")
        values: dict[str, Any] = {}
        for entry in unique_entries(node, path, problems):
            name, where = entry.key.text, join(path, shorten(entry.key.text))
            if not re.fullmatch(_VARIABLE, name):
                problems.add(
                    entry.key.where, where, "not the name of a variable: letters, digits and `_` are wanted"
                )
            elif is_null(entry.value):
                values[name] = None
            else:
                value = _env(name, entry.value, where, problems)
                if not isinstance(value, Bad):
                    values[name] = value
        return values

    def schema(self) -> Json:
        reference: Json = {
            "type": "object",
            "properties": {
                "from_env": {
                    "description": "the variable of this machine that holds the secret",
                    "type": "string",
                    "pattern": f"^({_VARIABLE})$",
                }
            },
            "required": ["from_env"],
            "additionalProperties": False,
        }
        return {
            "type": "object",
            "propertyNames": {"pattern": f"^({_VARIABLE})$"},
            "additionalProperties": {"anyOf": [{"type": ["string", "null"]}, reference]},
        }

    def spell(self, value: object) -> object:
        return value


def _env(name: str, node: TreeNode, path: str, problems: Problems) -> str | SecretRef | Bad:
    if isinstance(node, MapNode):
        return _reference(node, path, problems)
    if isinstance(node, ScalarNode) and node.text and (secret_name(name) or secret_value(node.text)):
        problems.add(node.where, path, _HOW_ENV.format(name=name))
        return BAD
    if isinstance(node, ListNode):
        return wrong(node, path, problems, "text")
    value = read_plain(node, ("text",))
    if isinstance(value, Refused):
        problems.add(node.where, path, value.text)
        return BAD
    if not isinstance(value, str):
        return wrong(
            node, path, problems, "text", f'environment values are text: write "{shorten(node.text)}"'
        )
    return nul(node, path, problems, "text") if "\0" in value else value


def _reference(node: MapNode, path: str, problems: Problems) -> SecretRef | Bad:
    target = node.get("from_env")
    if (
        len(node.entries) != 1
        or not isinstance(target, ScalarNode)
        or not re.fullmatch(_VARIABLE, target.text)
    ):
        problems.add(node.where, path, "a reference is written {from_env: NAME}, with the name of a variable")
        return BAD
    return SecretRef(target.text)
