"""Small readings of a syntax tree: literals, keywords of a call, and SGLang's `A[type, Arg(...)]` annotations."""

from __future__ import annotations

import ast
from collections.abc import Sequence

Nargs = int | str | None

_ANNOTATED = {"A", "Annotated"}
UNKNOWN = object()  # what `literal` gives for an expression that is no literal


def called(call: ast.Call) -> str:
    func = call.func
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def keywords(call: ast.Call) -> dict[str, ast.expr]:
    return {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}


def dict_items(node: ast.Dict) -> dict[str, ast.expr]:
    pairs = zip(node.keys, node.values, strict=True)
    return {
        key.value: value
        for key, value in pairs
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    }


def source_of(node: ast.expr | None) -> str:
    return "" if node is None else ast.unparse(node)


def literal(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return UNKNOWN


def is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def nargs_of(node: ast.expr) -> Nargs:
    value = literal(node)
    if value is None:
        return 1  # argparse's own default
    return value if isinstance(value, int | str) else None


def default_of(function: ast.FunctionDef, name: str) -> object:
    names = [arg.arg for arg in function.args.args]
    defaults = dict(zip(reversed(names), reversed(function.args.defaults), strict=False))
    return literal(defaults[name]) if name in defaults else UNKNOWN


def annotated(node: ast.expr) -> tuple[ast.expr, dict[str, ast.expr]] | None:
    """(type, keywords of Arg) of `A[type, ...]`; None for a field without command line."""
    if not (isinstance(node, ast.Subscript) and source_of(node.value).rpartition(".")[2] in _ANNOTATED):
        return None
    if not isinstance(node.slice, ast.Tuple):
        return None
    kind, *extras = node.slice.elts
    for extra in extras:
        if isinstance(extra, ast.Call):
            if called(extra) == "Arg":
                return kind, keywords(extra)
        elif not isinstance(extra, ast.Name):
            return kind, {}  # a text, in one piece or several, is the help
    return None


def without_optional(kind: ast.expr) -> ast.expr:
    """X of Optional[X], Union[X, None] and X | None."""
    if isinstance(kind, ast.Subscript):
        outer = source_of(kind.value).rpartition(".")[2]
        if outer == "Optional":
            return kind.slice
        if outer == "Union" and isinstance(kind.slice, ast.Tuple):
            return _only(kind.slice.elts, kind)
    if isinstance(kind, ast.BinOp) and isinstance(kind.op, ast.BitOr):
        return _only([kind.left, kind.right], kind)
    return kind


def _only(parts: Sequence[ast.expr], kind: ast.expr) -> ast.expr:
    rest = [part for part in parts if not (isinstance(part, ast.Constant) and part.value is None)]
    return rest[0] if len(rest) == 1 else kind
