"""The arms' arguments against the overlay's own `ServerArgs` parser, in the interpreter that will serve."""

from __future__ import annotations

from typing import Any

import pytest

from tests.agent.client import Client, Refused
from tests.agent.conftest import Node
from tests.agent.test_smoke_check import smoke

PARSER = """
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model-path", required=True)
        parser.add_argument("--tp-size", type=int)
        parser.add_argument("--mode", choices=["fast", "exact"])
        parser.add_argument("--speculative-eagle-topk", type=int)
"""


@pytest.fixture
def client(node: Node) -> Client:
    return node.client()


def parsed(node: Node, client: Client, text: str, words: list[str], **args: Any) -> Any:
    files = {"srt/__init__.py": b"", "srt/server_args.py": text.encode()}
    return smoke(node, client, files, [], argvs={"arm-a": words}, **args)["arguments"][0]


def test_words_that_the_tree_takes_are_told_to_be_parsed(node: Node, client: Client) -> None:
    told = parsed(node, client, PARSER, ["--model-path", "m", "--tp-size", "8"])
    assert (told["arm"], told["ok"], told["how"], told["error"]) == ("arm-a", True, "parser", None)


@pytest.mark.parametrize(
    ("words", "says", "near"),
    [
        (
            ["--model-path", "m", "--speculative-eagle-top-k", "4"],
            "unrecognized arguments: --speculative-eagle-top-k 4",
            {"--speculative-eagle-top-k": "--speculative-eagle-topk"},
        ),
        (["--model-path", "m", "--zzz=1"], "unrecognized arguments: --zzz=1", {"--zzz": ""}),
        (["--model-path", "m", "--tp-size", "two"], "argument --tp-size: invalid int value: 'two'", {}),
        (["--model-path", "m", "--mode", "quick"], "invalid choice: 'quick'", {}),
        (["--tp-size", "1"], "the following arguments are required: --model-path", {}),
        (["--help"], "the parser ends with status 0", {}),
    ],
)
def test_a_refusal_is_the_parsers_own_sentence_with_the_nearest_flag(
    node: Node, client: Client, words: list[str], says: str, near: dict[str, str]
) -> None:
    told = parsed(node, client, PARSER, words)
    assert told["ok"] is False
    assert says in told["error"]
    assert told["near"] == near


def test_without_a_heavy_dependency_parsing_is_not_possible_and_names_it(node: Node, client: Client) -> None:
    (node.package / "srt").mkdir()
    (node.package / "srt" / "__init__.py").write_text("")
    (node.package / "srt" / "server_args.py").write_text("import torch_of_nobody\n" + PARSER)
    reply = smoke(node, client, {}, [], argvs={"a": ["--bogus"], "b": []})["arguments"]
    assert [(told["arm"], told["how"], told["missing"]) for told in reply] == [
        ("a", "not possible", "torch_of_nobody"),
        ("b", "not possible", "torch_of_nobody"),
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def broken(:\n    pass\n", "SyntaxError: invalid syntax"),
        ("class ServerArgs:\n    pass\n", "AttributeError"),
        (PARSER + "        raise RuntimeError('no such device')\n", "RuntimeError: no such device"),
        ("import os\nos._exit(3)\n", "the interpreter ended with status 3"),
        ("import time\ntime.sleep(60)\n", "no end within 1 s"),
    ],
)
def test_a_tree_whose_parser_cannot_be_made_refuses_every_arm(
    node: Node, client: Client, text: str, says: str
) -> None:
    told = parsed(node, client, text, ["--model-path", "m"], timeout_s=1 if "sleep" in text else 20)
    assert (told["ok"], told["how"]) == (False, "parser")
    assert says in told["error"]


def test_who_asks_for_no_arguments_gets_none(node: Node, client: Client) -> None:
    assert smoke(node, client, {}, [])["arguments"] == []


def test_argvs_of_a_wrong_shape_are_a_bad_request(node: Node, client: Client) -> None:
    with pytest.raises(Refused) as refused:
        smoke(node, client, {}, [], argvs={"a": "--model-path m"})
    assert refused.value.code == "bad_request"
