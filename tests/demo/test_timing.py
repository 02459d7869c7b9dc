"""The invented clock follows the figures that `timing.json` states, and answers do not depend on it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.demo.engine.clock import Pacer
from orchestrator.demo.engine.faults import Faults
from orchestrator.demo.engine.prefix import PrefixCache
from orchestrator.demo.engine.scheduler import Drafting, Limits, Scheduler
from orchestrator.demo.engine.sequence import Request
from orchestrator.demo.engine.text import EOS, Answer, decode, token_ids
from orchestrator.demo.engine.timing import (
    DEFAULT_FILE,
    DraftShape,
    Timing,
    interpolate,
    mean_length,
    rate_for_length,
)
from orchestrator.demo.fit import Measured, fit, predicted_tps, step_ms
from orchestrator.demo.fit import main as fit_main

SHAPE = DraftShape(steps=3, topk=1, draft_tokens=4, worker="v2")
MEASURED_PLAIN = {1: 218, 2: 436, 8: 1653, 16: 2995, 32: 6023, 64: 10982}
MEASURED_EAGLE3 = {1: 288, 2: 587, 4: 1106, 8: 1954, 16: 2590, 32: 4284, 64: 6145}
PLAIN = [Measured(c, tps, 192, 35) for c, tps in MEASURED_PLAIN.items()]
EAGLE3 = [Measured(c, tps, 192, 35, 2.0) for c, tps in MEASURED_EAGLE3.items()]


@pytest.mark.parametrize("point", PLAIN, ids=lambda p: f"c{p.concurrency}")
def test_plain_steps_give_the_measured_throughput(point: Measured) -> None:
    assert predicted_tps(point, Timing.load()) == pytest.approx(point.output_tps, rel=0.01)


@pytest.mark.parametrize("point", EAGLE3, ids=lambda p: f"c{p.concurrency}")
def test_speculative_steps_give_the_measured_throughput_at_accept_length_2(point: Measured) -> None:
    assert predicted_tps(point, Timing.load(), SHAPE) == pytest.approx(point.output_tps, rel=0.01)


@pytest.mark.parametrize(("points", "shape"), [(PLAIN, None), (EAGLE3, SHAPE)], ids=["plain", "eagle3"])
def test_half_of_the_points_predict_the_others_within_15_percent(
    points: list[Measured], shape: DraftShape | None
) -> None:
    half = points[::2]
    fitted = fit(half if shape is None else [], half if shape else [], Timing.load())
    for point in points[1::2]:
        assert predicted_tps(point, fitted, shape) == pytest.approx(point.output_tps, rel=0.15)


def test_a_fit_finds_the_step_times_that_made_the_points() -> None:
    truth = Timing.load()
    made = [Measured(c, predicted_tps(Measured(c, 1, 100, 50), truth), 100, 50) for c in (1, 16, 64)]
    assert [step_ms(point, truth) for point in made] == pytest.approx(
        [truth.plain_ms(c) for c in (1, 16, 64)]
    )


def test_a_run_folder_becomes_a_timing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def metrics(tps: float, accept: float | None) -> dict[str, object]:
        return {"output_tps": {"value": tps}, "accept_length": {"value": accept} if accept else None}

    arms = {"baseline": (PLAIN, None), "eagle3": (EAGLE3, 2.0)}
    summary: dict[str, dict[str, object]] = {"arms": {}}
    for arm, (points, accept) in arms.items():
        entries = []
        for index, point in enumerate(points):
            entries.append(
                {
                    "index": index,
                    "concurrency": point.concurrency,
                    "metrics": metrics(point.output_tps, accept),
                }
            )
            load = {"phases": {"load": {"ok": 4}}, "tokens": {"output": 4 * 192, "prompt": 4 * 35}}
            file = tmp_path / "arms" / arm / "boot-1" / f"point-{index:02d}-c{point.concurrency}.meta.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps({"load": {"summary": load}}))
        summary["arms"][arm] = {"points": entries}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert fit_main([str(tmp_path), "--plain", "baseline", "--speculative", "eagle3"]) == 0
    fitted = Timing(json.loads(capsys.readouterr().out))
    for batch in MEASURED_EAGLE3:
        assert fitted.speculative_ms(batch, SHAPE) == pytest.approx(
            Timing.load().speculative_ms(batch, SHAPE), rel=0.01
        )


def test_speculation_wins_at_low_load_and_loses_at_high_load() -> None:
    timing = Timing.load()
    gain = {b: 2 * timing.plain_ms(b) / timing.speculative_ms(b, SHAPE) for b in (1, 8, 16, 64)}
    assert gain[1] > 1.2
    assert gain[8] > 1.1
    assert gain[16] < 0.95
    assert gain[64] < 0.6


def test_more_draft_tokens_and_the_worker_without_overlap_cost_time() -> None:
    timing = Timing.load()
    wide = DraftShape(steps=3, topk=4, draft_tokens=16, worker="v2")
    slow = DraftShape(steps=3, topk=1, draft_tokens=4, worker="v1")
    assert timing.speculative_ms(8, wide) > timing.speculative_ms(8, SHAPE)
    assert timing.speculative_ms(8, slow) > timing.speculative_ms(8, SHAPE)


def test_every_figure_states_its_source() -> None:
    parameters = json.loads(DEFAULT_FILE.read_text())
    blocks = [*parameters["step_ms"].values()]
    blocks += [value for key, value in parameters.items() if isinstance(value, dict) and key != "step_ms"]
    assert len(blocks) > 8
    assert all(block["source"] for block in blocks)


@pytest.mark.parametrize(("x", "y"), [(0, 5), (1, 5), (2, 6), (3, 7), (5, 9), (9, 13)])
def test_between_points_it_is_linear_and_beyond_them_the_slope_goes_on(x: float, y: float) -> None:
    assert interpolate([[1, 5], [3, 7], [5, 9]], x) == pytest.approx(y)


@pytest.mark.parametrize("length", [1.0, 1.5, 2.0, 3.4, 4.0])
def test_an_accept_rate_is_found_for_a_mean_accept_length(length: float) -> None:
    assert mean_length(rate_for_length(length, 3), 3) == pytest.approx(length, abs=1e-6)


def test_steps_accept_the_mean_length_that_the_rate_promises() -> None:
    answer = Answer(token_ids("a prompt", 1000), 1000)
    position, steps = 1, 0
    while position < 40_000:
        position += answer.accepted(position, 0.55, 4)
        steps += 1
    assert position / steps == pytest.approx(mean_length(0.55, 3), rel=0.02)


def test_text_is_the_join_of_the_texts_of_tokens() -> None:
    answer = Answer([1, 2, 3], 5000)
    ids = [answer.token(i) for i in range(40)]
    assert decode(ids) == "".join(decode([token]) for token in ids)
    assert decode([EOS]) == ""
    assert [Answer([1, 2, 3], 5000).token(i) for i in range(40)] == ids
    assert [Answer([1, 2, 4], 5000).token(i) for i in range(40)] != ids


def test_the_prefix_cache_knows_leading_tokens_only_and_forgets_the_oldest() -> None:
    cache = PrefixCache(capacity=10)
    cache.insert(range(100, 108))
    assert cache.match([100, 101, 102, 9, 9]) == 3
    assert cache.match(list(range(100, 108))) == 7, "the last token is always computed"
    assert cache.match([101, 102]) == 0
    cache.insert(range(200, 208))
    assert len(cache) == 10
    assert cache.match([100, 101, 102]) == 0
    cache.clear()
    assert cache.match(list(range(200, 208))) == 0


class _Clock(Pacer):
    """Adds up what would be waited for."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.spent_ms = 0.0

    async def spend(self, ms: float) -> None:
        self.spent_ms += ms
        await asyncio.sleep(0)


def _scheduler(limits: Limits, drafting: Drafting | None = None) -> tuple[Scheduler, _Clock]:
    clock = _Clock()
    cache = PrefixCache(100_000, enabled=False)
    log = logging.getLogger("test")
    scheduler = Scheduler(
        limits=limits,
        timing=Timing.load(),
        pacer=clock,
        cache=cache,
        faults=Faults(),
        log=log,
        drafting=drafting,
    )
    return scheduler, clock


async def _serve(scheduler: Scheduler, requests: list[Request]) -> None:
    task = asyncio.ensure_future(scheduler.run())
    for request in requests:
        scheduler.submit(request)
    while not all(request.finished for request in requests):
        await asyncio.sleep(0)
    task.cancel()


def _requests(count: int, tokens: int, widths: list[int]) -> Iterator[Request]:
    for index in range(count):
        prompt = [index + 10] * 20
        yield Request(
            f"r{index}", prompt, tokens, True, Answer(prompt, 1000), lambda r: widths.append(len(r.output))
        )


def test_a_batch_of_16_takes_the_time_of_its_steps() -> None:
    async def run() -> float:
        scheduler, clock = _scheduler(Limits(running=64, tokens=100_000, prefill_tokens=8192))
        await _serve(scheduler, list(_requests(16, 101, [])))
        return clock.spent_ms

    timing = Timing.load()
    assert asyncio.run(run()) == pytest.approx(timing.prefill_ms(16 * 20) + 100 * timing.plain_ms(16))


def test_speculation_gives_the_same_tokens_in_fewer_steps() -> None:
    async def run(drafting: Drafting | None) -> tuple[list[list[int]], float]:
        scheduler, clock = _scheduler(Limits(64, 100_000, 8192), drafting)
        requests = list(_requests(2, 200, []))
        await _serve(scheduler, requests)
        return [request.output for request in requests], clock.spent_ms

    plain, plain_ms = asyncio.run(run(None))
    fast, fast_ms = asyncio.run(run(Drafting(SHAPE, 0.55)))
    assert fast == plain
    assert fast_ms < plain_ms


def test_no_more_requests_run_than_the_limit_and_all_are_served() -> None:
    async def run() -> int:
        scheduler, _ = _scheduler(Limits(running=3, tokens=100_000, prefill_tokens=8192))
        most = 0
        requests = list(_requests(10, 20, []))
        for request in requests:

            def watch(_: Request) -> None:
                nonlocal most
                most = max(most, len(scheduler.running))

            request.emit = watch
        await _serve(scheduler, requests)
        return most

    assert asyncio.run(run()) == 3


def test_when_the_kv_cache_is_full_the_newest_request_waits_and_loses_nothing() -> None:
    async def run() -> list[Request]:
        scheduler, _ = _scheduler(Limits(running=8, tokens=100, prefill_tokens=8192))
        requests = list(_requests(3, 40, []))
        await _serve(scheduler, requests)
        return requests

    requests = asyncio.run(run())
    assert sum(request.retractions for request in requests) > 0
    assert [len(request.output) for request in requests] == [40, 40, 40]


def test_a_prompt_that_can_never_fit_is_aborted_with_a_reason() -> None:
    async def run() -> Request:
        scheduler, _ = _scheduler(Limits(running=8, tokens=10, prefill_tokens=8192))
        (request,) = _requests(1, 4, [])
        await _serve(scheduler, [request])
        return request

    finish = asyncio.run(run()).finish
    assert finish is not None
    assert finish["type"] == "abort"
    assert "does not fit the KV cache" in finish["message"]
