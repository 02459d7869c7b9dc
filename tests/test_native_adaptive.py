"""The threshold as a native adaptive configuration, against the routing that SGLang itself does with it."""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
import types

import pytest

from orchestrator.errors import DoesNotFit
from orchestrator.native_adaptive import default_batch_sizes, native_adaptive
from tests.wheels import wheel_tree

SIZES = default_batch_sizes(64)


def test_the_steps_go_up_to_the_threshold_and_zero_above_it():
    native = native_adaptive(6, 3, SIZES)
    assert json.loads(native.to_json()) == {"1": {"candidate_steps": [3]}, "7": {"candidate_steps": [0]}}
    assert native.args == {
        "speculative-adaptive": True,
        "speculative-num-steps": 3,
        "speculative-eagle-topk": 1,
        "speculative-num-draft-tokens": 4,
    }


def test_a_threshold_between_two_captured_sizes_is_refused_with_the_two_that_work():
    with pytest.raises(DoesNotFit, match="batches of 9 to 9 are padded to 10") as refusal:
        native_adaptive(9, 3, SIZES)
    assert "choose 8 or 10" in refusal.value.help
    assert refusal.value.exit_code == 4


@pytest.mark.parametrize(("threshold", "topk", "steps"), [(6, 4, 2), (-1, 1, 3), (6, 1, 0)])
def test_what_the_native_mode_cannot_do_is_refused(threshold, topk, steps):
    with pytest.raises(DoesNotFit):
        native_adaptive(threshold, steps, SIZES, topk=topk)


def test_the_default_sizes_end_with_the_largest_asked_for():
    assert default_batch_sizes(64)[-4:] == (52, 56, 60, 64)
    assert default_batch_sizes(70)[-2:] == (64, 70)
    assert default_batch_sizes(3) == (1, 2, 3)


@pytest.mark.wheels
@pytest.mark.parametrize(
    ("version", "file", "name"),
    [
        ("0.5.14", "srt/server_args.py", "_generate_decode_cuda_graph_batch_sizes"),
        ("0.5.23", "srt/arg_groups/cuda_graph_hook.py", "generate_decode_cuda_graph_batch_sizes"),
    ],
)
def test_the_default_sizes_are_those_that_sglang_captures(version, file, name):
    """SGLang's own function, taken out of its file and run."""
    tree = ast.parse((wheel_tree(version) / file).read_text())
    function = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name)
    for argument in function.args.args:
        argument.annotation = None
    space = {"resolving_view": lambda args: args}
    exec(compile(ast.Module([function], []), file, "exec"), space)
    speculating = types.SimpleNamespace(disable_cuda_graph_padding=False, speculative_algorithm="EAGLE3")
    for largest in (3, 64, 70, 128, 300, 512):
        assert tuple(sorted(space[name](speculating, largest))) == default_batch_sizes(largest)


def upstream_params(version: str):
    """SGLang's own AdaptiveSpeculativeParams, imported alone."""
    path = wheel_tree(version) / "srt/speculative/adaptive_spec_params.py"
    stand_ins = {
        "sglang": {},
        "sglang.srt": {},
        "sglang.srt.utils": {"log_info_on_rank0": lambda *_: None},
        "sglang.srt.arg_groups": {},
        "sglang.srt.arg_groups.overrides": {"resolved_view": None, "resolving_view": None},
        "sglang.srt.runtime_context": {"attn_dp_enabled_of": None},
        "sglang.srt.speculative": {},
        "sglang.srt.speculative.spec_info": {"SpeculativeAlgorithm": None},
    }
    before = {name: sys.modules.get(name) for name in stand_ins}
    for name, members in stand_ins.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(members)
    try:
        spec = importlib.util.spec_from_file_location("adaptive_spec_params", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        for name, old in before.items():
            if old is None:
                del sys.modules[name]
            else:
                sys.modules[name] = old
    return module.AdaptiveSpeculativeParams


@pytest.mark.wheels
@pytest.mark.parametrize("version", ["0.5.14", "0.5.23"])
@pytest.mark.parametrize("threshold", [0, 1, 6, 8, 12, 64, 100])
def test_sglang_routes_every_batch_size_as_the_threshold_says(version, threshold, tmp_path):
    native = native_adaptive(threshold, 3, SIZES)
    file = tmp_path / "adaptive.json"
    file.write_text(native.to_json())
    params = upstream_params(version)(initial_steps=3, cfg_path=str(file))
    params.set_cuda_graph_bs(list(SIZES))
    assert 3 in params.candidate_steps  # SGLang refuses --speculative-num-steps otherwise
    for batch_size in range(1, 200):
        expected = 3 if batch_size <= threshold else 0
        assert params.get_steps_for_batch(batch_size) == expected, batch_size


@pytest.mark.wheels
@pytest.mark.parametrize("version", ["0.5.14", "0.5.23"])
def test_a_single_step_slot_never_moves_whatever_is_accepted(version, tmp_path):
    file = tmp_path / "adaptive.json"
    file.write_text(native_adaptive(8, 3, SIZES).to_json())
    params = upstream_params(version)(initial_steps=3, cfg_path=str(file))
    params.set_cuda_graph_bs(list(SIZES))
    for accepted in [0] * 40 + [3] * 40:
        for batch_size, steps in ((4, 3), (30, 0)):
            assert params.on_verify_complete([accepted] * batch_size, batch_size) in (None, steps)
            assert params.get_steps_for_batch(batch_size) == steps
