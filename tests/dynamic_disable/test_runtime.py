"""The runtime against a scheduler and models that notice every misplaced token, on the code of five releases."""

from __future__ import annotations

import logging
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed: `make test-torch` runs these")

import torch
import world_v1
import world_v2
from fake_sglang import Release
from models import continuation

RELEASES = ("0.5.8", "0.5.9", "0.5.10.post1", "0.5.11", "0.5.12.post1")
pytestmark = [pytest.mark.torch, pytest.mark.wheels]


def crowd(world, steps: int = 150) -> None:
    """Requests join, finish, are aborted and retracted while the batch size swings around the threshold."""
    want = 0
    for step in range(steps):
        alive = len(world.running.reqs) if world.running else 0
        if step % 12 == 0:
            want = world.random.choice([1, 2, 3, 4, 6, 9])
        if alive + len(world.waiting) < want:
            world.add(1, return_logprob=world.random.random() < 0.2)
        if alive > want and world.random.random() < 0.5:
            world.abort()
        if world.random.random() < 0.03:
            world.retract()
        world.step()
    world.drain()
    world.check_counters()
    world.check_nothing_leaked()
    assert world.stats["plain_steps"] > 20
    assert world.stats["spec_steps"] > 20
    assert world.stats["transitions"] > 3
    assert len(world.done) > 20


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("sync", ["lazy", "step", "skip"])
@pytest.mark.parametrize("page_size", [1, 16])
def test_v2_gives_the_tokens_of_plain_decoding_whatever_joins_and_leaves(version, sync, page_size):
    for seed in range(2):
        crowd(world_v2.World(Release(version), sync=sync, seed=seed, page_size=page_size))


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("sync", ["lazy", "step", "skip"])
def test_v2_serves_requests_that_end_between_the_preparation_of_a_step_and_its_launch(version, sync):
    for seed in range(3):
        crowd(world_v2.World(Release(version), sync=sync, seed=seed, grammar=True))


def ending_as_it_resumes(world) -> None:
    """With threshold 2 and a grammar: the second request ends after the first batch of two is prepared."""
    world.add(3)
    for req, wanted in zip(world.waiting, (5, 6, 20), strict=True):
        req.wanted = wanted
    world.drain()
    assert world.stats["spec_steps"] > 0
    world.check_nothing_leaked()


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("sync", ["lazy", "skip"])
def test_v2_drafts_from_a_real_token_for_a_request_that_ended_just_before_speculation_resumes(version, sync):
    ending_as_it_resumes(world_v2.World(Release(version), threshold=2, sync=sync, grammar=True))


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("sync", ["step", "skip"])
@pytest.mark.parametrize("page_size", [1, 16])
def test_v1_gives_the_tokens_of_plain_decoding_whatever_joins_and_leaves(version, sync, page_size):
    world = world_v1.World(Release(version), sync=sync, page_size=page_size)
    want = 0
    for step in range(120):
        alive = len(world.running.reqs) if world.running else 0
        if step % 12 == 0:
            want = world.random.choice([1, 2, 3, 4, 6, 9])
        if alive + len(world.waiting) < want:
            world.add(1)
        if alive > want and world.random.random() < 0.5:
            world.random.choice(world.running.reqs).aborted = True
        world.step()
    world.drain()
    assert {name: world.stats[name] for name in world.counted} == world.counted
    assert not world.cache.owner
    assert world.stats["plain_steps"] > 20
    assert world.stats["spec_steps"] > 20
    assert world.stats["transitions"] > 3


@pytest.mark.parametrize("version", RELEASES)
def test_v1_leaves_an_empty_draft_input_when_all_requests_finish_in_one_plain_step(version):
    world = world_v1.World(Release(version))
    world.add(5)
    for req in world.waiting:
        req.wanted = 6
    world.drain()
    assert world.stats["plain_steps"] == 5
    assert len(world.finished) == 5


@pytest.mark.parametrize("stop_after", [3, 10])
def test_a_stop_token_ends_a_request_in_either_mode(stop_after):
    world = world_v1.World(Release("0.5.11"), threshold=2)
    world.add(4)
    for req in world.waiting:
        req.wanted = 60
        req.stop_token = continuation(req.prompt, stop_after)[-1]
    reqs = list(world.waiting)
    world.drain()
    for req in reqs:
        assert req.output_ids[-1] == req.stop_token
        assert len(req.output_ids) <= stop_after


def only_plain(world, requests: int = 5) -> None:
    world.add(requests)
    for req in world.waiting:
        req.wanted = 40
    for _ in range(20):
        world.step()


@pytest.mark.parametrize("sync", ["lazy", "step"])
def test_at_the_threshold_the_batch_speculates_and_one_above_it_does_not(sync):
    world = world_v2.World(Release("0.5.11"), threshold=3, sync=sync)
    only_plain(world, 3)
    assert (world.stats["plain_steps"], world.stats["spec_steps"] > 0) == (0, True)
    world = world_v2.World(Release("0.5.11"), threshold=2, sync=sync)
    only_plain(world, 3)
    assert (world.stats["spec_steps"], world.stats["plain_steps"] > 0) == (0, True)


def test_a_lazy_draft_is_not_run_at_all_for_requests_that_finish_while_steps_are_plain():
    world = world_v2.World(Release("0.5.11"), threshold=2, sync="lazy", window=100)
    world.add(6)
    for req in world.waiting:
        req.wanted = 30
    world.drain()
    assert world.stats["plain_steps"] > 25
    assert world.stats["catchup_extends"] == 0


def test_a_resume_costs_one_extend_of_varying_lengths_over_what_is_missing():
    world = world_v2.World(Release("0.5.11"), threshold=2, sync="lazy", window=100)
    world.add(4)
    for req, wanted in zip(world.waiting, (5, 9, 60, 60), strict=True):
        req.wanted = wanted
    while world.stats["spec_steps"] == 0:
        world.step()
    (lengths,) = world.worker.draft_worker.draft_runner.extends
    assert lengths == [world.stats["plain_steps"]] * 2
    world.drain()
    assert world.stats["catchup_extends"] == 1


def test_a_full_ring_is_caught_up_but_for_its_newest_place():
    world = world_v2.World(Release("0.5.11"), threshold=2, sync="lazy", window=8)
    only_plain(world, 3)
    extends = world.worker.draft_worker.draft_runner.extends
    assert extends
    assert all(length == 7 for lengths in extends for length in lengths)
    assert all(sum(lengths) <= 20 for lengths in extends)  # EXTEND_TOKENS of this world


def test_with_threshold_0_nothing_is_kept_and_no_draft_runs():
    for sync in ("lazy", "step"):
        world = world_v2.World(Release("0.5.11"), threshold=0, sync=sync)
        calls = []
        world.worker.draft_worker._draft_extend_for_decode = lambda *a, c=calls: c.append(a)
        only_plain(world)
        assert world.stats["spec_steps"] == 0
        assert world.stats["catchup_extends"] == 0
        assert not calls


@pytest.mark.parametrize("sync", ["lazy", "step", "skip"])
def test_a_threshold_raised_from_0_speculates_safely_on_requests_that_are_running(sync):
    world = world_v2.World(Release("0.5.11"), threshold=0, sync=sync, switchable=True)
    only_plain(world, 3)
    world.tainted = frozenset(world.running.reqs)
    assert world.dynspec.switch.set_threshold(8) is None
    for _ in range(5):
        world.add(1)
        world.step()
    world.drain()
    assert world.stats["spec_steps"] > 3
    world.check_counters()


def test_hidden_states_stay_on_the_device_unless_a_request_asked_for_them():
    world = world_v2.World(Release("0.5.11"), threshold=1)
    world.add(2, return_hidden_states=True)
    world.add(2)
    world.drain()  # the world compares each plain result
    assert world.stats["plain_steps"] > 0


def test_a_plan_stream_is_refused_where_it_does_not_wait_for_the_graph_before():
    world = world_v2.World(Release("0.5.11"))
    check = sys.modules[type(world.dynspec).__module__]._check_plan_stream

    class Before:
        plan_stream: object = "a stream"

        def forward_batch_generation(self, batch):
            return batch

    class Since(Before):
        def forward_batch_generation(self, batch):
            self._draft_done_event = None
            return batch

    check(Since())
    with pytest.raises(ValueError, match="SGLANG_ENABLE_OVERLAP_PLAN_STREAM before"):
        check(Before())
    Before.plan_stream = None
    check(Before())


def test_log_probabilities_come_one_per_token_through_both_modes():
    world = world_v2.World(Release("0.5.11"), threshold=2)
    world.add(5, return_logprob=True)
    world.drain()
    for req in world.done:
        assert [-int(v) for v in req.logprobs[: len(req.output_ids)]] == req.output_ids
    assert world.stats["plain_steps"] > 0


def test_v1_log_probabilities_come_one_per_token_with_top_and_chosen_ids():
    world = world_v1.World(Release("0.5.11"), threshold=0)
    world.add(3, return_logprob=True)
    reqs = list(world.waiting)
    world.drain()
    for req in reqs:
        assert req.output_token_logprobs_idx == req.output_ids[1:]
        assert [-int(v) for v in req.output_token_logprobs_val] == req.output_ids[1:]


def test_plain_graphs_are_captured_above_the_threshold_only():
    world = world_v2.World(Release("0.5.11"), threshold=3, graphs=(1, 2, 4, 8))
    assert world.stats["plain_graph_bs"] == [4, 8]


def test_a_switchable_server_has_plain_graphs_for_every_size():
    world = world_v2.World(Release("0.5.11"), threshold=3, switchable=True, graphs=(1, 2, 4, 8))
    assert world.stats["plain_graph_bs"] == [1, 2, 4, 8]


def test_without_cuda_graphs_plain_steps_run_eagerly_and_lazy_becomes_step():
    world = world_v2.World(Release("0.5.11"), graphs=())
    world.worker.target_worker.model_runner.graph_runner.capture_bs = [0]
    world.worker.draft_worker.cuda_graph_runner_for_draft_extend.tokens_per_request = 4
    assert world.stats["draft_sync"] == "step"


def test_the_ring_takes_the_memory_that_it_says(caplog):
    from sglang.srt.speculative.dynspec import draft

    assert draft.window_for(rows=65, width=3 * 4096, item_bytes=2, budget=draft.RING_BYTES) == 125
    ring = draft.Ring.like(5, 7, torch.zeros((1, 3)))
    assert (ring.hidden.shape, ring.tokens.shape) == ((5, 7, 3), (5, 7))


def test_too_many_request_slots_for_the_ring_fall_back_to_step_and_say_so(caplog):
    world = world_v2.World(Release("0.5.11"), window=0)
    assert world.stats["draft_sync"] == "step"
    assert "lower --max-running-requests" in caplog.text


def test_the_start_up_line_and_the_transitions_are_logged_in_their_documented_form(caplog):
    with caplog.at_level(logging.INFO):
        world = world_v2.World(Release("0.5.11"), threshold=3)
        crowd(world)
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("dynspec: ")]
    ready = "dynspec: ready rank=0 worker=v2 threshold=3 draft_sync=lazy window=9 switch=off graphs=[4, 8]"
    assert ready in lines
    moves = [line for line in lines if line.startswith("dynspec: speculation ")]
    assert len(moves) == world.stats["transitions"]
    assert moves[0].startswith("dynspec: speculation off batch=")
    assert moves[0].endswith(" threshold=3")


def test_the_counters_are_what_server_info_shows():
    world = world_v2.World(Release("0.5.11"))
    assert world.release.server_args.dynspec_stats is world.stats
    assert all(isinstance(v, int | float | str | bool | list | None) for v in world.stats.values())


@pytest.mark.parametrize("version", ["0.5.8", "0.5.11", "0.5.12.post1"])
def test_the_accept_length_is_of_speculative_steps_alone(version):
    world = world_v2.World(Release(version), threshold=2)
    crowd(world)
    stats = world.stats
    assert stats["accept_length"] == stats["spec_tokens"] / stats["spec_reqs"]
    assert stats["accept_length"] > 2
