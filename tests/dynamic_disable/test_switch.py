"""The decision, its switch while the server runs, and the arguments that are refused. No torch needed."""

from __future__ import annotations

import functools
import itertools
import logging
import sys
import types
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lift import load_runtime, method

KEY = "speculative_disable_batch_threshold"


@dataclass
class Answer:
    updated: bool
    server_args: dict


@pytest.fixture
def server(monkeypatch):
    """The runtime with the few SGLang names that switching needs; `server_args` holds a secret."""
    args = SimpleNamespace(speculative_disable_batch_threshold=5, api_key="sk-secret")
    members = {
        "sglang.srt.managers.io_struct": {"SetInternalStateReqOutput": Answer},
        "sglang.srt.server_args": {"get_global_server_args": lambda: args},
    }
    for name in ("sglang", "sglang.srt", "sglang.srt.managers", "sglang.srt.speculative", *members):
        module = types.ModuleType(name)
        module.__path__ = []
        vars(module).update(members.get(name, {}))
        monkeypatch.setitem(sys.modules, name, module)
    load_runtime()
    from sglang.srt.speculative.dynspec import hooks, policy

    switch = policy.Switch("v2", 5, "lazy", switchable=True, rank=0)
    hooks.register(SimpleNamespace(switch=switch))
    return SimpleNamespace(hooks=hooks, policy=policy, switch=switch, args=args)


def ask(server, **values):
    return server.hooks.set_internal_state(SimpleNamespace(server_args=values))


def test_a_new_threshold_is_in_force_and_read_back(server):
    answer = ask(server, speculative_disable_batch_threshold=9)
    assert answer == Answer(True, {KEY: 9})
    assert server.switch.threshold == server.switch.counters["threshold"] == 9
    assert server.args.speculative_disable_batch_threshold == 9
    assert not server.switch.decide(9)
    assert server.switch.decide(10)


@pytest.mark.parametrize("value", [-1, 2.5, "7", None, True])
def test_what_is_no_threshold_is_refused_and_nothing_changes(server, value):
    assert ask(server, speculative_disable_batch_threshold=value) == Answer(False, {KEY: 5})
    assert server.switch.threshold == 5


def test_a_refusal_says_so_unlike_sglangs_own_answer(server):
    server.switch.switchable = False
    assert ask(server, speculative_disable_batch_threshold=0) == Answer(False, {KEY: 5})
    server.hooks.register(None)
    assert ask(server, speculative_disable_batch_threshold=0) == Answer(False, {KEY: None})


def test_the_threshold_comes_alone_or_not_at_all(server):
    assert ask(server, **{KEY: 3, "pp_max_micro_batch_size": 8}).updated is False
    assert server.switch.threshold == 5


def test_requests_about_anything_else_are_left_to_sglang(server):
    assert ask(server, pp_max_micro_batch_size=8) is None


def test_neither_log_nor_answer_show_any_other_argument(server, caplog):
    with caplog.at_level(logging.DEBUG):
        answers = [
            ask(server, **{KEY: 3}),
            ask(server, **{KEY: -3}),
            ask(server, **{KEY: 3, "api_key": "sk-secret"}),
        ]
    assert "sk-secret" not in caplog.text + repr(answers)
    assert "threshold=3 from the next step on" in caplog.text


@pytest.mark.wheels
@pytest.mark.parametrize("version", ["0.5.8", "0.5.11", "0.5.12.post1"])
def test_the_hooked_handler_answers_before_it_logs_all_arguments(server, version, caplog):
    handler = method(version, "srt/managers/scheduler.py", "Scheduler", "set_internal_state", {})
    with caplog.at_level(logging.DEBUG):
        answer = handler(SimpleNamespace(), SimpleNamespace(server_args={KEY: 2}))
    assert answer == Answer(True, {KEY: 2})
    assert "sk-secret" not in caplog.text


@functools.cache
def policy():
    load_runtime()
    from sglang.srt.speculative.dynspec import policy

    return policy


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(0, 45))
def test_the_decision_is_the_same_on_every_rank_and_depends_on_the_size_alone(sizes, threshold):
    ranks = [policy().Switch("v2", threshold, "lazy", switchable=False, rank=rank) for rank in range(3)]
    decisions = [[rank.decide(size) for size in sizes] for rank in ranks]
    assert decisions[0] == decisions[1] == decisions[2] == [size > threshold for size in sizes]
    modes = [False, *decisions[0]]
    moves = sum(a != b for a, b in itertools.pairwise(modes))
    counters = ranks[0].counters
    assert counters["transitions"] == moves
    assert counters["plain_steps"] + counters["spec_steps"] == len(sizes)


def test_only_rank_0_logs_transitions(caplog):
    Switch = policy().Switch  # noqa: N806
    with caplog.at_level(logging.INFO):
        Switch("v2", 2, "lazy", switchable=False, rank=1).decide(9)
        assert not caplog.records
        switch = Switch("v2", 2, "lazy", switchable=False, rank=0)
        switch.decide(9)
        switch.decide(8)
        switch.decide(2)
    assert [r.getMessage() for r in caplog.records] == [
        "dynspec: speculation off batch=9 threshold=2",
        "dynspec: speculation on batch=2 threshold=2",
    ]


def server_args(**more):
    fine = {
        "speculative_disable_batch_threshold": 5,
        "speculative_disable_draft_sync": None,
        "enable_speculative_threshold_switch": False,
        "speculative_algorithm": "EAGLE3",
        "disable_overlap_schedule": False,
        "device": "cuda",
        "pp_size": 1,
        "enable_lora": None,
        "lora_paths": None,
        "disaggregation_mode": "null",
    }
    return SimpleNamespace(**fine | more)


@pytest.fixture
def arguments():
    load_runtime()
    from sglang.srt.speculative.dynspec import arguments

    return arguments


def test_a_plain_eagle_server_is_accepted(arguments):
    arguments.check_server_args(server_args())
    arguments.check_server_args(server_args(disable_overlap_schedule=True, speculative_algorithm="EAGLE"))


@pytest.mark.parametrize(
    "more",
    [
        {"enable_dp_attention": True},
        {"enable_lora": True},
        {"lora_paths": ["a=/b"]},
        {"enable_two_batch_overlap": True},
        {"enable_pdmux": True},
        {"pp_size": 2},
        {"disaggregation_mode": "decode"},
        {"enable_multi_layer_eagle": True},
        {"speculative_adaptive": True},
        {"enable_hisparse": True},
        {"device": "npu"},
        {"speculative_algorithm": "NGRAM"},
        {"speculative_algorithm": None},
        {"disable_overlap_schedule": True, "speculative_disable_draft_sync": "lazy"},
    ],
    ids=str,
)
def test_an_argument_that_does_not_go_with_it_is_refused_by_name(arguments, more):
    with pytest.raises(ValueError, match="does not work with these arguments") as refusal:
        arguments.check_server_args(server_args(**more))
    assert list(more)[-1] in str(refusal.value)


def test_all_reasons_come_in_one_message(arguments):
    with pytest.raises(
        ValueError, match=r"enable_dp_attention.*; pp_size=2|pp_size=2.*; enable_dp_attention"
    ) as e:
        arguments.check_server_args(server_args(enable_dp_attention=True, pp_size=2))
    assert "between DP ranks" in str(e.value)


def test_a_negative_threshold_is_refused(arguments):
    with pytest.raises(ValueError, match="0 or more, got -1"):
        arguments.check_server_args(server_args(speculative_disable_batch_threshold=-1))


def test_the_other_options_need_the_threshold(arguments):
    arguments.check_server_args(server_args(speculative_disable_batch_threshold=None, enable_lora=True))
    with pytest.raises(ValueError, match="--speculative-disable-draft-sync needs"):
        arguments.check_server_args(
            server_args(speculative_disable_batch_threshold=None, speculative_disable_draft_sync="skip")
        )


@pytest.mark.parametrize(
    ("asked", "overlap_off", "model", "expected"),
    [
        (None, False, {}, "lazy"),
        (None, True, {}, "step"),
        ("skip", False, {}, "skip"),
        ("step", False, {}, "step"),
        (None, False, {"model_is_mrope": True}, "step"),
        (None, False, {"is_hybrid_swa": True}, "step"),
        ("skip", True, {"is_hybrid_swa": True}, "skip"),
    ],
)
def test_the_draft_sync_in_force(arguments, asked, overlap_off, model, expected):
    args = server_args(speculative_disable_draft_sync=asked, disable_overlap_schedule=overlap_off)
    assert arguments.draft_sync_of(args, SimpleNamespace(**model)) == expected


@pytest.mark.parametrize("model", [{"mamba2_config": {}}, {"hybrid_gdn_config": {}}, {"encoder": True}])
def test_targets_with_state_outside_the_kv_cache_are_refused(arguments, model):
    runner = SimpleNamespace(
        model_config=SimpleNamespace(is_encoder_decoder=model.pop("encoder", False)), **model
    )
    with pytest.raises(ValueError, match="does not work with"):
        arguments.check_model(runner)
