"""Values of constant expressions in source text that must not be imported (it would pull in torch)."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any


class NotConstant(Exception):
    """The expression needs code to run."""


_BINARY: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
}


class Constants:
    """Module-level names of one source file, evaluated on demand."""

    def __init__(self, module: ast.Module) -> None:
        self._nodes: dict[str, ast.expr] = {}
        for node in module.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self._nodes[node.targets[0].id] = node.value
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
                self._nodes[node.target.id] = node.value

    def name(self, identifier: str) -> Any:
        if identifier not in self._nodes:
            raise NotConstant(identifier)
        return self.value(self._nodes[identifier])

    def value(self, node: ast.AST) -> Any:
        """The value of `node`; raises NotConstant for calls, attributes and unknown names."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self.name(node.id)
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            return [self.value(item) for item in node.elts]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.value(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            return _BINARY[type(node.op)](self.value(node.left), self.value(node.right))
        raise NotConstant(ast.dump(node))


def dotted(node: ast.AST) -> str:
    """`a.b.c` as it is written; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""
