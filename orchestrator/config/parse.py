"""YAML text -> a tree that remembers where each value stood and how it was written, and back to text.

The tree is built from parser events rather than by PyYAML's constructor, because the constructor throws away
what strictness needs: repeated keys, positions, quoting, and the text of a number before it was converted.
"""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from orchestrator.config.tree import Entry, ListNode, MapNode, NotATree, ScalarNode, TreeNode, Where

try:
    from yaml import CSafeLoader as _Parser
except ImportError:  # PyYAML without libyaml: slower, same events
    from yaml import SafeLoader as _Parser  # type: ignore[assignment]

_NO_ANCHORS = "anchors are not used here; arms share values by `extends`"

MAX_DEPTH = 20  # deeper than any experiment; keeps recursive readers far from Python's limit


def parse_tree(text: str, source: str, *, with_lines: bool = True) -> TreeNode | None:
    """The document's root, None when there is no document. Raises NotATree."""
    builder = _Builder(source, with_lines)
    try:
        for event in _events(text):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise NotATree(builder.at(mark.line if mark else 0), _explain(error, text.split("\n"))) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1 if isinstance(error.position, int) else 1
        raise NotATree(
            Where(source, line if with_lines else None), "a character that YAML does not allow"
        ) from None
    except UnicodeError:
        raise NotATree(Where(source, 1 if with_lines else None), "text that is not valid Unicode") from None
    return builder.root


def _events(text: str) -> Iterator[yaml.Event]:
    return yaml.parse(text, Loader=_Parser)


def _explain(error: yaml.MarkedYAMLError, lines: list[str]) -> str:
    reason = error.problem or error.context or "cannot be read"
    mark, start = error.problem_mark, error.context_mark
    line = lines[mark.line] if mark is not None and mark.line < len(lines) else ""
    if mark is not None and line[mark.column : mark.column + 1] == "\t":
        return "not YAML: a tab where indentation or a value starts; indent with spaces"
    if "mapping values are not allowed" in reason:
        return "not YAML: a second `: ` in one value; quote the value"
    if mark is None or start is None or start.line == mark.line or len(lines) == 1:
        return f"not YAML: {reason}"
    return f"not YAML: {reason}, for what starts in line {start.line + 1}"


class _Builder:
    """Puts parser events together. Iterative, so that deep nesting ends in a message and not in a RecursionError."""

    def __init__(self, source: str, with_lines: bool) -> None:
        self.root: TreeNode | None = None
        self._source = source
        self._with_lines = with_lines
        self._open: list[ListNode | MapNode] = []
        self._keys: list[ScalarNode | None] = []  # per open node: the key that waits for its value
        self._documents = 0

    def at(self, line: int) -> Where:
        return Where(self._source, line + 1 if self._with_lines else None)

    def take(self, event: yaml.Event) -> None:
        where = self.at(event.start_mark.line if event.start_mark else 0)
        if isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise NotATree(where, "a second document (`---`); one file holds one experiment")
        elif isinstance(event, yaml.AliasEvent):
            raise NotATree(where, f"an alias (`*name`): {_NO_ANCHORS}")
        elif isinstance(event, yaml.ScalarEvent):
            self._check_decoration(event, where)
            self._place(ScalarNode(event.value, bool(event.style), where))
        elif isinstance(event, yaml.SequenceStartEvent | yaml.MappingStartEvent):
            self._check_decoration(event, where)
            self._start(event, where)
        elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
            self._open.pop()
            self._keys.pop()

    def _check_decoration(self, event: yaml.NodeEvent, where: Where) -> None:
        if event.anchor is not None:
            raise NotATree(where, f"an anchor (`&name`): {_NO_ANCHORS}")
        if getattr(event, "tag", None) is not None:
            raise NotATree(where, "a tag (`!name`): tags are not used here; quote what is meant as text")

    def _start(self, event: yaml.Event, where: Where) -> None:
        if len(self._open) >= MAX_DEPTH:
            raise NotATree(where, f"nested more than {MAX_DEPTH} levels deep")
        node = MapNode([], where) if isinstance(event, yaml.MappingStartEvent) else ListNode([], where)
        self._place(node)
        self._open.append(node)
        self._keys.append(None)

    def _place(self, node: TreeNode) -> None:
        if not self._open:
            self.root = node
            return
        parent = self._open[-1]
        if isinstance(parent, ListNode):
            parent.items.append(node)
            return
        key = self._keys[-1]
        if key is not None:
            parent.entries.append(Entry(key, node))
            self._keys[-1] = None
            return
        self._keys[-1] = self._as_key(node)

    def _as_key(self, node: TreeNode) -> ScalarNode:
        if not isinstance(node, ScalarNode):
            raise NotATree(node.where, "a list or mapping used as a key; keys are plain names")
        if node.text == "<<" and not node.quoted:
            raise NotATree(node.where, "merge key `<<`: not used here; arms share values by `extends`")
        return node


def dump_tree(root: TreeNode) -> str:
    """The tree as YAML text that reads back as the same tree (comments are not kept)."""
    return str(yaml.serialize(_to_yaml(root), width=100))


def _to_yaml(node: TreeNode) -> yaml.Node:
    if isinstance(node, ScalarNode):
        if node.quoted and _plain_is_safe(node.text):
            return yaml.ScalarNode("tag:yaml.org,2002:str", node.text)
        style = '"' if node.quoted else None
        tag = "tag:yaml.org,2002:str" if node.quoted else f"tag:yaml.org,2002:{implicit_kind(node.text)}"
        return yaml.ScalarNode(tag, node.text, style=style)
    if isinstance(node, ListNode):
        return yaml.SequenceNode(
            "tag:yaml.org,2002:seq", [_to_yaml(item) for item in node.items], flow_style=True
        )
    pairs = [(_to_yaml(entry.key), _to_yaml(entry.value)) for entry in node.entries]
    return yaml.MappingNode("tag:yaml.org,2002:map", pairs, flow_style=False)


def _plain_is_safe(text: str) -> bool:
    """Keys put in by --set count as quoted; plain names need no quotes in the written file."""
    return text.replace("-", "").replace("_", "").isalpha() and implicit_kind(text) == "str"


_RESOLVER = yaml.resolver.Resolver()


def implicit_kind(text: str) -> str:
    """What YAML 1.1 takes a plain scalar for: str, int, float, bool, null, timestamp, merge or value."""
    tag = _RESOLVER.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    return str(tag).rsplit(":", 1)[-1]
