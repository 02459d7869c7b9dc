"""Small readings of a syntax tree: literals, keywords of a call, and SGLang's `A[type, Arg(...)]` annotations."""

from __future__ import annotations

import ast
from collections.abc import Sequence

SERVER_ARGS = "srt/server_args.py"
FROM_FIELDS = "add_cli_args_from_dataclass"  # SGLang's own derivation of options from annotated fields
Nargs = int | str | None

_ANNOTATED = {"A", "Annotated"}
UNKNOWN = object()  # what `literal` gives for an expression that is no literal


def path_of(module: str) -> str:
    """The package-relative file of `sglang.x.y`; empty for modules of other packages."""
    package, _, rest = module.partition(".")
    return f"{rest.replace('.', '/')}.py" if package == "sglang" and rest else ""


def function_in(body: Sequence[ast.stmt], name: str) -> ast.FunctionDef | None:
    """The function `name` defined in that body itself."""
    return next((n for n in body if isinstance(n, ast.FunctionDef) and n.name == name), None)


def delegates(tree: ast.Module, add_cli_args: ast.FunctionDef) -> list[tuple[str, str]]:
    """(file, name) of the functions that `add_cli_args` hands its parser to, `FROM_FIELDS` left out."""
    parser = add_cli_args.args.args[-1].arg
    origins = {
        alias.asname or alias.name: (
            path_of(node.module or "") or f"the package of {node.module}",
            alias.name,
        )
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return [
        origins.get(call.func.id, (SERVER_ARGS, call.func.id))
        for call in ast.walk(add_cli_args)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id != FROM_FIELDS
        if any(isinstance(arg, ast.Name) and arg.id == parser for arg in call.args)
    ]


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
