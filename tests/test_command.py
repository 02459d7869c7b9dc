"""Commands are words: what a value of `args` becomes on the server's command line."""

from __future__ import annotations

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.command import expand_home, launch_argv, server_env
from orchestrator.model.experiment import Arm, SecretRef


def argv(args):
    return launch_argv("/v/bin/python3", "sglang.launch_server", args, 30000)


def test_every_kind_of_value_becomes_words():
    args = {
        "model-path": "/models/a b",
        "tp": 8,
        "trust-remote-code": True,
        "mem": 0.88,
        "cuda-graph-bs": (1, 2),
    }
    assert argv(args) == (
        "/v/bin/python3", "-m", "sglang.launch_server",
        "--model-path", "/models/a b", "--tp", "8", "--trust-remote-code", "--mem", "0.88",
        "--cuda-graph-bs", "1", "2", "--port", "30000",
    )  # fmt: skip


def test_the_order_is_the_experiments_and_the_port_comes_last():
    assert argv({"b": 1, "a": 2})[3:] == ("--b", "1", "--a", "2", "--port", "30000")


@pytest.mark.parametrize(("value", "words"), [(-1, ("--x=-1",)), ("--y", ("--x=--y",)), ("", ("--x", ""))])
def test_a_word_with_a_dash_is_not_taken_for_a_flag(value, words):
    assert argv({"x": value})[3:-2] == words


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0")))
def test_argparse_reads_back_any_text(text):
    parser = argparse.ArgumentParser()
    parser.add_argument("--x")
    parser.add_argument("--port")
    assert parser.parse_args(argv({"x": text})[3:]).x == text


@pytest.mark.parametrize(
    ("path", "expanded"),
    [("~", "/home/u"), ("~/a", "/home/u/a"), ("/x/~", "/x/~"), ("~bob/a", "~bob/a"), ("rel", "rel")],
)
def test_home_is_the_nodes_home(path, expanded):
    assert expand_home(path, "/home/u") == expanded


def test_chosen_gpus_limit_the_server_and_all_gpus_do_not():
    arm = Arm("a", {}, {"HF_TOKEN": SecretRef("HF_TOKEN")})
    assert server_env(arm, (2, 3)) == {"CUDA_VISIBLE_DEVICES": "2,3", "HF_TOKEN": SecretRef("HF_TOKEN")}
    assert server_env(arm, None) == {"HF_TOKEN": SecretRef("HF_TOKEN")}
