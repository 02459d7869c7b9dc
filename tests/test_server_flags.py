"""Flags are read from source text as argparse would build them, and arguments are judged before any load."""

from __future__ import annotations

import argparse
import ast
import json
from pathlib import Path

import pytest

from orchestrator.errors import DoesNotFit
from orchestrator.patchset import build_patch_set, find_patch, needed_files
from orchestrator.server_flags import SERVER_ARGS, History, check_args, flag_files, flag_history, known_flags
from tests.wheels import LATER, TWO_WORKERS, flags_of, history_text, read_sources, tree_facts, wheel_tree

CALLS = """
BACKENDS = ["triton", "fa3"]

class RenamedAction(argparse.Action):
    def __init__(self, option_strings, dest, nargs=0, **kwargs):
        super().__init__(option_strings, dest, nargs=nargs, **kwargs)

class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model-path", "--model", type=str, required=True, help="x")
        parser.add_argument("--tensor-parallel-size", "--tp-size", type=int, default=ServerArgs.tp_size)
        parser.add_argument("--mem-fraction-static", type=float, default=0.9)
        parser.add_argument("--trust-remote-code", action="store_true")
        parser.add_argument("--cuda-graph-bs", type=int, nargs="+")
        parser.add_argument("--lora-paths", type=str, nargs="*", action=LoRAPathAction)
        parser.add_argument("--attention-backend", choices=BACKENDS)
        parser.add_argument("--dtype", choices=["auto", "half"], default="auto")
        parser.add_argument("--tool-call-parser", choices=["auto"] + list(Parsers.names()))
        parser.add_argument("--json-model-override-args", type=json.loads)
        parser.add_argument("--overlap", action=argparse.BooleanOptionalAction, default=True)
        parser.add_argument("--old", action=RenamedAction, new_flag="--new", help="gone soon")
        parser.add_argument("--crash-dump", nargs="?", const="here")
        parser.add_argument("--graph-max-decode", type=int)
        parser.add_argument("--graph-max-prefill", type=int)
"""

FIELDS = """
class ServerArgs:
    model_path: A[str, Arg(help="x", aliases=["--model"])]
    tp_size: A[int, Arg(help="x", cli_name="--tensor-parallel-size", aliases=["--tp-size"])] = 1
    trust_remote_code: A[bool, "Whether " "to."] = False
    context_length: A[Optional[int], "n"] = None
    ratio: A[float | None, f"{x}"] = None
    graph_bs: A[Optional[List[int]], "sizes"] = None
    lora_paths: A[Optional[list[str]], Arg(help="x", action=LoRAPathAction, action_kwargs={"nargs": "*"})] = None
    mode: A[Literal["null", "decode"], Arg(help="x", resolvable=True)] = "null"
    labels: A[Optional[List[str]], Arg(help="x", type_parser=json_list_type)] = None
    hidden: A[int, Arg(no_cli=True)] = 3
    derived: A[int, Derived("x")] = 3
    plain: int = 3

    @staticmethod
    def add_cli_args(parser):
        add_cli_args_from_dataclass(parser, ServerArgs)
        parser.add_argument("--config", type=str)
"""


def test_add_argument_calls_give_names_arity_type_choices_and_default():
    flags = known_flags(CALLS)
    assert flags["--model"] is flags["--model-path"]
    assert (flags["--model-path"].nargs, flags["--model-path"].required) == (1, True)
    assert (flags["--tp-size"].type, flags["--tp-size"].default) == ("int", "ServerArgs.tp_size")
    assert flags["--trust-remote-code"].bare
    assert flags["--cuda-graph-bs"].nargs == "+"
    assert flags["--lora-paths"].nargs == "*"
    assert flags["--crash-dump"].nargs == "?"
    assert (flags["--dtype"].choices, flags["--dtype"].choices_open) == (("auto", "half"), False)
    assert (flags["--attention-backend"].choices, flags["--attention-backend"].choices_open) == (
        ("triton", "fa3"),
        True,
    )


def test_what_the_text_does_not_decide_is_unknown_and_never_a_problem():
    flags = known_flags(CALLS)
    assert flags["--tool-call-parser"].choices is None
    assert check_args({"model-path": "m", "tool-call-parser": "anything"}, flags) == ()


def test_a_flag_that_negates_another_is_known_too():
    flags = known_flags(CALLS)
    assert flags["--no-overlap"] is flags["--overlap"]
    assert flags["--overlap"].bare


def test_annotated_fields_give_the_flags_that_the_release_derives_from_them():
    flags = known_flags(FIELDS)
    assert {name: (flag.nargs, flag.type) for name, flag in flags.items()} == {
        "--model-path": (1, "str"),
        "--model": (1, "str"),
        "--tensor-parallel-size": (1, "int"),
        "--tp-size": (1, "int"),
        "--trust-remote-code": (0, "str"),
        "--context-length": (1, "int"),
        "--ratio": (1, "float"),
        "--graph-bs": ("+", "int"),
        "--lora-paths": ("*", "str"),
        "--mode": (1, "str"),
        "--labels": (1, "json_list_type"),
        "--config": (1, "str"),
    }
    assert flags["--mode"].choices == ("null", "decode")
    assert flags["--model-path"].required
    assert not flags["--tp-size"].required


def test_fields_in_other_modules_are_asked_for_by_name():
    text = "from sglang.srt.arg_groups.fields.spec import (\n    Spec,\n)\n" + CALLS
    assert flag_files(text) == (SERVER_ARGS, "srt/arg_groups/fields/spec.py")
    with pytest.raises(DoesNotFit, match=r"srt/arg_groups/fields/spec\.py too, which were not read"):
        known_flags(text)


def test_a_function_that_is_handed_the_parser_is_followed_to_its_file():
    """The way in which a patch adds its options."""
    text = CALLS + "        from sglang.srt.extra.arguments import add_more\n        add_more(parser)\n"
    more = 'FLAG = "--more"\nWAYS = ("a", "b")\ndef add_more(parser):\n    parser.add_argument(FLAG, choices=WAYS)\n'
    assert flag_files(text) == (SERVER_ARGS, "srt/extra/arguments.py")
    with pytest.raises(DoesNotFit, match=r"srt/extra/arguments\.py too, which were not read"):
        known_flags(text)
    flag = known_flags({SERVER_ARGS: text, "srt/extra/arguments.py": more})["--more"]
    assert (flag.choices, flag.choices_open, flag.path) == (("a", "b"), False, "srt/extra/arguments.py")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("class ServerArgs:\n    def add_cli_args(parser)\n", "not Python"),
        ("class Other:\n    pass\n", "no class ServerArgs"),
        ("class ServerArgs:\n    pass\n", "no method add_cli_args"),
        (
            "class ServerArgs:\n    def add_cli_args(parser):\n        add_all(parser)\n",
            "no function add_all",
        ),
        ("class ServerArgs:\n    def add_cli_args(parser):\n        parser.add(1)\n", "cannot read"),
        (
            CALLS + '        for x in y:\n            parser.add_argument(f"--{x}")\n',
            "whose name is not written out",
        ),
    ],
)
def test_where_flags_cannot_be_read_the_reader_says_so_and_guesses_nothing(text, reason):
    with pytest.raises(DoesNotFit, match=reason):
        known_flags(text)


def texts(args, **kwargs) -> list[str]:
    return [str(problem) for problem in check_args({"model-path": "m", **args}, known_flags(CALLS), **kwargs)]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"trust-remote-code": True, "tp-size": 8, "cuda-graph-bs": (1, 2), "dtype": "half"}, []),
        ({"tp-size": "8", "mem-fraction-static": 1, "lora-paths": True, "crash-dump": True}, []),
        ({"trust-remote-cod": True}, []),  # argparse takes a name that is short for one flag alone
        (
            {"trust-remote-codes": True},
            ["unknown flag --trust-remote-codes, did you mean --trust-remote-code?"],
        ),
        ({"tp_size": 8}, ["unknown flag --tp_size, did you mean --tp-size?"]),
        ({"zzz": 1}, ["unknown flag --zzz"]),
        (
            {"graph-max": 8},
            ["--graph-max is short for several flags: --graph-max-decode, --graph-max-prefill"],
        ),
        ({"trust-remote-code": "yes"}, ["--trust-remote-code takes no value; write `true` to set it"]),
        (
            {"trust-remote-code": False},
            ["--trust-remote-code: false is not a value; leave it out, or `null` to remove it"],
        ),
        ({"overlap": False}, ["--overlap: false is not a value; write `no-overlap: true`"]),
        ({"tp-size": True}, ["--tp-size needs a value, got none"]),
        ({"tp-size": (1, 2)}, ["--tp-size needs a value, got 2"]),
        ({"cuda-graph-bs": True}, ["--cuda-graph-bs needs at least one value"]),
        ({"crash-dump": ("a", "b")}, ["--crash-dump takes at most one value, got 2"]),
        ({"tp-size": "eight"}, ["--tp-size: 'eight' is not an integer"]),
        ({"tp-size": 8.0}, ["--tp-size: '8.0' is not an integer"]),
        ({"cuda-graph-bs": (1, "x")}, ["--cuda-graph-bs: 'x' is not an integer"]),
        ({"json-model-override-args": "{"}, ["--json-model-override-args: '{' is not JSON"]),
        ({"dtype": "hlaf"}, ["--dtype: 'hlaf' is not among the choices; did you mean 'half'?"]),
        (
            {"attention-backend": "fa9"},
            [
                "--attention-backend: 'fa9' is not among the choices unless a plugin adds it; did you mean 'fa3'?"
            ],
        ),
        ({"old": True}, ["--old is deprecated; use --new"]),
        (
            {"tp-size": 8, "tensor-parallel-size": 8},
            ["--tensor-parallel-size and --tp-size are one flag, given twice"],
        ),
    ],
)
def test_arguments_are_judged_as_the_server_would(args, expected):
    assert texts(args) == expected


def test_only_what_the_server_would_surely_refuse_is_an_error():
    flags = known_flags(CALLS)
    args = {"model-path": "m", "attention-backend": "mine", "old": True, "dtype": "x"}
    problems = {p.flag: p.severity for p in check_args(args, flags)}
    assert problems == {"--attention-backend": "warning", "--old": "warning", "--dtype": "error"}


def test_a_missing_required_flag_is_named():
    assert [str(p) for p in check_args({}, known_flags(CALLS))] == ["--model-path is required"]


def test_a_flag_that_a_carried_patch_adds_is_traced_to_the_patch():
    (text,) = texts(
        {"speculative-disable-batch-threshold": 5},
        added_by={"speculative-disable-batch-threshold": "dynamic_disable"},
    )
    assert text.endswith("the patch 'dynamic_disable' adds it, which this arm does not apply")


def test_a_removed_or_newer_flag_is_placed_in_the_history_of_releases():
    history = History(
        ("1.0", "2.0", "3.0"), {"--gone": ("1.0", "2.0"), "--fresh": ("3.0", "3.0")}, {"--gone": "--x"}
    )
    assert texts({"gone": 1}, history=history) == [
        "unknown flag --gone (last seen in 2.0, gone in later releases; use --x)"
    ]
    assert texts({"fresh": 1}, history=history) == ["unknown flag --fresh (not seen before 3.0)"]


# Real releases


@pytest.mark.wheels
@pytest.mark.parametrize("version", [*TWO_WORKERS, *LATER])
def test_the_flags_of_every_release_are_read(version):
    flags = flags_of(version)
    assert len(flags) > 330
    assert {"--model-path", "--tp-size", "--port", "--speculative-eagle-topk"} <= set(flags)
    assert flags["--speculative-eagle-topk"].type == "int"
    assert flags["--trust-remote-code"].bare
    assert "triton" in flags["--attention-backend"].choices


@pytest.mark.wheels
@pytest.mark.parametrize("version", [v for v in (*TWO_WORKERS, *LATER) if v < "0.5.14"])
def test_reading_agrees_with_the_parser_that_the_release_itself_builds(version):
    """The release's own `add_cli_args` is run on a real ArgumentParser, everything it imports left out."""
    package = wheel_tree(version)
    texts = read_sources(package, flag_files((package / SERVER_ARGS).read_text()))
    actions = _real_parser(texts)._option_string_actions
    flags = known_flags(texts)
    assert set(flags) == set(actions) - {"-h", "--help"}
    for name, flag in flags.items():
        action = actions[name]
        assert flag.nargs == (1 if action.nargs is None else action.nargs), name
        assert set(flag.names) == set(action.option_strings), name
        assert flag.required == action.required, name
        if flag.choices is not None:
            assert set(flag.choices) == set(action.choices), name
        if flag.type in {"int", "float"}:
            assert action.type.__name__ == flag.type, name


class _Anything:
    """Stands for whatever the function reads from modules that are not there."""

    def __getattr__(self, name: str) -> _Anything:
        return self

    def __call__(self, *args: object, **kwargs: object) -> _Anything:
        return self

    def __iter__(self):
        return iter(())

    def __radd__(self, other: list) -> list:
        return other

    __add__ = __radd__


class _Names(dict):
    def __missing__(self, name: str) -> object:
        builtins = __builtins__ if isinstance(__builtins__, dict) else vars(__builtins__)
        return builtins[name] if name in builtins else _Anything()


def _real_parser(texts: dict[str, str]) -> argparse.ArgumentParser:
    trees = {path: ast.parse(text) for path, text in texts.items()}
    names = _Names(argparse=argparse, json=json)
    for node in (node for tree in trees.values() for node in tree.body):
        is_action = isinstance(node, ast.ClassDef) and any("Action" in ast.unparse(b) for b in node.bases)
        is_list = isinstance(node, ast.Assign) and isinstance(node.value, ast.List | ast.Set)
        if is_action or is_list:
            exec(compile(ast.Module([node], []), SERVER_ARGS, "exec"), names)
    (klass,) = (n for n in trees[SERVER_ARGS].body if isinstance(n, ast.ClassDef) and n.name == "ServerArgs")
    (add,) = (n for n in klass.body if isinstance(n, ast.FunctionDef) and n.name == "add_cli_args")
    add.decorator_list = []
    add.args.args[0].annotation = None
    exec(compile(ast.Module([add], []), SERVER_ARGS, "exec"), names)
    parser = argparse.ArgumentParser()
    names["add_cli_args"](parser)
    return parser


@pytest.mark.wheels
@pytest.mark.parametrize("version", [TWO_WORKERS[0], TWO_WORKERS[-1]])
def test_the_flags_that_a_patch_lists_are_those_of_the_patched_tree(version):
    patch = find_patch("dynamic_disable")
    sources = read_sources(wheel_tree(version), needed_files([patch]))
    patched = build_patch_set([patch], sources, tree_facts(version, sources), allow_unlisted=False)
    texts = {edit.path: edit.after for edit in patched.edits}
    added = set(known_flags(texts)) - set(flags_of(version))
    assert added == {f"--{flag}" for flag in patch.flags}
    args = {"model-path": "m", "speculative-disable-batch-threshold": 5}
    assert check_args(args, known_flags(texts)) == ()
    assert check_args(args, flags_of(version)) != ()


@pytest.mark.wheels
def test_the_carried_history_is_what_the_releases_say():
    carried = Path(__file__).parents[1] / "orchestrator/server_flags/history.json"
    assert carried.read_text() == history_text()


@pytest.mark.wheels
def test_the_graph_size_flag_that_a_late_release_split_in_two_is_explained():
    (problem,) = check_args({"model-path": "m", "cuda-graph-max-bs": 128}, flags_of("0.5.23"))
    assert problem.severity == "error"
    assert "--cuda-graph-max-bs-decode" in problem.message
    assert "last seen in 0.5.14" in problem.message


def test_the_history_is_loaded_from_the_package():
    assert flag_history().spans["--enable-nan-detection"][1] == "0.5.12.post1"
