"""The engine takes flags, speculates, falls back and speaks as the tree that it runs from says."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.demo.engines import (
    EAGLE3,
    EAGLE3_V1,
    EngineProcess,
    StartEngine,
    apply_patch,
    copy_site,
    make_site,
)

pytestmark = pytest.mark.wheels
THRESHOLD = ("--speculative-disable-batch-threshold", "5")


def at_concurrency(engine: EngineProcess, count: int, tokens: int = 60) -> list[str]:
    """Answers to `count` requests that run together."""
    with ThreadPoolExecutor(count) as pool:
        answers = pool.map(lambda i: engine.generate(f"request number {i}", tokens), range(count))
        return [answer["text"] for answer in answers]


def test_the_threshold_flag_is_a_usage_error_without_the_patch(start: StartEngine) -> None:
    engine = start(*EAGLE3, *THRESHOLD)
    assert engine.wait_exit() == 2
    assert engine.log.splitlines()[-1].endswith(
        "error: unrecognized arguments: --speculative-disable-batch-threshold 5"
    )


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--tp-size", "two"), "invalid int value: 'two'"),
        (("--load-format", "magic"), "invalid choice: 'magic'"),
        (("--max-runing-requests", "4"), "unrecognized arguments: --max-runing-requests 4"),
    ],
)
def test_wrong_arguments_end_like_argparse(start: StartEngine, flags: tuple[str, ...], words: str) -> None:
    engine = start(*flags)
    assert engine.wait_exit() == 2
    assert words in engine.log


def test_a_tree_that_is_not_python_any_more_does_not_start(
    site: Path, tmp_path: Path, start: StartEngine
) -> None:
    tree = copy_site(site, tmp_path / "broken")
    file = tree / "sglang/srt/server_args.py"
    file.write_text(file.read_text().replace("def add_cli_args(", "def add_cli_args((", 1))
    engine = start(tree=tree)
    assert engine.wait_exit() == 1
    assert "server_args.py:" in engine.log


def test_speculation_quietly_limits_running_requests_to_48(start: StartEngine) -> None:
    plain, eagle = start(), start(*EAGLE3)
    limits = [e.wait_ready().state()["effective_max_running_requests_per_dp"] for e in (plain, eagle)]
    assert limits == [4096, 48]
    assert "Max running requests is reset to 48 for speculative decoding." in eagle.log
    assert start(*EAGLE3, "--max-running-requests", "9").wait_ready().state()["max_running_requests"] == 9


def test_requests_above_the_limit_wait(start: StartEngine) -> None:
    engine = start(*EAGLE3, "--max-running-requests", "2").wait_ready()
    at_concurrency(engine, 6)
    running = [int(n) for n in re.findall(r"Decode batch, #running-req: (\d+)", engine.log)]
    assert running
    assert max(running) <= 2


@pytest.mark.parametrize(
    ("flags", "env", "words"),
    [
        (EAGLE3, {}, "Spec v2 is enabled by default"),
        (
            EAGLE3_V1,
            {},
            "Spec v1 is used for eagle/eagle3/standalone speculative decoding because spec v2 cur",
        ),
        (EAGLE3, {"SGLANG_ENABLE_SPEC_V2": "0"}, "because SGLANG_ENABLE_SPEC_V2=False."),
        ((*EAGLE3, "--disable-overlap-schedule"), {}, "because overlap schedule is disabled."),
    ],
)
def test_the_worker_path_follows_the_rules_of_0_5_11(
    start: StartEngine, flags: tuple[str, ...], env: dict[str, str], words: str
) -> None:
    assert words in start(*flags, **env).wait_ready().log


def test_before_0_5_11_v2_must_be_asked_for_and_refuses_topk(tmp_path: Path, start: StartEngine) -> None:
    tree = make_site(tmp_path / "old", "0.5.10")
    silent, asked = start(*EAGLE3, tree=tree), start(*EAGLE3, tree=tree, SGLANG_ENABLE_SPEC_V2="1")
    wide = start(*EAGLE3_V1, tree=tree, SGLANG_ENABLE_SPEC_V2="1")
    assert "Overlap scheduler is disabled when spec v2 is off" in silent.wait_ready().log
    assert "overlap schedule is turned on" in asked.wait_ready().log
    assert wide.wait_exit() == 1
    assert "Spec v2 currently only supports topk = 1" in wide.log


def test_the_banner_names_the_worker_in_use(patched_site: Path, start: StartEngine) -> None:
    v2, v1 = start(*EAGLE3, tree=patched_site), start(*EAGLE3_V1, tree=patched_site)
    line = r"dynspec: worker=(\w+) tp_rank=0 topk=(\d) steps=(\d) draft_tokens=(\d+) file=(\S+)"
    seen = [re.search(line, engine.wait_ready().log) for engine in (v2, v1)]
    assert [found and found.groups()[:4] for found in seen] == [
        ("EAGLEWorkerV2", "1", "3", "4"),
        ("EAGLEWorker", "4", "2", "16"),
    ]
    assert seen[0] is not None
    assert seen[0][5] == str(patched_site / "sglang/srt/speculative/eagle_worker_v2.py")
    assert "dynspec: arguments choose path=v1 algorithm=EAGLE3 topk=4" in v1.log


def test_an_unpatched_tree_says_nothing_of_ours(start: StartEngine) -> None:
    engine = start(*EAGLE3).wait_ready()
    assert "dynspec" not in engine.log.replace(str(engine.log_file), "").split("\n", 2)[2]


@pytest.mark.parametrize("flags", [EAGLE3, EAGLE3_V1], ids=["v2", "v1"])
def test_above_the_threshold_steps_are_plain_and_counted(
    patched_site: Path, start: StartEngine, flags: tuple[str, ...]
) -> None:
    engine = start(*flags, *THRESHOLD, tree=patched_site).wait_ready()
    at_concurrency(engine, 3)
    low = engine.state()["dynspec_stats"]
    assert (low["mode"], low["transitions"], low["plain_steps"]) == ("speculate", 0, 0)
    at_concurrency(engine, 9, tokens=600)
    high = engine.state()["dynspec_stats"]
    assert high["plain_steps"] > 0
    assert high["transitions"] >= 1
    assert high["threshold"] == 5
    assert high["worker"] == ("v2" if flags is EAGLE3 else "v1")
    assert high["accept_length"] == pytest.approx(high["spec_tokens"] / high["spec_reqs"])
    assert len(re.findall(r"dynspec: speculation (?:on|off) batch=", engine.log)) == high["transitions"]
    assert engine.log.count("dynspec: ready rank=0 worker=") == 1


def test_a_hook_in_the_worker_that_is_not_used_never_acts(
    site: Path, patched_site: Path, tmp_path: Path, start: StartEngine
) -> None:
    tree = copy_site(patched_site, tmp_path / "wrong")
    original = site / "sglang/srt/speculative/eagle_worker.py"
    (tree / "sglang/srt/speculative/eagle_worker.py").write_bytes(original.read_bytes())
    engine = start(*EAGLE3_V1, *THRESHOLD, tree=tree).wait_ready()
    at_concurrency(engine, 9, tokens=10)
    assert "dynspec_stats" not in engine.state()


def test_the_threshold_moves_at_run_time_only_if_that_was_allowed(
    patched_site: Path, start: StartEngine
) -> None:
    fixed = start(*EAGLE3, *THRESHOLD, tree=patched_site)
    movable = start(*EAGLE3, *THRESHOLD, "--enable-speculative-threshold-switch", tree=patched_site)
    request = {"server_args": {"speculative_disable_batch_threshold": 0}}
    assert fixed.wait_ready().post("/set_internal_state", request).json() == [False]
    assert fixed.state()["dynspec_stats"]["threshold"] == 5
    assert movable.wait_ready().post("/set_internal_state", request).json() == [True]
    state = movable.state()
    assert state["dynspec_stats"]["threshold"] == state["speculative_disable_batch_threshold"] == 0
    movable.generate("never speculates now", 30)
    assert movable.state()["dynspec_stats"]["spec_steps"] == 0


def test_arguments_that_the_patch_refuses_are_refused_before_the_load(
    patched_site: Path, start: StartEngine
) -> None:
    engine = start(*THRESHOLD, tree=patched_site)
    assert engine.wait_exit() == 1
    assert "EAGLE or EAGLE3 is needed" in engine.log
    assert "Load weight begin" not in engine.log


def test_one_start_up_line_per_rank(patched_site: Path, start: StartEngine) -> None:
    engine = start(*EAGLE3, *THRESHOLD, "--tp-size", "3", tree=patched_site).wait_ready()
    ranks = re.findall(r"TP(\d)\] dynspec: ready rank=(\d) worker=v2 threshold=5", engine.log)
    assert ranks == [("0", "0"), ("1", "1"), ("2", "2")]


def test_greedy_answers_are_equal_whatever_the_mode_and_the_load(
    patched_site: Path, start: StartEngine
) -> None:
    arms = [start(tree=patched_site), start(*EAGLE3, tree=patched_site), start(*EAGLE3_V1, tree=patched_site)]
    arms.append(start(*EAGLE3, *THRESHOLD, tree=patched_site))
    alone, *others = [[at_concurrency(a.wait_ready(), n) for n in (3, 9)] for a in arms]
    assert all(answers == alone for answers in others)


def test_the_simulated_accept_length_of_sglang_is_honoured(start: StartEngine) -> None:
    lengths: dict[str, Any] = {}
    for wanted in ("1.0", "3.0"):
        engine = start(*EAGLE3, SGLANG_SIMULATE_ACC_LEN=wanted).wait_ready()
        lengths[wanted] = engine.generate("measure", 900)["meta_info"]["spec_accept_length"]
    assert lengths["1.0"] == pytest.approx(1.0, abs=0.01)
    assert lengths["3.0"] == pytest.approx(3.0, abs=0.15)


def test_eagle3_without_a_draft_fails_only_after_the_weights_are_in(start: StartEngine) -> None:
    engine = start("--speculative-algorithm", "EAGLE3")
    engine.wait_exit()
    assert "Load weight end" in engine.log
    assert "no --speculative-draft-model-path" in engine.log


def test_a_patch_can_be_tried_on_one_file_alone(site: Path, tmp_path: Path, start: StartEngine) -> None:
    """Patched and restored: the second start knows nothing of the patch, whatever bytecode is left."""
    tree = copy_site(site, tmp_path / "tree")
    file = tree / "sglang/srt/server_args.py"
    before = file.read_bytes()
    apply_patch(tree, "spec_banner")
    assert "dynspec: arguments choose" in start(*EAGLE3, tree=tree).wait_ready().log
    file.write_bytes(before)
    time.sleep(0.01)
    assert "dynspec: arguments choose" not in start(*EAGLE3, tree=tree).wait_ready().log
