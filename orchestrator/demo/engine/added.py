"""Modules that a patch added to the tree, loaded one by one: those that need nothing of SGLang can run here.

The dynamic-disable patch keeps its options and its state machine free of torch, so the engine takes them from
the tree instead of imitating them: it accepts the flags, decides, counts and logs as that very tree would.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

NAMESPACE = "sglang.srt.speculative.dynspec"


class CannotLoad(Exception):
    """The module is not there, or needs something that this engine does not have."""


def load(package: Path, module: str) -> ModuleType:
    """One module of the tree by its import name (`sglang.srt...`), without its package and its parents."""
    file = package.joinpath(*module.split(".")[1:]).with_suffix(".py")
    spec = importlib.util.spec_from_file_location(module.rpartition(".")[2], file)
    if spec is None or spec.loader is None or not file.is_file():
        raise CannotLoad(f"{file} is not there")
    loaded = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(loaded)
    except (ImportError, SyntaxError) as error:
        raise CannotLoad(f"{file}: {error}") from error
    return loaded


def calls(
    package: Path, source: ast.Module, owner: str, method: str, argument: str
) -> list[Callable[..., Any]]:
    """Functions of added modules that `owner.method` imports and calls as `function(argument)`, a whole statement."""
    functions = []
    for statement in ast.walk(_method(source, owner, method)):
        if not isinstance(statement, ast.ImportFrom) or not (statement.module or "").startswith(NAMESPACE):
            continue
        for alias in statement.names:
            if _is_called(source, owner, method, alias.name, argument):
                functions.append(getattr(load(package, str(statement.module)), alias.name))
    return functions


def _is_called(source: ast.Module, owner: str, method: str, name: str, argument: str) -> bool:
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == name
        and len(node.args) == 1
        and isinstance(node.args[0], ast.Name)
        and node.args[0].id == argument
        for node in ast.walk(_method(source, owner, method))
    )


def _method(source: ast.Module, owner: str, method: str) -> ast.AST:
    for node in source.body:
        if isinstance(node, ast.ClassDef) and node.name == owner:
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == method:
                    return item
    return ast.Module(body=[], type_ignores=[])
