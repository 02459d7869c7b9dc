"""Places in a Python source found by syntax tree, and edits that only add whole statements there.

For patchers: pure functions text -> text. A `Source` finds one class, method, field or statement, by its
name or by the call it makes. An `Edits` collects insertions before or after such statements and returns the
new text after proving that it compiles and that nothing but the insertions changed. Every miss, double hit
or odd layout is an `AnchorError` naming the file, the anchor and the reason.

Line numbers and patterns over code text are never an anchor. A statement is an anchor as a whole: an
insertion "after" a call that spans ten lines goes behind its last line, and one "before" a decorated function
goes above its decorators. Comments directly above a statement belong to it. Line ends (LF, CRLF), tabs, a
byte order mark and characters outside ASCII (columns of the tree count UTF-8 bytes) come through unchanged.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeGuard, TypeVar

from orchestrator.errors import AlreadyPatched, AnchorError

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
Scope = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
CallPredicate = Callable[[ast.Call], bool]

_BOM = "\ufeff"
# What the tokenizer takes for the end of a line; str.splitlines() also splits at form feeds and U+2028.
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z")
_Node = TypeVar("_Node")


def call_to(name: str, first: str | None = None) -> CallPredicate:
    """A predicate for calls of `name(...)` or `x.name(...)`, whose first argument is the string `first`."""

    def matches(call: ast.Call) -> bool:
        func = call.func
        called = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", None)
        if called != name:
            return False
        if first is None:
            return True
        head = call.args[0] if call.args else None
        return isinstance(head, ast.Constant) and head.value == first

    return matches


class Source:
    """One Python file: its text, its tree, and lookups that return exactly one node or raise AnchorError."""

    def __init__(self, text: str, path: str = "<source>") -> None:
        self.path = path
        self.text = text
        self.bom = _BOM if text.startswith(_BOM) else ""
        body = text[len(self.bom) :]
        self.lines: list[str] = _LINE.findall(body)
        try:
            self.tree = ast.parse(body)
        except (SyntaxError, ValueError) as error:
            raise AnchorError(f"{path}: not Python that this interpreter can parse: {error}") from error
        self._comments: dict[int, tuple[int, str]] | None = None

    # lookups

    def klass(self, name: str) -> ast.ClassDef:
        """The module-level class `name`."""
        return self._one((n for n in self.tree.body if _is_class(n, name)), f"class {name}")

    def function(self, name: str) -> FunctionNode:
        """The module-level function `name`."""
        found = (n for n in self.tree.body if _is_function(n, name))
        return self._one(found, f"function {name}")

    def method(self, klass: ast.ClassDef, name: str) -> FunctionNode:
        """The method `name` defined in the body of `klass` itself."""
        found = (n for n in klass.body if _is_function(n, name))
        return self._one(found, f"method {klass.name}.{name}")

    def field(self, klass: ast.ClassDef, name: str) -> ast.AnnAssign | ast.Assign:
        """The assignment to `name` (annotated or not) in the body of `klass`."""
        found = (n for n in klass.body if isinstance(n, ast.AnnAssign | ast.Assign) and _binds(n, name))
        return self._one(found, f"field {klass.name}.{name}")

    def statement_with_call(self, scope: Scope, predicate: CallPredicate, what: str = "call") -> ast.stmt:
        """The one statement in `scope` (nested blocks too, inner functions not) with such a call."""
        found = (
            s for s in statements(scope) if any(predicate(c) for c in own_nodes(s) if isinstance(c, ast.Call))
        )
        return self._one(found, f"statement with {what} in {scope_name(scope)}")

    def statement(self, scope: Scope, predicate: Callable[[ast.stmt], bool], what: str) -> ast.stmt:
        """The one statement in `scope` (nested blocks too, inner functions not) that `predicate` accepts."""
        return self._one((s for s in statements(scope) if predicate(s)), f"{what} in {scope_name(scope)}")

    def first_statement(self, function: FunctionNode) -> ast.stmt:
        """The first statement of `function` after its docstring."""
        body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
        if not body:
            raise AnchorError(f"{self.path}: function {function.name} has a docstring and no statement")
        return body[0]

    def refuse_marked(self, marker: str) -> None:
        """Raise AlreadyPatched if a comment of the file holds `marker`, which the caller's insertions carry."""
        for line, (_, comment) in sorted(self.comments.items()):
            if marker in comment:
                raise AlreadyPatched(f"{self.path}: already patched (line {line} carries {marker!r})")

    def _one(self, found: Iterable[_Node], what: str) -> _Node:
        hits = list(found)
        if len(hits) != 1:
            where = ", ".join(str(getattr(n, "lineno", "?")) for n in hits)
            reason = "not found" if not hits else f"found {len(hits)} times (lines {where}), expected once"
            raise AnchorError(f"{self.path}: {what}: {reason}")
        return hits[0]

    # layout

    @property
    def comments(self) -> dict[int, tuple[int, str]]:
        """Line number -> (column, text) of each comment."""
        if self._comments is None:
            tokens = tokenize.generate_tokens(io.StringIO("".join(self.lines), newline="").readline)
            self._comments = {
                t.start[0]: (t.start[1], t.string) for t in tokens if t.type == tokenize.COMMENT
            }
        return self._comments

    def indent(self, stmt: ast.stmt) -> str:
        """The white space in front of `stmt`; AnchorError when something else stands there."""
        lead = self._characters(first_line(self, stmt) - 1)[: _column(self, stmt)]
        if lead.strip():
            raise AnchorError(f"{self.path}:{stmt.lineno}: statement shares its line with what is before it")
        return lead

    def line_after(self, stmt: ast.stmt) -> int:
        """Index in `lines` right behind `stmt`; AnchorError when its last line holds another statement."""
        assert stmt.end_lineno is not None
        assert stmt.end_col_offset is not None
        raw = self.lines[stmt.end_lineno - 1].encode()
        rest = raw[stmt.end_col_offset :].decode().strip()
        if rest and not rest.startswith("#"):
            raise AnchorError(
                f"{self.path}:{stmt.end_lineno}: statement shares its line with what follows it"
            )
        return stmt.end_lineno

    def line_before(self, stmt: ast.stmt) -> int:
        """Index in `lines` of the first line of `stmt`, its decorators and the comments right above it."""
        at = first_line(self, stmt) - 1
        depth = len(self.indent(stmt))
        while at > 0 and self._is_comment_line(at, depth):
            at -= 1
        return at

    def _is_comment_line(self, line: int, column: int) -> bool:
        known = self.comments.get(line)
        return known is not None and known[0] == column and not self._characters(line - 1)[:column].strip()

    def _characters(self, index: int) -> str:
        return self.lines[index]


class Edits:
    """Insertions into one `Source`; `result()` is the new text, checked."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._insertions: list[tuple[int, str, tuple[str, ...]]] = []

    def insert_after(self, stmt: ast.stmt, lines: Sequence[str]) -> None:
        """Insert whole statements behind `stmt`, at its indentation. `lines` are indented relative to it."""
        self._insertions.append((self.source.line_after(stmt), self.source.indent(stmt), tuple(lines)))

    def insert_before(self, stmt: ast.stmt, lines: Sequence[str]) -> None:
        """Insert whole statements before `stmt`, above its decorators and the comments that belong to it."""
        self._insertions.append((self.source.line_before(stmt), self.source.indent(stmt), tuple(lines)))

    def result(self) -> str:
        """The edited text; AnchorError if it does not compile or if anything but additions changed."""
        out: list[str] = []
        added: set[int] = set()
        # Stable by place: several insertions at one place keep the order in which they were asked for.
        pending = sorted(self._insertions, key=lambda item: item[0])
        for index in range(len(self.source.lines) + 1):
            while pending and pending[0][0] == index:
                _, indent, lines = pending.pop(0)
                self._append(out, added, indent, lines)
            if index < len(self.source.lines):
                out.append(self.source.lines[index])
        body = "".join(out)
        self._check(body, added)
        return self.source.bom + body

    def _append(self, out: list[str], added: set[int], indent: str, lines: Sequence[str]) -> None:
        newline = _newline_of(self.source.lines)
        if out and not out[-1].endswith(("\r", "\n")):
            out[-1] += newline
        for line in lines:
            out.append((_reindent(line, indent) + newline) if line else newline)
            added.add(len(out))

    def _check(self, body: str, added: set[int]) -> None:
        path = self.source.path
        try:
            compile(body, path, "exec", dont_inherit=True)
            tree = ast.parse(body)
        except (SyntaxError, ValueError) as error:
            raise AnchorError(f"{path}: the edited text does not compile: {error}") from error
        _WithoutLines(added).visit(tree)
        if ast.dump(tree) != ast.dump(self.source.tree):
            raise AnchorError(f"{path}: the edit changes statements other than the ones it adds")


class _WithoutLines(ast.NodeTransformer):
    """Drops the statements that begin on one of the given lines."""

    def __init__(self, lines: set[int]) -> None:
        self.lines = lines

    def visit(self, node: ast.AST) -> ast.AST | None:
        if isinstance(node, ast.stmt) and min(_start_lines(node)) in self.lines:
            return None
        self.generic_visit(node)
        return node


def statements(scope: Scope) -> Iterator[ast.stmt]:
    """The statements of `scope` in source order, nested blocks included, bodies of inner functions not."""
    for stmt in scope.body:
        yield from _with_nested(stmt)


def own_nodes(stmt: ast.stmt) -> Iterator[ast.AST]:
    """The nodes of `stmt` that belong to no statement inside it: for an `if`, those of its condition."""
    todo: list[ast.AST] = [child for child in ast.iter_child_nodes(stmt) if not isinstance(child, ast.stmt)]
    while todo:
        node = todo.pop()
        yield node
        todo.extend(child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt))


def scope_name(scope: Scope) -> str:
    """How a scope is called in messages."""
    return "the module" if isinstance(scope, ast.Module) else scope.name


def first_line(source: Source, stmt: ast.stmt) -> int:
    """Number of the line on which `stmt` begins, its decorators included."""
    line = min(_start_lines(stmt))
    if getattr(stmt, "decorator_list", None):
        # The node of `@(\n  name)` begins behind the sign; only brackets and comments can be between.
        while not source.lines[line - 1].lstrip().startswith("@"):
            line -= 1
    return line


def _column(source: Source, stmt: ast.stmt) -> int:
    """Column of `stmt` in characters (the tree counts UTF-8 bytes), on its first line."""
    if getattr(stmt, "decorator_list", None):
        line = source.lines[first_line(source, stmt) - 1]
        return len(line) - len(line.lstrip())
    return len(source.lines[stmt.lineno - 1].encode()[: stmt.col_offset].decode())


def _start_lines(stmt: ast.stmt) -> Iterator[int]:
    yield stmt.lineno
    for decorator in getattr(stmt, "decorator_list", ()):
        yield decorator.lineno


def _with_nested(stmt: ast.stmt) -> Iterator[ast.stmt]:
    yield stmt
    if isinstance(stmt, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    for child in ast.iter_child_nodes(stmt):
        if isinstance(child, ast.stmt):
            yield from _with_nested(child)
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            for inner in child.body:
                yield from _with_nested(inner)


def _is_class(node: ast.AST, name: str) -> TypeGuard[ast.ClassDef]:
    return isinstance(node, ast.ClassDef) and node.name == name


def _is_function(node: ast.AST, name: str) -> TypeGuard[FunctionNode]:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name


def _binds(node: ast.AnnAssign | ast.Assign, name: str) -> bool:
    targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
    return any(isinstance(t, ast.Name) and t.id == name for t in targets)


def _newline_of(lines: Sequence[str]) -> str:
    crlf = sum(line.endswith("\r\n") for line in lines)
    return "\r\n" if crlf * 2 > len(lines) else "\n"


def _reindent(line: str, indent: str) -> str:
    """`line` (relative, four spaces a level) at `indent`, with tabs where the file indents by tabs."""
    if "\t" in indent:
        body = line.lstrip(" ")
        levels, rest = divmod(len(line) - len(body), 4)
        line = "\t" * levels + " " * rest + body
    return indent + line
