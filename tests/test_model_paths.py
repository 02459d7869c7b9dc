"""Paths of the node that arms name, judged by what the node said of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.errors import DoesNotFit
from orchestrator.model.experiment import Experiment
from orchestrator.runner.model_paths import named_paths, require_paths
from tests.plan_cases import experiment, facts

BOTH = ["server.args.model-path=/m/target", "arms.eagle3.args.speculative-draft-model-path=/m/draft"]


def lacking(found: Experiment, *absent: str, simulated: bool = False) -> str:
    node = facts({})
    assert node.tree is not None
    node = replace(node, absent=absent, tree=replace(node.tree, simulated=simulated))
    try:
        require_paths(found.arms, node)
    except DoesNotFit as error:
        return error.render()
    return ""


def test_a_server_s_files_are_asked_for_once_and_others_not() -> None:
    own = "{chat-template: /t.jinja, lora-paths: [a=/l/a, /l/b, hub/c], tokenizer-path: hub/name, download-dir: /new}"
    found = experiment([*BOTH, f"arms.baseline={{args: {own}}}"])
    assert set(named_paths(found)) >= {"/m/target", "/m/draft", "/t.jinja", "/l/a", "/l/b"}
    assert not {"/new", "hub/name", "hub/c"} & set(named_paths(found))
    assert len(named_paths(found)) == len(set(named_paths(found)))


def test_another_server_s_arguments_mean_no_files() -> None:
    assert named_paths(experiment([*BOTH, "server.module=other.server"])) == ()


def test_an_absent_path_is_named_with_its_flag_and_the_arms_that_name_it() -> None:
    found = experiment(BOTH)
    users = [arm.name for arm in found.arms if "speculative-draft-model-path" in arm.args]
    says = lacking(found, "/m/draft")
    assert f"{', '.join(users)}: speculative-draft-model-path: there is no /m/draft\n" in says
    assert "-> write the paths as they are on " in says
    assert lacking(found, "/m/draft", "/m/target").count("there is no") == 2


@pytest.mark.parametrize("absent", [(), ("/elsewhere",)])
def test_what_is_there_is_not_refused(absent: tuple[str, ...]) -> None:
    assert lacking(experiment(BOTH), *absent) == ""


def test_the_stand_in_engine_reads_no_model() -> None:
    assert lacking(experiment(BOTH), "/m/target", simulated=True) == ""
