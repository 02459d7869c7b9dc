"""Runs are compared only where they did equal work, and the gate says regression only outside the noise."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from orchestrator.analysis.compare import compare_runs, require_like
from orchestrator.analysis.gate import gate, gate_json
from orchestrator.analysis.setups import Setup, differences, setup_of
from orchestrator.analysis.summary import summarise
from orchestrator.analysis.witness import EVENT_CPU
from orchestrator.errors import NothingToClaim
from orchestrator.model.experiment import Arm, Experiment, Gate, Node, Server, Sweep
from tests.report.example_runs import ARMS, SWEEP, points, rate

FACTS = {
    "host": "blackwell-1",
    "kernel": "6.8",
    "gpus": [{"name": "NVIDIA H200", "driver": "570.86"}],
    "tree": {"package": "sglang", "version": "0.5.11"},
}
RULE = Gate(metric="output_tps", max_drop=0.03)


def run(scale: float = 1.0, boots: int = 3, noise: float = 0.005, seed: int = 1, **options):
    """A run whose eagle3 arm is `scale` times as fast as usual."""

    def rates(arm: str, concurrency: int) -> float:
        return rate(arm, concurrency) * (scale if arm == "eagle3" else 1.0)

    return summarise(
        points(boots, noise=noise, seed=seed, rates=rates, arms=ARMS[:2], **options), arms=ARMS[:2]
    )


def experiment(**changes) -> Experiment:
    server = changes.pop("server", Server(args={"model-path": "/models/llama"}))
    arms = changes.pop("arms", ARMS[:2])
    return Experiment("k25", Node("blackwell-1", "python3"), server, arms, Sweep(**changes))


def setup(summary=None, facts=FACTS, simulated=False, **changes):
    return setup_of(experiment(**changes), facts, summary or run(), simulated=simulated)


# -- likeness ------------------------------------------------------------------------------------------------


def test_the_same_set_up_twice_has_no_difference():
    assert differences(setup(), setup(), ["baseline", "eagle3"], same_place=True) == ()


def test_the_gpus_of_a_run_are_those_that_it_used():
    cards = [{"index": index, "name": f"GPU {index}", "driver": "570.86"} for index in range(4)]

    def used(gpus):
        made = replace(experiment(), node=Node("blackwell-1", "python3", gpus=gpus))
        return setup_of(made, {**FACTS, "gpus": cards}, run(), simulated=False)

    found = differences(used((0, 1)), used("all"), ["baseline", "eagle3"], same_place=True)
    assert [(item.what, item.a, item.b) for item in found] == [
        ("GPUs", "GPU 0, GPU 1", "GPU 0, GPU 1, GPU 2, GPU 3")
    ]


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"server": Server(args={"model-path": "/models/qwen"})}, "model"),
        ({"output_tokens": 256}, "output tokens"),
        ({"temperature": 0.7}, "temperature"),
        ({"endpoint": "generate"}, "endpoint"),
        ({"simulated": True}, "engine"),
    ],
)
def test_unequal_work_blocks_a_comparison_and_is_named(changed, what):
    found = compare_runs(run(), run(seed=2), (setup(), setup(**changed)))
    assert [item.what for item in found.unlike if item.blocks] == [what]
    with pytest.raises(NothingToClaim, match="not alike") as error:
        require_like(found)
    assert what in error.value.details[0]
    assert error.value.exit_code == 6


def test_other_prompts_block_a_comparison():
    measured = points(3, arms=ARMS[:2])
    other = summarise([replace(p, bodies_sha256="cd" * 32) for p in measured], arms=ARMS[:2])
    found = compare_runs(run(), other, (setup(), setup(other)))
    assert found.unlike[0].what == "request bodies at 1"
    assert any(item.blocks for item in found.unlike)


@pytest.mark.parametrize(
    ("sweeps", "why"),
    [
        (((1, 2), (1, 2)), ""),
        (((1, 2), (1, 5)), ""),  # what comes after a point takes nothing from it
        (
            ((1, 2), (4, 1)),
            "the sweeps differ before this point, which takes the prompts after theirs: none / 4",
        ),
    ],
)
def test_other_prompts_that_come_from_another_sweep_say_so(sweeps, why):
    a, b = (
        Setup({"request bodies at 1": digest}, {}, {}, sweep=s)
        for digest, s in zip("ab", sweeps, strict=True)
    )
    (found,) = differences(a, b, [], same_place=True)
    assert (found.why, found.blocks) == (why, True)
    assert str(found) == f"request bodies at 1: a / b{f' ({why})' if why else ''}"


def test_another_version_is_listed_first_and_compared():
    newer = {**FACTS, "tree": {"package": "sglang", "version": "0.5.14"}}
    found = compare_runs(run(), run(seed=2), (setup(), setup(facts=newer)))
    assert [str(item) for item in found.unlike] == ["tree: sglang 0.5.11 / sglang 0.5.14"]
    require_like(found)


def test_another_setting_of_an_arm_is_listed_with_the_arm():
    changed = (ARMS[0], Arm("eagle3", {**ARMS[1].args, "speculative-num-steps": 5}, {}))
    found = compare_runs(run(), run(seed=2), (setup(), setup(arms=changed)))
    assert [str(item) for item in found.unlike] == ["eagle3: speculative-num-steps: 2 / 5"]


def test_another_host_is_listed_by_compare_and_blocks_a_gate():
    other = setup(facts={**FACTS, "host": "blackwell-2"})
    assert not differences(setup(), other, [], same_place=False)[0].blocks
    assert differences(setup(), other, [], same_place=True)[0].blocks


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"gpus": ["GPU-cccccccc-1", "GPU-dddddddd-1"], "boot_id": "2"}, ["GPU UUIDs"]),
        ({"gpus": ["GPU-cccccccc-1"], "boot_id": None}, ["GPU UUIDs"]),
        ({"gpus": ["GPU-bbbbbbbb-1", "GPU-aaaaaaaa-1"], "boot_id": "2"}, []),  # booted again
        ({"gpus": ["GPU-bbbbbbbb-1", "GPU-cccccccc-1"], "boot_id": "2"}, []),  # one was replaced
        ({"gpus": ["GPU-cccccccc-1"], "boot_id": "1"}, []),  # other GPUs of the same machine
        ({"gpus": [None, None], "boot_id": "2"}, []),
        ({"gpus": ["GPU-cccccccc-1"], "boot_id": "2", "host": "blackwell-2"}, ["host"]),
    ],
)
def test_another_machine_of_the_same_name_is_known_by_its_gpus(other, says):
    def on(gpus, **facts):
        cards = [{"index": i, "name": "NVIDIA H200", "uuid": uuid} for i, uuid in enumerate(gpus)]
        made = replace(experiment(), node=Node("blackwell-1", "python3", gpus=(0,)))
        return setup_of(made, {**FACTS, **facts, "gpus": cards}, run(), simulated=False)

    a, b = on(["GPU-aaaaaaaa-1", "GPU-bbbbbbbb-1"], boot_id="1"), on(**other)
    for same_place in (True, False):
        found = differences(a, b, [], same_place=same_place)
        assert [(item.what, item.blocks) for item in found] == [(what, same_place) for what in says]
    assert all(item.a == "GPU-aaaaaaaa, GPU-bbbbbbbb" for item in found if item.what == "GPU UUIDs")


@pytest.mark.parametrize(
    ("us", "says"),
    [
        ((20.0, 30.0), "1 / 1.50 (the node's processors were slower or shared in the second,"),
        ((30.0, 20.0), "1 / 0.67 (the node's processors were slower or shared in the first,"),
        ((20.0, 24.0), None),
        ((24.0, 20.0), None),
    ],
)
def test_a_node_that_was_slower_in_one_of_two_runs_is_told_and_blocks_nothing(us, says):
    a, b = (replace(setup(), witness={"eagle3 4": one * 1e-6, "eagle3 16": one * 2e-6}) for one in us)
    found = differences(a, b, ["eagle3"], same_place=True)
    assert [str(item).split(": ")[1][: len(says or "")] for item in found] == [says] * bool(says)
    assert not any(item.blocks for item in found)
    elsewhere = replace(b, place={**b.place, "host": "other"})
    assert [item.what for item in differences(a, elsewhere, [], same_place=True)] == ["host"]
    assert differences(a, replace(b, witness={"none 4": 1.0}), [], same_place=True) == ()


def test_the_witness_of_a_node_is_of_points_that_count_and_have_one():
    summary = run()
    for place, point in enumerate(summary["arms"]["eagle3"]["points"]):
        value = None if place == 1 else 2e-5
        point["metrics"][EVENT_CPU] = value and {"value": value, "low": None, "high": None, "n": 1}
        point["valid"] = place != 0
    assert setup(summary=summary).witness == {f"eagle3 {concurrency}": 2e-5 for concurrency in SWEEP[2:]}


def test_a_wider_sweep_is_compared_on_the_points_both_have():
    fewer = summarise([p for p in points(3, seed=2, arms=ARMS[:2]) if p.concurrency != 70], arms=ARMS[:2])
    found = compare_runs(run(), fewer, (setup(), setup(fewer)))
    assert not any(item.blocks for item in found.unlike)
    assert found.arms[0].headline_points == (1, 2, 5, 10, 30)


def cut(levels, lost=()):
    """A run that asked for `levels` alone; `lost` are of those, asked and without a value that counts."""
    kept = [replace(p, valid=p.concurrency not in lost) for p in points(3, 0.005, arms=ARMS[:2])]
    return summarise([p for p in kept if p.concurrency in levels], arms=ARMS[:2])


@pytest.mark.parametrize("levels", [SWEEP[:1], SWEEP[:2], SWEEP[:3], SWEEP[2:4]])
def test_a_run_that_asked_for_few_of_the_others_concurrencies_is_compared_on_those(levels):
    few, whole = cut(levels), run()
    for a, b in ((few, whole), (whole, few)):
        for arm in compare_runs(a, b, None).arms:
            assert arm.headline is not None
            assert arm.headline_points == levels
            assert arm.notes == ()
    assert gate(few, {"r1": whole}, RULE).state == "pass"


def test_points_that_were_asked_for_and_lost_still_speak_against_a_boot():
    for arm in compare_runs(cut(SWEEP, lost=SWEEP[2:]), run(), None).arms:
        assert arm.headline is None
        assert f"{arm.arm} boot 1 has 2 of 6 valid points: not in the headline" in arm.notes


# -- compare -------------------------------------------------------------------------------------------------


def test_a_faster_run_is_better_and_an_equal_one_inconclusive():
    found = {item.arm: item for item in compare_runs(run(1.1), run(seed=2), None).arms}
    assert found["eagle3"].call == "better"
    assert found["eagle3"].headline.ratio == pytest.approx(1.1, abs=0.01)
    assert found["baseline"].call == "inconclusive"


def test_arms_that_only_one_run_has_are_named():
    baseline = summarise(points(2, arms=ARMS[:1]), arms=ARMS[:1])
    found = compare_runs(run(), baseline, None)
    assert (found.only_a, found.only_b) == (("eagle3",), ())


@pytest.mark.parametrize(("measured", "says"), [((True, False), "B"), ((False, False), "A and B")])
def test_an_arm_that_a_run_never_measured_is_said_to_be_so_instead_of_invalid(measured, says):
    both = [run(), run()]
    for summary, has in zip(both, measured, strict=True):
        summary["arms"]["eagle3"]["points"] *= has
    found = {item.arm: item.notes for item in compare_runs(*both, None).arms}
    assert found == {"baseline": (), "eagle3": (f"not measured in {says}",)}


# -- gate ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scale", "noise", "boots", "state", "code"),
    [
        (1.0, 0.005, 3, "pass", None),
        (1.2, 0.005, 3, "pass", None),
        (0.9, 0.005, 3, "regression", 5),
        (0.985, 0.002, 3, "pass", None),  # worse, surely so, and allowed
        (0.97, 0.03, 3, "inconclusive", 6),
        (0.5, 0.005, 1, "inconclusive", 6),  # never from one boot
    ],
)
def test_the_gate_passes_fails_or_says_that_it_cannot_tell(scale, noise, boots, state, code):
    result = gate(run(scale, boots, noise), {"last-good": run(1.0, boots, noise, seed=9)}, RULE)
    assert result.state == state
    error = result.error()
    assert (error.exit_code if error else None) == code


def test_the_gate_says_how_many_boots_would_tell():
    result = gate(run(0.97, 3, 0.03), {"last-good": run(1.0, 3, 0.03, seed=9)}, RULE)
    eagle3 = next(item for item in result.arms if item.arm == "eagle3")
    assert eagle3.more_boots > 0
    assert f"{eagle3.more_boots} more boots an arm would show it" in eagle3.why


def test_a_latency_that_rises_is_a_drop():
    result = gate(run(0.9), {"last-good": run(seed=9)}, Gate(metric="tpot_p50", max_drop=0.03))
    eagle3 = next(item for item in result.arms if item.arm == "eagle3")
    assert eagle3.state == "regression"
    assert eagle3.low < eagle3.drop < eagle3.high
    assert eagle3.drop == pytest.approx(1 / 0.9 - 1, abs=0.02)


def test_unlike_set_ups_are_never_gated():
    unlike = differences(setup(), setup(facts={**FACTS, "host": "other"}), [], same_place=True)
    result = gate(run(0.5), {"last-good": run(seed=9)}, RULE, unlike)
    assert result.state == "inconclusive"
    assert result.error().details == ("host: blackwell-1 / other",)


def test_without_a_reference_nothing_is_claimed():
    assert gate(run(), {}, RULE).error().exit_code == 6


def test_an_arm_that_is_gone_does_not_pass_unseen():
    result = gate(summarise(points(3, arms=ARMS[:1]), arms=ARMS[:1]), {"last-good": run(seed=9)}, RULE)
    assert (result.state, result.arms[-1].arm) == ("inconclusive", "eagle3")


def test_a_crash_that_left_no_valid_point_does_not_pass():
    broken = run(invalid={("eagle3", c): ("no_output: none",) for c in (1, 2, 5, 10, 30, 70)})
    result = gate(broken, {"last-good": run(seed=9)}, RULE)
    assert next(item for item in result.arms if item.arm == "eagle3").state == "inconclusive"


def test_a_load_that_broke_does_not_pass_because_the_others_did_not():
    broken = run(invalid={("eagle3", 70): ("failed_requests: 280 of 280",)})
    eagle3 = gate(broken, {"last-good": run(seed=9)}, RULE).arms[1]
    assert eagle3.state == "inconclusive"
    assert eagle3.why.endswith("no valid point at concurrency 70, where the reference has one")
    assert gate(run(), {"last-good": broken}, RULE).state == "pass"  # the other way round nothing was lost


def test_a_load_that_no_boot_reached_does_not_pass_as_not_asked_for():
    """Each boot died before the last level: the run folder has no point of it at all."""
    reached = [p for p in points(3, 0.005, arms=ARMS[:2]) if p.concurrency != SWEEP[-1]]
    died, meant = (summarise(reached, arms=ARMS[:2], asked=asked) for asked in (SWEEP, SWEEP[:-1]))
    result = gate(died, {"last-good": run(seed=9)}, RULE)
    assert result.state == "inconclusive"
    assert all("no valid point at concurrency 70" in item.why for item in result.arms)
    assert gate(meant, {"last-good": run(seed=9)}, RULE).state == "pass"


def test_runs_that_vary_more_than_their_boots_widen_a_rolling_gate():
    """Nights differ by 5 %, boots of a night by 0.5 %: a night at -6 % is one of them, not a regression."""
    rng = random.Random(3)
    nights = {f"night-{i}": run(math.exp(rng.gauss(0, 0.05)), seed=20 + i) for i in range(6)}
    assert gate(run(0.94), {"night-0": run(1.0, seed=9)}, RULE).state == "regression"
    assert gate(run(0.94), nights, RULE).state == "inconclusive"
    assert gate(run(0.70), nights, RULE).state == "regression"


def quick_run(seed: int, noise: float = 0.02) -> dict:
    """What the gate reads of a summary, without the work of making one: two arms, three boots."""
    rng = random.Random(seed)

    def boots(arm: str, concurrency: int) -> list[dict]:
        values = [rate(arm, concurrency) * math.exp(rng.gauss(0, noise)) for _ in range(3)]
        return [{"boot": n, "valid": True, "metrics": {"output_tps": v}} for n, v in enumerate(values, 1)]

    def arm_points(arm: str) -> list[dict]:
        return [{"index": i, "concurrency": c, "boots": boots(arm, c)} for i, c in enumerate(SWEEP)]

    return {"asked": [*SWEEP], "arms": {arm: {"points": arm_points(arm)} for arm in ("baseline", "eagle3")}}


def test_equal_runs_are_called_a_regression_as_rarely_as_promised():
    states = [gate(quick_run(s), {"r": quick_run(-s)}, Gate(max_drop=0.0)).state for s in range(1, 501)]
    assert states.count("regression") / 500 <= 0.025 + 1.96 * math.sqrt(0.025 * 0.975 / 500)


def test_the_gates_result_is_plain_json():
    import json

    result = gate(run(0.9), {"last-good": run(seed=9)}, RULE)
    again = json.loads(json.dumps(gate_json(result), allow_nan=False))
    assert (again["schema"], again["state"], again["references"]) == (1, "regression", ["last-good"])
