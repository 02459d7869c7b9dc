"""Flags of 0.5.14's layout: `field: A[type, Arg(...)] = default` in ServerArgs, a flag a field."""

from __future__ import annotations

import ast
from typing import Any

from .literals import Constants, NotConstant, dotted


def options(
    owner: ast.ClassDef, constants: Constants, types: dict[str, Any], on_off: type
) -> list[tuple[list[str], dict[str, Any]]]:
    """(names, add_argument keywords) of every annotated field. `types`: converters by name; `on_off`: the action
    for `--x` and `--no-x`."""
    found = []
    for node in owner.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        parts = _annotation(node.annotation)
        if parts is None:
            continue
        kind, meta = parts
        words = _meta(meta, constants)
        if words.get("no_cli"):
            continue
        names = [words.get("cli_name") or "--" + node.target.id.replace("_", "-"), *words.get("aliases", [])]
        keywords = _keywords(kind, words, types, on_off)
        keywords["dest"] = node.target.id
        if node.value is None:
            keywords["required"] = True
        else:
            keywords["default"] = _or_none(node.value, constants)
        found.append((names, keywords))
    return found


def _annotation(node: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """Type and metadata of `A[type, metadata]`."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name) or node.value.id != "A":
        return None
    inner: Any = node.slice
    inner = getattr(inner, "value", inner) if type(inner).__name__ == "Index" else inner  # before Python 3.9
    return (inner.elts[0], inner.elts[1]) if isinstance(inner, ast.Tuple) and len(inner.elts) > 1 else None


def _meta(node: ast.expr, constants: Constants) -> dict[str, Any]:
    """Keywords of `Arg(...)`; functions and actions by name."""
    if not isinstance(node, ast.Call):
        return {}
    words: dict[str, Any] = {}
    for word in node.keywords:
        value = _or_none(word.value, constants)
        words[str(word.arg)] = dotted(word.value) if value is None else value
    return words


def _keywords(kind: ast.expr, words: dict[str, Any], types: dict[str, Any], on_off: type) -> dict[str, Any]:
    action = words.get("action")
    if action == "argparse.BooleanOptionalAction":
        return {"action": on_off}
    if action == "LoRAPathAction":
        return {"nargs": "*"}
    kind = _without_optional(kind)
    name, inner = _generic(kind)
    keywords: dict[str, Any] = {}
    if words.get("type_parser"):
        keywords["type"] = types.get(words["type_parser"], str)
    elif name in ("List", "list"):
        keywords = {"nargs": "+", "type": types.get(dotted(inner) if inner else "str", str)}
    elif name == "Literal":
        keywords["choices"] = [item.value for item in _items(inner) if isinstance(item, ast.Constant)]
    elif dotted(kind) == "bool":
        return {"action": "store_true"}
    else:
        keywords["type"] = types.get(dotted(kind), str)
    if isinstance(words.get("choices"), list):
        keywords["choices"] = words["choices"]
    for key in ("nargs", "const"):
        if words.get(key) is not None:
            keywords[key] = words[key]
    return keywords


def _without_optional(kind: ast.expr) -> ast.expr:
    name, inner = _generic(kind)
    return inner if name == "Optional" and inner is not None else kind


def _generic(kind: ast.expr) -> tuple[str, ast.expr | None]:
    """`List[int]` -> ("List", int)."""
    if not isinstance(kind, ast.Subscript):
        return "", None
    inner: Any = kind.slice
    inner = getattr(inner, "value", inner) if type(inner).__name__ == "Index" else inner
    return dotted(kind.value), inner


def _items(node: ast.expr | None) -> list[ast.expr]:
    if isinstance(node, ast.Tuple):
        return list(node.elts)
    return [] if node is None else [node]


def _or_none(node: ast.expr, constants: Constants) -> Any:
    try:
        return constants.value(node)
    except NotConstant:
        return None
