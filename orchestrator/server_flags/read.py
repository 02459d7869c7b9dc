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
    Nargs,
    annotated,
    called,
    default_of,
    dict_items,
    is_true,
    keywords,
    literal,
    nargs_of,
    source_of,
    without_optional,
)

SERVER_ARGS = "srt/server_args.py"
_FIELDS = "arg_groups/fields/"
# Modules that hold fields, lists of choices, or argparse actions; the other hooks declare nothing.
_DECLARES = re.compile(r"sglang\.srt\.arg_groups\.(fields\.\w+|choices|argparse_actions)\Z")
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
    modules = {
        node.module
        for node in ast.walk(_parse(SERVER_ARGS, server_args_text))
        if isinstance(node, ast.ImportFrom) and node.module is not None and _DECLARES.match(node.module)
    }
    return (SERVER_ARGS, *sorted(f"{m.removeprefix('sglang.').replace('.', '/')}.py" for m in modules))


def known_flags(sources: str | Mapping[str, str]) -> dict[str, Flag]:
    """Option string -> Flag, aliases included, from the text of server_args.py or from path -> text.

    Raises DoesNotFit where the reading is not possible: the text does not parse, has no `add_cli_args`, takes
    fields from files that are not among `sources`, or declares its options in a way that is not known here.
    """
    texts = {SERVER_ARGS: sources} if isinstance(sources, str) else dict(sources)
    if SERVER_ARGS not in texts:
        raise DoesNotFit(f"{SERVER_ARGS} is not among the files to read flags from")
    missing = [path for path in flag_files(texts[SERVER_ARGS]) if _FIELDS in path and path not in texts]
    if missing:
        raise DoesNotFit(f"the server's flags are declared in {', '.join(missing)} too, which were not read")
    reader = _Reader({path: _parse(path, text) for path, text in texts.items()})
    flags = {name: flag for flag in reader.flags() for name in flag.names}
    if "--model-path" not in flags:
        raise DoesNotFit(f"{SERVER_ARGS} declares its flags in a way that this version cannot read")
    return flags


def _parse(path: str, text: str) -> ast.Module:
    try:
        return ast.parse(text.removeprefix("\ufeff"))
    except (SyntaxError, ValueError) as error:
        raise DoesNotFit(f"{path}: not Python that this interpreter can parse: {error}") from error


class _Reader:
    """Reads flags out of parsed files, looking constants and action classes up in all of them."""

    def __init__(self, trees: Mapping[str, ast.Module]) -> None:
        self.trees = trees
        self.constants: dict[str, ast.expr] = {}
        self.bare_actions: dict[str, bool] = {}
        for tree in trees.values():
            for node in tree.body:
                self._note(node)

    def flags(self) -> Iterator[Flag]:
        klass = _class_of(self.trees[SERVER_ARGS], "ServerArgs")
        add = next(
            (n for n in klass.body if isinstance(n, ast.FunctionDef) and n.name == "add_cli_args"), None
        )
        if add is None:
            raise DoesNotFit(f"{SERVER_ARGS}: ServerArgs has no method add_cli_args, flags can't be read")
        calls = [node for node in ast.walk(add) if isinstance(node, ast.Call)]
        if any(called(call) == "add_cli_args_from_dataclass" for call in calls):
            for path, holder in self._holders(klass):
                yield from self._fields(path, holder)
        for call in calls:
            if called(call) == "add_argument":
                yield from self._from_call(call)

    def _holders(self, server_args: ast.ClassDef) -> Iterator[tuple[str, ast.ClassDef]]:
        """The classes whose annotated fields are options."""
        yield SERVER_ARGS, server_args
        for path, tree in self.trees.items():
            if _FIELDS in path:
                yield from ((path, node) for node in tree.body if isinstance(node, ast.ClassDef))

    def _note(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            self.constants[node.targets[0].id] = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            self.constants[node.target.id] = node.value
        elif isinstance(node, ast.ClassDef):
            init = next(
                (n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None
            )
            self.bare_actions[node.name] = init is not None and default_of(init, "nargs") == 0

    # add_argument calls

    def _from_call(self, call: ast.Call) -> Iterator[Flag]:
        names = tuple(
            arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
        )
        if not names or not names[0].startswith("-"):
            return
        words = keywords(call)
        flag = Flag(
            names=names,
            type=source_of(words.get("type")) or "str",
            default=source_of(words.get("default")),
            required=is_true(words.get("required")),
            path=SERVER_ARGS,
            line=call.lineno,
        )
        yield self._finish(flag, words)

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
        choices, is_open = self._choices(words.get("choices"))
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

    def _choices(self, node: ast.expr | None) -> tuple[tuple[object, ...] | None, bool]:
        """(values or None when not known, whether plugins may add to the list)."""
        is_open = False
        if isinstance(node, ast.Name):
            is_open = True
            node = self.constants.get(node.id)
        if node is None:
            return None, False
        values = literal(node)
        if not isinstance(values, list | tuple | set):
            return None, False
        return tuple(sorted(values) if isinstance(values, set) else values), is_open


def _class_of(tree: ast.Module, name: str) -> ast.ClassDef:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
    raise DoesNotFit(f"{SERVER_ARGS}: has no class {name}, flags can't be read")
