"""Faults put into the runtime on purpose: each must be noticed, or the tests of the runtime prove little."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

pytest.importorskip("torch", reason="torch is not installed: `make test-torch` runs these")

import world_v1
import world_v2
from fake_sglang import Release
from test_runtime import crowd, ending_as_it_resumes, only_plain

MUTANTS = yaml.safe_load((Path(__file__).parent / "mutants.yaml").read_text())
pytestmark = [pytest.mark.torch, pytest.mark.wheels]


def run_v2(changes, sync: str) -> None:
    release = Release("0.5.11", changes)
    crowd(world_v2.World(release, sync=sync, seed=1))
    crowd(world_v2.World(release, sync=sync, seed=2, grammar=True))
    ending_as_it_resumes(world_v2.World(release, threshold=2, sync=sync, grammar=True))
    # Exactly one above the threshold.
    world = world_v2.World(release, threshold=2, sync=sync, seed=1)
    only_plain(world, 3)
    assert world.stats["spec_steps"] == 0, "a batch above the threshold speculated"
    world.add(2, return_hidden_states=True)
    world.drain()


def run_v1(changes, requests: int) -> None:
    world = world_v1.World(Release("0.5.11", changes), threshold=3)
    world.add(requests)
    for i, req in enumerate(world.waiting):
        req.wanted = 12 + 4 * i
    world.drain()
    assert not world.cache.owner


WORLDS = {
    "v1": lambda changes: run_v1(changes, 10),
    "v2": lambda changes: run_v2(changes, "lazy"),
    "v2-step": lambda changes: run_v2(changes, "step"),
}


@pytest.mark.parametrize("world", WORLDS)
def test_without_a_fault_the_worlds_run_through(world):
    WORLDS[world]({})


@pytest.mark.parametrize("mutant", MUTANTS, ids=[m["name"] for m in MUTANTS])
def test_the_fault_is_noticed(mutant):
    changes = {mutant["file"]: (mutant["old"], mutant["new"])}
    with pytest.raises(Exception, match=f"(?s){mutant['fails']}"):
        WORLDS[mutant["world"]](changes)
