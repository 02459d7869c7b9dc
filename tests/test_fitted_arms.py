"""Arms as a tree serves them: tests/plans/fitted.yaml, with the rules of the carried patches."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from orchestrator.errors import DoesNotFit
from orchestrator.model.experiment import Arm
from orchestrator.model.facts import Tree
from orchestrator.patchset import available_patches, find_patch
from orchestrator.plan import fit_arms
from orchestrator.runner.fitting import fit, patch_rules
from tests.plan_cases import experiment, facts

ROWS = yaml.safe_load((Path(__file__).parent / "plans" / "fitted.yaml").read_text())
EAGLE3 = {
    "speculative-algorithm": "EAGLE3",
    "speculative-num-steps": 3,
    "speculative-eagle-topk": 1,
    "speculative-num-draft-tokens": 4,
}


def fitted(row):
    args = {**EAGLE3, **row.get("args", {})}
    args = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in args.items()
        if value is not None
    }
    arm = Arm("a", args, {}, tuple(row.get("patches", ())), row.get("only_by", ""))
    rules = patch_rules(row["version"], available_patches())
    return fit_arms([arm, Arm("baseline", {}, {})], row["version"], rules, "/w/run/adaptive")


def having(key):
    rows = [row for row in ROWS if key in row]
    assert rows
    return pytest.mark.parametrize("row", rows, ids=[row["case"].replace(" ", "-") for row in rows])


@having("gives")
def test_an_arm_is_served_as_the_release_can(row):
    found, gives = fitted(row), row["gives"]
    arm, baseline = found.arms
    assert baseline == Arm("baseline", {}, {})
    assert list(arm.patches) == gives.get("patches", list(arm.patches))
    assert {key: arm.args.get(key) for key in gives.get("args", {})} == gives.get("args", {})
    if "config" in gives:
        file = found.files["a"]
        assert arm.args["speculative-adaptive-config"] == file.path
        slots = {key: slot["candidate_steps"] for key, slot in json.loads(file.text).items()}
        assert slots == gives["config"]
    else:
        assert found.files == {}
    if "mode" in gives:
        assert found.modes == {"a": gives["mode"]}
        assert found.notes == (f"arm a: {gives['mode']}",)
    assert found.unsupported == {}


@having("refuses")
def test_a_written_arm_without_a_way_is_refused_with_the_reason(row):
    with pytest.raises(DoesNotFit) as caught:
        fitted(row)
    assert caught.value.message == row["refuses"]
    assert caught.value.exit_code == 4


@having("leaves_out")
def test_an_arm_of_a_preset_without_a_way_is_left_out_with_the_reason(row):
    found = fitted(row)
    assert [arm.name for arm in found.arms] == ["baseline"]
    assert found.unsupported == {"a": row["leaves_out"]}


def test_a_refused_release_leaves_out_both_ways_of_a_preset():
    for only_by, patches in (("patch", ["dynamic_disable"]), ("native", [])):
        row = {
            "version": "0.5.13.post1",
            "only_by": only_by,
            "patches": patches,
            "args": {"speculative-disable-batch-threshold": 12},
        }
        assert set(fitted(row).unsupported) == {"a"}


@pytest.mark.parametrize(
    ("path", "editable", "origin"),
    [
        (
            "/home/ann/serve/sglang",
            True,
            "from node.cwd (~/serve), where a folder of that name comes before any",
        ),
        ("/src/sglang/python/sglang", True, "an editable checkout"),
        ("/venv/site-packages/sglang", False, "an installed package"),
    ],
)
def test_a_patch_that_does_not_fit_names_the_tree_and_why_that_one_is_loaded(path, editable, origin):
    node, wanted = facts({}), experiment([])
    tree = Tree("sglang", path, "0.5.11", editable, "/venv/bin/python3", "3.11.2")
    patch = find_patch("spec_banner")
    with pytest.raises(DoesNotFit, match="the tree lacks") as caught:
        fit(
            wanted,
            wanted.arms,
            {patch.name: patch},
            tree,
            replace(node, home="/home/ann"),
            dict.fromkeys(patch.paths),
        )
    (told,) = caught.value.details
    assert told.startswith(f"the tree: {path}, {origin}")
