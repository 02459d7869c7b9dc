"""The server's command line as its source text declares it, read by syntax tree and never imported.

Stands in for the tree's own parser where that cannot run (no torch on the node). Two layouts are read:
`parser.add_argument(...)` calls in `ServerArgs.add_cli_args` (all releases), and annotated fields
`name: A[type, "help"]` or `A[type, Arg(...)]` from which 0.5.14 and later derive the rest. From 0.5.20 on the
fields are in modules of their own: `flag_files` names the files to read.

What the text does not decide (a list that a function computes, a parser function) is left unknown, and what
is unknown is never a problem.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from orchestrator.errors import DoesNotFit
from orchestrator.server_flags.syntax import (
    FROM_FIELDS,
    SERVER_ARGS,
    Nargs,
    annotated,
    called,
    default_of,
    delegates,
    dict_items,
    function_in,
    is_true,
    keywords,
    literal,
    nargs_of,
    path_of,
    source_of,
    without_optional,
)

_FIELDS = re.compile(r"srt/arg_groups/fields/\w+\.py\Z")
# Lists of choices and argparse actions: without them less is known, and nothing is missed.
_HELPS = re.compile(r"srt/arg_groups/(choices|argparse_actions)\.py\Z")
_CASTS = {"int", "float"}


@dataclass(frozen=True)
class Flag:
    """One option of the server.

    `nargs` is 0 for a bare flag, 1 for one value, "?", "*" or "+" as in argparse, None when not known.
    `choices` is None when there are none or they are not known; `choices_open` marks a list kept in a
    constant, to which plugins may add. `default` is source text.
    """

    names: tuple[str, ...]  # option strings, dashes included
    nargs: Nargs = 1
    type: str = "str"
    choices: tuple[object, ...] | None = None
    choices_open: bool = False
    default: str = ""
    required: bool = False
    deprecated: bool = False
    instead: str = ""  # what the tree says to use instead of a deprecated one
    path: str = ""
    line: int = 0

    @property
    def name(self) -> str:
        """The first option string."""
        return self.names[0]

    @property
    def bare(self) -> bool:
        """Takes no value."""
        return self.nargs == 0


def flag_files(server_args_text: str) -> tuple[str, ...]:
    """Package-relative paths to hand to `known_flags`: server_args.py and what its options are declared in."""
    tree = _parse(SERVER_ARGS, server_args_text)
    return tuple(dict.fromkeys((SERVER_ARGS, *_imported(tree, _HELPS), *_required(tree))))


def known_flags(sources: str | Mapping[str, str]) -> dict[str, Flag]:
    """Option string -> Flag, aliases included, from the text of server_args.py or from path -> text.

    For the flags of a patched tree give the patched texts and the added files. Raises DoesNotFit where the
    reading is not possible: a text does not parse, there is no `add_cli_args`, options are declared in files
    that are not among `sources`, or in a way that is not known here.
    """
    texts = {SERVER_ARGS: sources} if isinstance(sources, str) else dict(sources)
    if SERVER_ARGS not in texts:
        raise DoesNotFit(f"{SERVER_ARGS} is not among the files to read flags from")
    trees = {path: _parse(path, text) for path, text in texts.items()}
    missing = [path for path in _required(trees[SERVER_ARGS]) if path not in trees]
    if missing:
        raise DoesNotFit(f"the server's flags are declared in {', '.join(missing)} too, which were not read")
    flags = {name: flag for flag in _Reader(trees).flags() for name in flag.names}
    if "--model-path" not in flags:
        raise DoesNotFit(f"{SERVER_ARGS} declares its flags in a way that this version cannot read")
    return flags


def _parse(path: str, text: str) -> ast.Module:
    try:
        return ast.parse(text.removeprefix("\ufeff"))
    except (SyntaxError, ValueError) as error:
        raise DoesNotFit(f"{path}: not Python that this interpreter can parse: {error}") from error


def _required(tree: ast.Module) -> tuple[str, ...]:
    """Files without which flags would be missed: those of fields, and those of functions handed the parser."""
    return (*_imported(tree, _FIELDS), *(path for path, _ in delegates(tree, _add_cli_args(tree))))


def _imported(tree: ast.Module, pattern: re.Pattern[str]) -> list[str]:
    modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return sorted(path for module in modules if pattern.match(path := path_of(module)))


def _server_args_class(tree: ast.Module) -> ast.ClassDef:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "ServerArgs":
            return node
    raise DoesNotFit(f"{SERVER_ARGS}: has no class ServerArgs, flags can't be read")


def _add_cli_args(tree: ast.Module) -> ast.FunctionDef:
    found = function_in(_server_args_class(tree).body, "add_cli_args")
    if found is None:
        raise DoesNotFit(f"{SERVER_ARGS}: ServerArgs has no method add_cli_args, flags can't be read")
    return found


class _Reader:
    """Reads flags out of parsed files, looking constants and action classes up in all of them."""

    def __init__(self, trees: Mapping[str, ast.Module]) -> None:
        self.trees = trees
        self.constants: dict[tuple[str, str], ast.expr] = {}  # by (file, name)
        self.shared: dict[str, ast.expr] = {}  # by name: what a file imports from another
        self.bare_actions: dict[str, bool] = {}
        for path, tree in trees.items():
            for node in tree.body:
                self._note(path, node)

    def flags(self) -> Iterator[Flag]:
        tree = self.trees[SERVER_ARGS]
        add = _add_cli_args(tree)
        if any(isinstance(node, ast.Call) and called(node) == FROM_FIELDS for node in ast.walk(add)):
            for path, holder in self._holders(_server_args_class(tree)):
                yield from self._fields(path, holder)
        yield from self._calls(SERVER_ARGS, add)
        for path, name in delegates(tree, add):
            function = function_in(self.trees[path].body, name)
            if function is None:
                raise DoesNotFit(f"{path}: has no function {name}, which declares flags of the server")
            yield from self._calls(path, function)

    def _calls(self, path: str, function: ast.FunctionDef) -> Iterator[Flag]:
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and called(node) == "add_argument":
                yield from self._from_call(path, node)

    def _holders(self, server_args: ast.ClassDef) -> Iterator[tuple[str, ast.ClassDef]]:
        """The classes whose annotated fields are options."""
        yield SERVER_ARGS, server_args
        for path, tree in self.trees.items():
            if _FIELDS.match(path):
                yield from ((path, node) for node in tree.body if isinstance(node, ast.ClassDef))

    def _note(self, path: str, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    self.constants[path, target.id] = self.shared[target.id] = node.value
        elif isinstance(node, ast.ClassDef):
            init = function_in(node.body, "__init__")
            self.bare_actions[node.name] = init is not None and default_of(init, "nargs") == 0

    def _constant(self, path: str, node: ast.expr) -> ast.expr | None:
        """`node`, or what the module-level name stands for that it is."""
        if not isinstance(node, ast.Name):
            return node
        return self.constants.get((path, node.id), self.shared.get(node.id))

    # add_argument calls

    def _from_call(self, path: str, call: ast.Call) -> Iterator[Flag]:
        names = [self._name(path, call, arg) for arg in call.args]
        if not names or not names[0].startswith("-"):
            return  # a positional argument
        words = keywords(call)
        flag = Flag(
            names=tuple(names),
            type=source_of(words.get("type")) or "str",
            default=source_of(words.get("default")),
            required=is_true(words.get("required")),
            path=path,
            line=call.lineno,
        )
        yield self._finish(flag, words)

    def _name(self, path: str, call: ast.Call, arg: ast.expr) -> str:
        value = self._constant(path, arg)
        name = literal(value) if value is not None else None
        if not isinstance(name, str):
            # Going on without it would call a flag unknown that the server knows.
            raise DoesNotFit(f"{path}:{call.lineno}: declares a flag whose name is not written out")
        return name

    def _finish(self, flag: Flag, words: Mapping[str, ast.expr]) -> Flag:
        """`flag` with what action, nargs, choices and deprecation say."""
        action = source_of(words.get("action")).strip("'\"").rpartition(".")[2]
        nargs: Nargs = flag.nargs
        if action in {"store_true", "store_false", "store_const", "count", "help", "version"}:
            nargs = 0
        elif action == "BooleanOptionalAction":
            nargs = 0
            negated = tuple(f"--no-{name[2:]}" for name in flag.names if name.startswith("--"))
            flag = replace(flag, names=(*flag.names, *negated))
        elif action and action not in {"store", "append", "extend"}:
            known = self.bare_actions.get(action)
            nargs = self._unread_action(action) if known is None else (0 if known else 1)
        if "nargs" in words:
            nargs = nargs_of(words["nargs"])
        choices, is_open = self._choices(flag.path, words.get("choices"))
        if choices is not None:
            flag = replace(flag, choices=choices, choices_open=is_open)
        instead = literal(words["new_flag"]) if "new_flag" in words else ""
        return replace(
            flag,
            nargs=nargs,
            deprecated=action.startswith("Deprecated") or "new_flag" in words,
            instead=instead if isinstance(instead, str) else "",
        )

    @staticmethod
    def _unread_action(action: str) -> Nargs:
        """Arity of SGLang's own actions where their module was not read; None for others."""
        if action in {"DeprecatedAction", "DeprecatedStoreTrueAction", "DeprecatedStoreConstAction"}:
            return 0
        return 1 if action == "DeprecatedAliasStoreAction" else None

    # annotated fields

    def _fields(self, path: str, holder: ast.ClassDef) -> Iterator[Flag]:
        for node in holder.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                declared = annotated(node.annotation)
                if declared is not None:
                    yield from self._from_field(path, node, *declared)

    def _from_field(
        self, path: str, node: ast.AnnAssign, kind: ast.expr, words: Mapping[str, ast.expr]
    ) -> Iterator[Flag]:
        if is_true(words.get("no_cli")):
            return
        assert isinstance(node.target, ast.Name)
        cli_name = literal(words["cli_name"]) if "cli_name" in words else None
        aliases = literal(words["aliases"]) if "aliases" in words else None
        first = cli_name if isinstance(cli_name, str) else "--" + node.target.id.replace("_", "-")
        rest = tuple(a for a in aliases if isinstance(a, str)) if isinstance(aliases, list | tuple) else ()
        flag = Flag(
            names=(first, *rest),
            default=source_of(node.value),
            required=is_true(words.get("required")) or ("required" not in words and node.value is None),
            path=path,
            line=node.lineno,
        )
        if "action" not in words:
            flag = self._by_type(flag, without_optional(kind), words)
        extra = words.get("action_kwargs")
        yield self._finish(flag, {**words, **(dict_items(extra) if isinstance(extra, ast.Dict) else {})})

    def _by_type(self, flag: Flag, kind: ast.expr, words: Mapping[str, ast.expr]) -> Flag:
        """Arity, type and choices that the annotation implies, as SGLang derives them."""
        parser = words.get("type_parser")
        outer = source_of(kind.value).rpartition(".")[2] if isinstance(kind, ast.Subscript) else ""
        if isinstance(kind, ast.Subscript) and outer == "Literal":
            values = kind.slice.elts if isinstance(kind.slice, ast.Tuple) else [kind.slice]
            choices = tuple(v.value for v in values if isinstance(v, ast.Constant))
            type_name = type(choices[0]).__name__ if choices else "str"
            return replace(flag, choices=choices, type=source_of(parser) or type_name)
        if isinstance(kind, ast.Subscript) and outer in {"List", "list"} and parser is None:
            return replace(flag, nargs="+", type=source_of(kind.slice))
        if source_of(kind) == "bool":
            return replace(flag, nargs=0)
        plain = source_of(kind) if source_of(kind) in _CASTS else "str"
        return replace(flag, type=source_of(parser) or plain)

    # values

    def _choices(self, path: str, node: ast.expr | None) -> tuple[tuple[object, ...] | None, bool]:
        """(values or None when not known, whether plugins may add to the list)."""
        value = None if node is None else self._constant(path, node)
        values = None if value is None else literal(value)
        if not isinstance(values, list | tuple | set):
            return None, False
        # A list in capitals is what plugins append to; a tuple cannot grow.
        is_open = isinstance(node, ast.Name) and not isinstance(values, tuple)
        return tuple(sorted(values) if isinstance(values, set) else values), is_open
