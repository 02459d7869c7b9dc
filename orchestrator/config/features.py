"""Keys of the contract that this version does not carry out. A silent no-op would be a wrong number: they are refused.

Shrink `UNSUPPORTED` as features arrive; nothing else has to change.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.config.tree import ListNode, MapNode, Problems, ScalarNode, TreeNode


@dataclass(frozen=True)
class Lacking:
    """A key path, and the value that is not carried out (None: the key itself)."""

    path: str
    value: str | None
    what: str


UNSUPPORTED: tuple[Lacking, ...] = ()


def refuse_lacking(root: MapNode, lacking: tuple[Lacking, ...], problems: Problems) -> None:
    """Adds a problem for each lacking feature that the file asks for, and takes lacking keys out of the tree."""
    for feature in lacking:
        *parents, key = feature.path.split(".")
        parent = _find(root, parents)
        node = parent.get(key) if isinstance(parent, MapNode) else None
        if node is None or (isinstance(node, ScalarNode) and node.text in ("null", "")):
            continue
        if feature.value is None and isinstance(parent, MapNode):
            problems.add(node.where, feature.path, f"not in this version: {feature.what}")
            parent.entries[:] = [entry for entry in parent.entries if entry.key.text != key]
            continue
        for scalar in _scalars(node):
            if scalar.text.lower() == feature.value:
                problems.add(
                    scalar.where, feature.path, f"`{scalar.text}` is not in this version: {feature.what}"
                )


def _find(root: MapNode, keys: list[str]) -> TreeNode | None:
    node: TreeNode | None = root
    for key in keys:
        node = node.get(key) if isinstance(node, MapNode) else None
    return node


def _scalars(node: TreeNode) -> list[ScalarNode]:
    if isinstance(node, ScalarNode):
        return [node]
    return [item for item in node.items if isinstance(item, ScalarNode)] if isinstance(node, ListNode) else []
