"""Lines that a patch made the tree print at start: its own logging statements, run as they stand in the tree.

A patch adds whole statements around `logger.<level>("dynspec: ...")`. The engine cannot run the worker, so it
runs those statements alone, with an object in the place of `self` that carries the resolved arguments.
"""

from __future__ import annotations

import ast
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .resolve import Resolved
from .tree import Tree

PREFIX = "dynspec"
_CLASSES = {"v1": "EAGLEWorker", "v2": "EAGLEWorkerV2"}


def say_arguments(resolved: Resolved, tree: Tree, log: logging.Logger) -> None:
    """What a patched `ServerArgs.__post_init__` says about the resolved arguments."""
    run_statements(tree.server_args, "ServerArgs", "__post_init__", resolved.args, {"logger": log})


def say_worker(resolved: Resolved, tree: Tree, tp_rank: int, log: logging.Logger) -> None:
    """What the patched worker in use says once per rank; nothing if the patch is in the other worker's file."""
    if not resolved.speculates:
        return
    attributes = {**resolved.args, "topk": resolved.args.get("speculative_eagle_topk")}
    names = {"logger": log, "tp_rank": tp_rank}
    owner = _CLASSES[resolved.worker]
    run_statements(tree.worker_file(resolved.worker), owner, "__init__", attributes, names)


def run_statements(
    file: Path, owner: str, method: str, attributes: Mapping[str, Any], names: Mapping[str, Any]
) -> None:
    """Run the logging statements of `owner.method` that a patch added. `attributes`: those of `self`."""
    if not file.is_file():
        return
    stand_in = type(owner, (), dict(attributes))()
    for statement in _saying(ast.parse(file.read_text(encoding="utf-8")), owner, method):
        module = ast.Module(body=[statement], type_ignores=[])
        scope = {**names, "self": stand_in, "__file__": str(file)}
        try:
            exec(compile(module, str(file), "exec"), scope)  # the tree's own statement
        except (AttributeError, NameError) as error:
            names["logger"].warning("%s: simulated engine cannot say this line: %s", PREFIX, error)


def _saying(module: ast.Module, owner: str, method: str) -> list[ast.stmt]:
    for node in module.body:
        if isinstance(node, ast.ClassDef) and node.name == owner:
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == method:
                    return [statement for statement in item.body if _logs(statement)]
    return []


def _logs(statement: ast.stmt) -> bool:
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "logger"
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and str(node.args[0].value).startswith(PREFIX)
        for node in ast.walk(statement)
    )
