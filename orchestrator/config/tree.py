"""The experiment file as a tree of positioned nodes, and the list of what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.config.secrets import scrub


@dataclass(frozen=True)
class Where:
    """A place the user can go to: a file and line, or the `--set` that brought the value."""

    source: str
    line: int | None  # 1-based; None for --set

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"


@dataclass(frozen=True)
class ScalarNode:
    text: str
    quoted: bool  # 'x', "x", | or >: text whatever it looks like
    where: Where


@dataclass(frozen=True)
class ListNode:
    items: list[TreeNode]
    where: Where


@dataclass(frozen=True)
class MapNode:
    """Entries in file order; a repeated key stands here as often as it was written."""

    entries: list[Entry]
    where: Where

    def get(self, key: str) -> TreeNode | None:
        return next((entry.value for entry in self.entries if entry.key.text == key), None)


@dataclass
class Entry:
    key: ScalarNode
    value: TreeNode


TreeNode = ScalarNode | ListNode | MapNode


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: where it stands, the key path, what and how to write it."""

    where: Where
    path: str
    text: str

    def __str__(self) -> str:
        if not self.path:
            return f"{self.where}: {self.text}"
        gap = " " if self.where.line is None else ": "  # `--set key.path: ...`, `file:12: key.path: ...`
        return f"{self.where}{gap}{self.path}: {self.text}"


@dataclass
class Problems:
    """Collects every problem of a file, so that one look at the screen is enough to mend it.

    `ran`: the file is of a run that was begun, and so was right by the rules of its day. `broken`: those of today that
    it breaks.
    """

    ran: bool = False
    found: list[Problem] = field(default_factory=list)
    broken: list[Problem] = field(default_factory=list)

    def add(self, where: Where, path: str, text: str) -> None:
        problem = Problem(where, path, text)
        if problem not in self.found:
            self.found.append(problem)

    def rule(self, where: Where, path: str, text: str) -> bool:
        """A value that can be read and is not allowed. Returns whether it may be used all the same."""
        problem = Problem(where, path, text)
        if not self.ran:
            self.add(where, path, text)
        elif problem not in self.broken:
            self.broken.append(problem)
        return self.ran

    def __bool__(self) -> bool:
        return bool(self.found)

    def lines(self) -> tuple[str, ...]:
        """File order; what came by --set last."""
        return _lines(self.found)

    def broken_lines(self) -> tuple[str, ...]:
        return _lines(self.broken)


def _lines(problems: list[Problem]) -> tuple[str, ...]:
    ordered = sorted(problems, key=lambda item: (item.where.line is None, item.where.line or 0))
    return tuple(scrub(str(problem)) for problem in ordered)


class NotATree(Exception):
    """The text is not YAML of the kind used here. Carries the one problem; reading cannot go on after it."""

    def __init__(self, where: Where, text: str) -> None:
        super().__init__(text)
        self.problem = Problem(where, "", text)


def place(node: TreeNode, *keys: str) -> Where:
    """Where the deepest existing node along `keys` stands."""
    for key in keys:
        child = node.get(key) if isinstance(node, MapNode) else None
        if child is None:
            break
        node = child
    return node.where


def owner(root: TreeNode, arm: str, *keys: str) -> tuple[str, ...]:
    """The key path at which an arm's setting was written: its own, the arm's that it extends, or the server's.

    Arms of a preset have one place for all.
    """
    if made_by_preset(root):
        return ("arms", *keys) if _lookup(root, "arms", *keys) is not None else ("server", *keys)
    seen: list[str] = []
    while arm not in seen:
        seen.append(arm)
        if _lookup(root, "arms", arm, *keys) is not None:
            return ("arms", arm, *keys)
        parent = _lookup(root, "arms", arm, "extends")
        arm = parent.text if isinstance(parent, ScalarNode) else arm
    return ("server", *keys)


def made_by_preset(root: TreeNode) -> bool:
    """Whether the arms come from a preset, so that none of them has a place of its own in the file."""
    return _lookup(root, "arms", "preset") is not None


def _lookup(node: TreeNode, *keys: str) -> TreeNode | None:
    found: TreeNode | None = node
    for key in keys:
        found = found.get(key) if isinstance(found, MapNode) else None
    return found


def set_value(root: MapNode, keys: list[str], value: TreeNode) -> str | None:
    """Put `value` at a key path, making mappings on the way. Returns what is wrong, or None."""
    here = root
    for depth, key in enumerate(keys[:-1]):
        child = here.get(key)
        if child is None or (isinstance(child, ScalarNode) and child.text in ("", "null")):
            child = MapNode([], value.where)
            _put(here, key, child)
        if not isinstance(child, MapNode):
            return f"`{'.'.join(keys[: depth + 1])}` is not a mapping, so nothing can be set below it"
        here = child
    _put(here, keys[-1], value)
    return None


def _put(node: MapNode, key: str, value: TreeNode) -> None:
    for entry in node.entries:
        if entry.key.text == key:
            entry.value = value
            return
    node.entries.append(Entry(ScalarNode(key, True, value.where), value))
