"""Plans: tables in tests/plans say what is refused and why, what is noted, and every step in order."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import errors
from orchestrator.loadgen.pacing import allowed_in_flight
from orchestrator.loadgen.spec import Load
from orchestrator.model.experiment import Arm, SecretRef
from orchestrator.model.plan import (
    ApplyEdits,
    FreeGpus,
    Guard,
    RunPoint,
    Smoke,
    StartServer,
    StopServer,
    Unlock,
)
from orchestrator.path_lists import below, few
from orchestrator.plan import Done, build_plan, refuse_locked, render_plan
from orchestrator.plan.order import boot_order, canary_concurrency, risk_order
from orchestrator.plan.render import undo_words
from tests.plan_cases import BANNER, experiment, facts, patch_sets, plan_of, table


def rows(name):
    return pytest.mark.parametrize("row", table(name), ids=lambda row: row["case"])


@rows("refusals.yaml")
def test_refuses_with_every_reason(row):
    with pytest.raises(errors.DynspecError) as caught:
        plan_of(row)
    assert type(caught.value).__name__ == row["raises"]
    assert [caught.value.message, *caught.value.details] == row["says"]
    if "help" in row:
        assert caught.value.help == row["help"]


@rows("notes.yaml")
def test_notes_what_does_not_stop_it(row):
    assert list(plan_of(row).warnings) == row["notes"]


def step_line(step):
    words = [step.phase, step.text, *([undo_words(step.undo)] if step.undo is not None else [])]
    return " | ".join(words)


@rows("steps.yaml")
def test_steps_stand_in_the_contracts_order_with_their_undo(row):
    assert [step_line(step) for step in plan_of(row).steps] == row["steps"]


@rows("canaries.yaml")
def test_the_canary_tries_around_the_threshold(row):
    arm = Arm("a", {"speculative-algorithm": "EAGLE3", **row["args"]}, {})
    assert list(canary_concurrency(arm, tuple(row["sweep"]))) == row["tries"]


def test_an_arm_that_does_not_speculate_has_no_canary():
    assert canary_concurrency(Arm("a", {"speculative-disable-batch-threshold": 5}, {}), (1, 70)) == ()


def test_the_plan_is_pure():
    assert plan_of({}) == plan_of({})


def test_refusals_carry_the_contracts_exit_codes():
    assert (errors.NodeBusy.exit_code, errors.DoesNotFit.exit_code) == (3, 4)


# -- order -----------------------------------------------------------------------------------------------------


def arms(*patches_and_speculation):
    return tuple(
        Arm(str(index), {"speculative-algorithm": "EAGLE3"} if speculates else {}, {}, ("p",) * patches)
        for index, (patches, speculates) in enumerate(patches_and_speculation)
    )


def test_most_patches_go_first_then_speculation_then_the_order_of_the_file():
    found = risk_order(arms((0, False), (0, True), (1, False), (2, True), (1, True), (0, True)))
    assert [arm.name for arm in found] == ["3", "4", "2", "1", "5", "0"]


def test_boots_go_to_and_fro():
    found = [(arm.name, boot) for arm, boot in boot_order(arms((0, False), (0, True)), 3)]
    assert found == [("1", 1), ("0", 1), ("0", 2), ("1", 2), ("1", 3), ("0", 3)]


@given(st.integers(1, 5), st.integers(1, 6))
def test_over_an_even_number_of_boots_no_arm_runs_earlier_than_another(count, half):
    order = [arm.name for arm, _ in boot_order(arms(*[(0, False)] * count), 2 * half)]
    places = {name: sum(place for place, other in enumerate(order) if other == name) for name in order}
    assert len(set(places.values())) == 1
    assert set(Counter(order).values()) == {2 * half}


# -- invariants over many plans ----------------------------------------------------------------------------------


@given(
    repeats=st.integers(1, 3),
    sweep=st.lists(st.integers(1, 100), min_size=1, max_size=4),
    done=st.sets(
        st.tuples(st.sampled_from(["baseline", "eagle3", "banner"]), st.integers(1, 3), st.integers(0, 3))
    ),
)
@settings(deadline=None, max_examples=60)
def test_every_point_runs_once_and_every_start_is_undone(repeats, sweep, done):
    words = [f"sweep.repeats={repeats}", f"sweep.concurrency={sweep}"]
    plan = build_plan(experiment(words), facts({}), patch_sets(BANNER), done=Done(frozenset(done)))
    points = [
        (step.do.arm, step.do.boot, step.do.index) for step in plan.steps if isinstance(step.do, RunPoint)
    ]
    wanted = {
        (arm, boot, index)
        for arm in ("baseline", "eagle3", "banner")
        for boot in range(1, repeats + 1)
        for index in range(len(sweep))
    }
    assert len(points) == len(set(points))
    assert set(points) == wanted - done
    effects = [type(step.do) for step in plan.steps]
    assert effects.count(StartServer) == effects.count(StopServer) == len(plan.boots)
    assert effects.count(Guard) == effects.count(Unlock) == (1 if points else 0)
    running = False
    for step in plan.steps:
        running = (running or isinstance(step.do, StartServer)) and not isinstance(step.do, StopServer)
        assert not (running and isinstance(step.do, ApplyEdits | Smoke | FreeGpus)), (
            "a served tree is left alone"
        )
        if isinstance(step.do, StartServer):
            assert isinstance(step.undo, StopServer)


def test_the_tree_of_each_boot_holds_exactly_its_arms_patches():
    plan = plan_of({})
    tree, boots = None, []
    for step in plan.steps:
        if isinstance(step.do, ApplyEdits):
            tree = step.do.patch_set.name
        if isinstance(step.do, StartServer):
            boots.append((step.do.arm, tree))
    assert boots == [(boot.arm, boot.patch_set) for boot in plan.boots]
    assert dict(boots) == {"banner": "spec_banner", "eagle3": "original", "baseline": "original"}


# -- what a step carries -----------------------------------------------------------------------------------------


def launch_of(plan):
    return next(step.do.launch for step in plan.steps if isinstance(step.do, StartServer))


def test_each_side_of_a_stepping_load_is_half_of_its_period_in_the_plan_as_in_the_load():
    row = {"set": ["sweep.load={straddle: {around: 4, period: 3s}}", "sweep.concurrency=[8]"]}
    (text,) = {step.text for step in plan_of(row).steps if step.phase == "points"}
    assert text == "measure steps across 4, each side 1.5 s"
    load = Load("straddle", low=4, high=8, period_s=3.0)
    assert [allowed_in_flight(load, None, at_s) for at_s in (0.0, 1.4, 1.6, 2.9, 3.1)] == [4, 4, 8, 8, 4]


def test_a_launch_is_words_with_the_nodes_home_and_the_chosen_gpus():
    launch = launch_of(plan_of({"options": {"arms": ["baseline"]}, "set": ["node.gpus=[1]"]}))
    assert launch.argv[:3] == ("/home/bob/venv/bin/python3", "-m", "sglang.launch_server")
    assert launch.argv[-2:] == ("--port", "30000")
    assert launch.cwd == "/home/bob/serve"
    assert launch.env == {"CUDA_VISIBLE_DEVICES": "1"}


def test_a_secret_stays_a_reference_and_its_name_is_what_is_shown():
    plan = plan_of({"set": ["server.env.HF_TOKEN={from_env: MY_TOKEN}"], "options": {"arms": ["baseline"]}})
    assert launch_of(plan).env == {"HF_TOKEN": SecretRef("MY_TOKEN")}
    assert any("HF_TOKEN=${MY_TOKEN} /home/bob" in line for line in render_plan(plan, facts({})))


def test_all_without_consent_reaches_the_node_as_own():
    words = ["node.free=all"]
    frees = [step.do.policy for step in plan_of({"set": words}).steps if isinstance(step.do, FreeGpus)]
    assert set(frees) == {"own"}
    frees = [
        step.do.policy for step in plan_of({"set": words, "options": {"allow_kill": True}}).steps
        if isinstance(step.do, FreeGpus)
    ]  # fmt: skip
    assert set(frees) == {"all"}


# -- GPU time ------------------------------------------------------------------------------------------------------


def test_gpu_time_is_unknown_until_boots_were_timed():
    plan = plan_of({"options": {"boot_minutes": {"baseline": 5.0}}})
    assert plan.gpu_minutes is None
    assert plan.gpu_minutes_why == "no boot of banner, eagle3 has been timed on this node"


def test_gpu_time_is_boots_times_gpus():
    plan = plan_of({"options": {"boot_minutes": {"baseline": 5.0}, "arms": ["baseline"]}})
    assert plan.gpu_minutes == pytest.approx(2 * 5.0 * 2)


# -- on screen -------------------------------------------------------------------------------------------------------


def test_the_rendered_plan_names_what_is_stopped_changed_and_started():
    holder = {
        "pid": 77,
        "start_time": 1,
        "user": "alice",
        "uid": 1001,
        "command": "train",
        "age_s": 60,
        "gpu": "GPU-aaa",
    }
    changes = {"holders": [holder]}
    plan = plan_of({"set": ["node.free=all"], "facts": changes, "options": {"allow_kill": True}})
    lines = render_plan(plan, facts(changes))
    assert (
        "stops    pid 77, user alice, memory unknown, 1m old: train (for good: it is not started again)"
        in lines
    )
    files = lines.index("changes  2 files below /home/bob/venv/sglang for spec_banner (put back at the end):")
    assert lines[files + 1] == "         srt/server_args.py, srt/speculative/eagle_worker_v2.py"
    assert (
        "starts   6 servers on port 30000, one after the other: banner #1, eagle3 #1, baseline #1, baseline #2, "
        "eagle3 #2, banner #2"
    ) in lines
    assert (
        "arm      eagle3: worker v2, since overlap is on and topk is 1: v2 is the default from 0.5.11 on"
        in lines
    )
    undone = [line for line in lines if "[undo: " in line]
    assert len(undone) == sum(step.undo is not None for step in plan.steps)


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (1, "f1"),
        (4, "f1, f2, f3, f4"),
        (5, "f1, f2, f3 and 2 more (ask)"),
        (19, "f1, f2, f3 and 16 more (ask)"),
    ],
)
def test_a_long_list_of_files_is_told_by_its_first_and_their_number(count, shown):
    names = [f"f{n}" for n in range(1, count + 1)]
    assert few(names, where="ask") == shown
    told = below([f"/x/sglang/{name}" for name in names], where="ask")
    assert told == ("/x/sglang/f1" if count == 1 else f"{count} files below /x/sglang: {shown}")


def test_the_rendered_plan_of_a_free_node_says_that_nothing_is_stopped_or_changed():
    lines = render_plan(plan_of({"options": {"arms": ["baseline"]}}), facts({}))
    assert "stops    nothing that runs now" in lines
    assert "changes  no file" in lines


def test_a_lock_can_be_asked_for_before_files_are_compared():
    lock = {"run_id": "r1", "user": "a", "controller": "c", "guardian_pid": 1, "since_utc": "t", "state": "live",
            "lease_left_s": 1}  # fmt: skip
    with pytest.raises(errors.NodeBusy):
        refuse_locked(facts({"lock": lock}), experiment([]).node)
    refuse_locked(facts({"lock": lock}), experiment([]).node, own_run="r1")
    refuse_locked(facts({"lock": lock}), experiment([]).node, may_wait=True)
    refuse_locked(facts({"lock": lock | {"state": "orphaned"}}), experiment([]).node)


def test_a_finished_run_needs_nothing_of_a_busy_node():
    row = {"options": {"arms": ["baseline"]}, "facts": {"port": {"port": 30000, "in_use": True}}}
    with pytest.raises(errors.NodeBusy):
        plan_of(row)
    row["options"]["done"] = [["baseline", boot, index] for boot in (1, 2) for index in (0, 1)]
    assert [step.phase for step in plan_of(row).steps] == ["report"]
