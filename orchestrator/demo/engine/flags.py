"""The command line of a serving tree, read from its own `srt/server_args.py` without importing it.

A flag exists here exactly if the tree's `ServerArgs.add_cli_args` declares it, so a flag that only a patch adds
is a usage error (stderr, exit 2) on a tree without that patch.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import added, annotated
from .literals import Constants, NotConstant, dotted


class UnreadableTree(Exception):
    """`srt/server_args.py` has no `ServerArgs.add_cli_args` of a known shape, or is not valid Python."""


_SUFFIX = {
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}


def human_readable_int(text: str) -> int:
    for suffix in sorted(_SUFFIX, key=len, reverse=True):
        if text.endswith(suffix):
            return int(float(text[: -len(suffix)]) * _SUFFIX[suffix])
    return int(text)


def nullable_str(text: str) -> str | None:
    return None if text in ("", "None") else text


_TYPES: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "json.loads": json.loads,
    "json_list_type": json.loads,
    "human_readable_int": human_readable_int,
    "nullable_str": nullable_str,
}


class _OnOff(argparse.Action):
    """`--x` and `--no-x` (argparse has it from Python 3.9 on)."""

    def __init__(self, option_strings: Sequence[str], dest: str, default: Any = None, **kwargs: Any) -> None:
        off = ["--no-" + name[2:] for name in option_strings]
        super().__init__(list(option_strings) + off, dest, nargs=0, default=default, help=kwargs.get("help"))

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, not (option_string or "").startswith("--no-"))


class _Ignored(argparse.Action):
    """A deprecated flag that the tree still accepts and does nothing with."""

    def __init__(self, option_strings: Sequence[str], dest: str, **kwargs: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS)

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        return None


@dataclass(frozen=True)
class CommandLine:
    """`options`: (names, add_argument keywords) in the tree's order; `fields`: ServerArgs fields with defaults;
    `aliases`: field -> parsed name, where the two differ (`tp_size` from `tensor_parallel_size`); `extra`: functions of
    a patch that add options to the parser."""

    program: str
    options: list[tuple[list[str], dict[str, Any]]]
    fields: dict[str, Any]
    aliases: dict[str, str]
    extra: list[Callable[[Any], None]]

    def parse(self, argv: Sequence[str]) -> dict[str, Any]:
        """ServerArgs fields in the tree's order. A usage error goes to stderr and exits with 2."""
        parser = argparse.ArgumentParser(prog=self.program, allow_abbrev=True)
        for names, keywords in self.options:
            parser.add_argument(*names, **keywords)
        for add in self.extra:
            add(parser)
        parsed = vars(parser.parse_args(list(argv)))
        if parsed.get("config"):
            parser.error("--config is not simulated")
        return {name: parsed.get(self.aliases.get(name, name), value) for name, value in self.fields.items()}


def read_command_line(server_args: Path) -> CommandLine:
    try:
        module = ast.parse(server_args.read_text(encoding="utf-8"))
    except SyntaxError as error:
        raise UnreadableTree(f"{server_args}:{error.lineno}: {error.msg}") from error
    owner = _find(module.body, ast.ClassDef, "ServerArgs")
    declare = _find(owner.body, ast.FunctionDef, "add_cli_args")
    constants = Constants(module)
    fields = _fields(owner, constants)
    options = annotated.options(owner, constants, _TYPES, _OnOff)
    options += [_option(call, constants, fields) for call in _calls(declare)]
    if len(options) < 100:
        raise UnreadableTree(
            f"{server_args}: only {len(options)} flags found; this engine reads SGLang 0.5.8 to 0.5.14"
        )
    try:
        extra = added.calls(server_args.parent.parent, module, "ServerArgs", "add_cli_args", "parser")
    except added.CannotLoad as error:
        raise UnreadableTree(str(error)) from error
    return CommandLine(_program(module), options, fields, _aliases(owner), extra)


def _find(body: Sequence[ast.stmt], kind: type, name: str) -> Any:
    for node in body:
        if isinstance(node, kind) and getattr(node, "name", None) == name:
            return node
    raise UnreadableTree(f"no {name} in server_args.py")


def _calls(function: ast.FunctionDef) -> list[ast.Call]:
    found = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "add_argument"
    ]
    return sorted(found, key=lambda node: node.lineno)


def _fields(owner: ast.ClassDef, constants: Constants) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for node in owner.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            try:
                fields[node.target.id] = constants.value(node.value) if node.value else None
            except NotConstant:
                fields[node.target.id] = None
    return fields


def _aliases(owner: ast.ClassDef) -> dict[str, str]:
    """`args.tp_size = args.tensor_parallel_size` lines of `from_cli_args`."""
    convert = _find(owner.body, ast.FunctionDef, "from_cli_args")
    pairs = {}
    for node in convert.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute):
            target = node.targets[0]
            if isinstance(target, ast.Attribute):
                pairs[target.attr] = node.value.attr
    return pairs


def _program(module: ast.Module) -> str:
    """`prog` of the ArgumentParser that `prepare_server_args` makes; it begins every usage error."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and dotted(node.func) == "argparse.ArgumentParser":
            for word in node.keywords:
                if word.arg == "prog" and isinstance(word.value, ast.Constant):
                    return str(word.value.value)
    return "launch_server.py"


def _option(call: ast.Call, constants: Constants, fields: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    names = [constants.value(item) for item in call.args]
    keywords: dict[str, Any] = {}
    for word in call.keywords:
        if word.arg in ("dest", "nargs", "const", "required"):
            keywords[word.arg] = constants.value(word.value)
        elif word.arg == "type":
            keywords["type"] = _TYPES.get(dotted(word.value), str)
        elif word.arg == "action":
            keywords.update(_action(dotted(word.value) or constants.value(word.value)))
        elif word.arg in ("default", "choices"):
            _constant_keyword(keywords, word, constants, fields)
    return names, keywords


def _constant_keyword(
    keywords: dict[str, Any], word: ast.keyword, constants: Constants, fields: dict[str, Any]
) -> None:
    value = word.value
    if isinstance(value, ast.Attribute) and dotted(value).startswith("ServerArgs."):
        keywords["default"] = fields.get(value.attr)
        return
    try:
        keywords[str(word.arg)] = constants.value(value)
    except NotConstant:
        return  # choices that only running code knows are not checked


def _action(name: str) -> dict[str, Any]:
    known: dict[str, Any] = {
        "argparse.BooleanOptionalAction": _OnOff,
        "DeprecatedAction": _Ignored,
        "DeprecatedStoreTrueAction": "store_true",
    }
    if name in known:
        return {"action": known[name]}
    return {"action": name} if name.startswith("store") or name == "append" else {}
