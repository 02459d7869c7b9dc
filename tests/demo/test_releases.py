"""Trees of other releases: their flags are read, their rules followed, also where speculation can rest natively."""

from __future__ import annotations

import ast
import json
import logging
import re
from pathlib import Path

import pytest

from orchestrator.demo.engine.adaptive import Slots
from orchestrator.demo.engine.flags import UnreadableTree, read_command_line
from orchestrator.demo.engine.graphs import captured_sizes
from orchestrator.demo.engine.resolve import resolve
from orchestrator.demo.engine.tree import Tree
from orchestrator.demo.wheel import wheel_tree
from orchestrator.native_adaptive import default_batch_sizes, native_adaptive
from tests.demo.engines import EAGLE3, StartEngine, make_site
from tests.demo.test_installed_tree import at_concurrency

LOG = logging.getLogger("test")
ENGINE = Path(__file__).resolve().parents[2] / "orchestrator" / "demo" / "engine"


@pytest.mark.wheels
@pytest.mark.parametrize(
    ("version", "worker"),
    [
        ("0.5.8", "v1"),
        ("0.5.9", "v1"),
        ("0.5.10.post1", "v1"),
        ("0.5.11", "v2"),
        ("0.5.12.post1", "v2"),
        ("0.5.13.post1", "v2"),
        ("0.5.14", "v2"),
    ],
)
def test_flags_and_worker_of_each_release(version: str, worker: str) -> None:
    tree = Tree(wheel_tree(version))
    assert tree.version == version
    flags = ["--model-path", "org/model", "--tp-size", "2", "--context-length", "16000", *EAGLE3]
    args = resolve(read_command_line(tree.server_args).parse(flags), tree, {})
    assert args.worker == worker
    assert args.args["tp_size"] == 2
    assert args.args["context_length"] == 16_000
    assert args.args["max_running_requests"] == 48
    assert args.args["speculative_draft_model_path"] == "org/draft"


@pytest.mark.wheels
def test_a_layout_that_is_not_known_is_refused_with_the_range() -> None:
    with pytest.raises(UnreadableTree, match=r"this engine reads SGLang 0\.5\.8 to 0\.5\.14|no add_cli_args"):
        read_command_line(wheel_tree("0.5.23") / "srt" / "server_args.py")


@pytest.mark.wheels
def test_native_slots_rest_speculation_above_the_threshold(tmp_path: Path, start: StartEngine) -> None:
    tree = make_site(tmp_path / "tree", "0.5.14")
    native = native_adaptive(6, 3, default_batch_sizes(256))
    config = tmp_path / "adaptive.json"
    config.write_text(native.to_json())
    adaptive = ("--speculative-adaptive", "--speculative-adaptive-config", str(config))
    engine = start(*EAGLE3, *adaptive, "--max-running-requests", "64", tree=tree).wait_ready()
    at_concurrency(engine, 4)
    assert "Switch adaptive runtime state" not in engine.log
    at_concurrency(engine, 12, tokens=600)
    switches = re.findall(r"Switch adaptive runtime state: steps (\d) -> (\d)", engine.log)
    assert switches[0] == ("3", "0")
    assert "dynspec_stats" not in engine.state()


@pytest.mark.wheels
def test_a_release_without_the_patch_refuses_its_flag_in_the_new_layout_too(
    tmp_path: Path, start: StartEngine
) -> None:
    engine = start("--speculative-disable-batch-threshold", "5", tree=make_site(tmp_path / "t", "0.5.14"))
    assert engine.wait_exit() == 2
    assert "unrecognized arguments" in engine.log


def slots(tmp_path: Path, config: dict[str, list[int]], captured: list[int]) -> Slots:
    file = tmp_path / "slots.json"
    file.write_text(json.dumps({key: {"candidate_steps": value} for key, value in config.items()}))
    return Slots.read(str(file), 3, captured, LOG)


def test_a_batch_is_padded_before_its_slot_is_looked_up(tmp_path: Path) -> None:
    config = {"1": [3], "10": [0]}
    exact = slots(tmp_path, config, [])
    padded = slots(tmp_path, config, [1, 2, 4, 8, 16])
    assert [exact.decide(n) for n in (8, 9, 10)] == [True, True, False]
    assert [padded.decide(n) for n in (8, 9, 10, 40)] == [True, False, False, False]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"1": [1, 3]}, "of another number than one is not simulated"),
        ({"1": [2]}, "--speculative-num-steps=3 is not in the adaptive config"),
        ({"1": [3], "8": [1]}, "other than 0 and 3 are not simulated"),
    ],
)
def test_slots_that_cannot_be_followed_are_refused(
    tmp_path: Path, config: dict[str, list[int]], words: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        slots(tmp_path, config, [])


def test_captured_sizes_are_the_ones_that_dynspec_expects() -> None:
    args = {"speculative_algorithm": "EAGLE3", "cuda_graph_max_bs": 100}
    assert tuple(captured_sizes(args)) == default_batch_sizes(100)
    assert captured_sizes({**args, "cuda_graph_bs": [8, 1]}) == [1, 8]
    assert captured_sizes({**args, "disable_cuda_graph": True}) == []


def test_the_engine_keeps_to_python_3_8_and_the_standard_library() -> None:
    allowed = {"argparse", "ast", "asyncio", "bisect", "collections", "contextlib", "ctypes", "dataclasses"}
    allowed |= {
        "hashlib",
        "importlib",
        "json",
        "logging",
        "operator",
        "os",
        "pathlib",
        "re",
        "signal",
        "socket",
    }
    allowed |= {"subprocess", "sys", "time", "types", "typing", "urllib", "uuid", "zlib", "__future__"}
    for file in ENGINE.glob("*.py"):
        module = ast.parse(file.read_text(), feature_version=(3, 8))
        for node in ast.walk(module):
            if isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= allowed, file
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                assert str(node.module).split(".")[0] in allowed, file
