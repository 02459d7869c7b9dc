"""The predicted worker path is the one that the release itself would choose."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.model.experiment import Arm
from orchestrator.workers import SPEC_V2, parse_version, worker_files, worker_path
from tests.release_rules import ReleaseRules
from tests.wheels import wheel_tree

ROWS = yaml.safe_load((Path(__file__).parent / "plans" / "workers.yaml").read_text())


def arm(args: dict[str, Any], env: dict[str, str] | None = None) -> Arm:
    return Arm("arm", args, dict(env or {}))


@pytest.mark.parametrize("row", ROWS, ids=[row["case"] for row in ROWS])
def test_names_the_worker_and_why(row):
    path = worker_path(row["version"], arm(row["args"], row.get("env")))
    assert (path.worker, path.why, list(path.files)) == (row["worker"], row["why"], row.get("files", []))


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.5.11", (0, 5, 11)),
        ("0.5.10.post1", (0, 5, 10)),
        ("0.5.12rc1", (0, 5, 12)),
        ("v0.5.11+cu130", (0, 5, 11)),
        ("0.0.0.dev1", (0, 0, 0)),
        ("main", None),
        ("", None),
        (None, None),
    ],
)
def test_reads_the_release_out_of_a_version(text, version):
    assert parse_version(text) == version


def test_tells_worker_files_from_others():
    paths = [
        "srt/server_args.py",
        "srt/speculative/eagle_worker.py",
        "srt/speculative/eagle_info.py",
        "worker.py",
    ]
    assert worker_files(paths) == ("srt/speculative/eagle_worker.py",)


CLASSES = {
    "EAGLEWorker": "srt/speculative/eagle_worker.py",
    "EAGLEWorkerV2": "srt/speculative/eagle_worker_v2.py",
    "MultiLayerEagleWorker": "srt/speculative/multi_layer_eagle_worker.py",
    "MultiLayerEagleWorkerV2": "srt/speculative/multi_layer_eagle_worker_v2.py",
    "StandaloneWorker": "srt/speculative/standalone_worker.py",
    "StandaloneWorkerV2": "srt/speculative/standalone_worker_v2.py",
}
ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
SPEC_V2_WORDS = (None, "1", "true", "0", "False", "maybe", "")
ON_OFF = (False, True)


def combinations() -> Any:
    return itertools.product(ALGORITHMS, (None, 1, 4), SPEC_V2_WORDS, ON_OFF, (1, 2), ON_OFF)


@pytest.mark.wheels
@pytest.mark.filterwarnings("ignore:Invalid value for SGLANG_ENABLE_SPEC_V2")
@pytest.mark.parametrize("version", ["0.5.8", "0.5.9", "0.5.10", "0.5.10.post1", "0.5.11", "0.5.12.post1"])
def test_agrees_with_the_release_itself_on_every_combination(version, monkeypatch):
    rules = ReleaseRules(wheel_tree(version))
    seen = set()
    for algorithm, topk, word, no_overlap, stages, layers in combinations():
        monkeypatch.delenv(SPEC_V2, raising=False)
        if word is not None:
            monkeypatch.setenv(SPEC_V2, word)
        theirs = choose(rules, algorithm, topk, no_overlap, stages, layers)
        flags: dict[str, Any] = {"speculative-algorithm": algorithm, "pp-size": stages}
        flags |= {} if topk is None else {"speculative-eagle-topk": topk}
        flags |= {"disable-overlap-schedule": True} if no_overlap else {}
        flags |= {"enable-multi-layer-eagle": True} if layers else {}
        ours = worker_path(version, arm(flags, {} if word is None else {SPEC_V2: word}))
        assert (ours.files[:1] or (ours.worker,)) == (CLASSES.get(theirs, theirs),), (flags, word, ours)
        seen.add(ours.worker)
    assert {"v1", "v2"} <= seen


def choose(
    rules: ReleaseRules, algorithm: str, topk: int | None, no_overlap: bool, stages: int, layers: bool
) -> str:
    steps = None if topk is None else 3
    try:
        return rules.worker(
            speculative_algorithm=algorithm, speculative_eagle_topk=topk, speculative_num_steps=steps,
            speculative_num_draft_tokens=None if topk is None else 4, disable_overlap_schedule=no_overlap,
            pp_size=stages, enable_multi_layer_eagle=layers,
        )  # fmt: skip
    except ValueError as error:
        return "refused" if "topk = 1" in str(error) else f"another refusal: {error}"


@pytest.mark.wheels
@pytest.mark.parametrize(
    "version", ["0.5.8", "0.5.10.post1", "0.5.11", "0.5.12.post1", "0.5.13.post1", "0.5.14", "0.5.23"]
)
@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "NGRAM"])
def test_the_predicted_worker_file_exists_in_the_release(version, algorithm):
    tree = wheel_tree(version)
    path = worker_path(version, arm({"speculative-algorithm": algorithm, "speculative-eagle-topk": 1}))
    assert [file for file in path.files if not (tree / file).is_file()] == []


@pytest.mark.wheels
@pytest.mark.parametrize(
    ("version", "has_v1"), [("0.5.12.post1", True), ("0.5.13.post1", False), ("0.5.23", False)]
)
def test_v1_ends_with_0_5_12(version, has_v1):
    assert (wheel_tree(version) / "srt/speculative/eagle_worker.py").is_file() is has_v1
