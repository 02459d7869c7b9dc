"""The invented clock follows the figures that `timing.json` states, and answers do not depend on it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
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
)
from orchestrator.demo.fit import Measured, fit, fit_idle, fit_prefill, predicted_tps, read_points
from orchestrator.demo.fit import main as fit_main
from orchestrator.errors import UsageError

EXAMPLES = Path(__file__).resolve().parents[2] / "results" / "examples"
REAL = EXAMPLES / "h200-timing-0.5.11"
TAX = EXAMPLES / "h200-tax-0.5.11"
SHAPE = DraftShape(steps=3, topk=1, draft_tokens=4, worker="v2")
ARMS = {"none": None, "static": SHAPE}
FITTED = (1, 4, 16, 64)


def made(concurrency: int, timing: Timing, shape: DraftShape | None = None, accept: float = 1.0) -> Measured:
    """A point as a server with exactly these figures would give it."""
    step_ms = timing.plain_ms(concurrency) if shape is None else timing.speculative_ms(concurrency, shape)
    point = Measured(concurrency, 1.0, step_ms / accept / 1000, 192, 35, accept)
    return replace(point, output_tps=predicted_tps(point, timing, shape))


@pytest.mark.parametrize("arm", ARMS)
def test_its_figures_are_those_of_the_real_run(arm: str) -> None:
    points = read_points(REAL, arm)
    assert [point.concurrency for point in points] == [1, 2, 4, 8, 16, 32, 64]
    for point in points:
        assert predicted_tps(point, Timing.load(), ARMS[arm]) == pytest.approx(point.output_tps, rel=0.05)


@pytest.mark.parametrize("arm", ARMS)
def test_half_of_the_real_points_predict_all_of_them_within_15_percent(arm: str) -> None:
    halves = [[p for p in read_points(REAL, name) if p.concurrency in FITTED] for name in ARMS]
    fitted = fit(*halves, Timing.load())
    for point in read_points(REAL, arm):
        assert predicted_tps(point, fitted, ARMS[arm]) == pytest.approx(point.output_tps, rel=0.15)


def test_a_fit_finds_the_figures_that_made_the_points() -> None:
    truth = Timing.load()
    plain = [made(c, truth) for c in (1, 16, 64)]
    static = [made(c, truth, SHAPE, 2.0) for c in (1, 16, 64)]
    fitted = fit(plain, static, Timing.load())
    for batch in (1, 16, 64):
        assert fitted.plain_ms(batch) == pytest.approx(truth.plain_ms(batch), rel=1e-3)
        assert fitted.speculative_ms(batch, SHAPE) == pytest.approx(
            truth.speculative_ms(batch, SHAPE), rel=1e-3
        )
    assert fitted.prefill_ms(1000) == pytest.approx(truth.prefill_ms(1000), rel=1e-2)


def test_a_prefill_has_no_negative_part() -> None:
    ramp = [
        replace(made(c, Timing.load()), output_tps=c * 192 / (0.8 + 0.001 * c * c), tpot_s=0.004)
        for c in (1, 16, 64)
    ]
    assert fit_prefill(ramp)[0] == 0.0
    shrinking = [
        replace(p, output_tps=p.concurrency * 192 / (0.9 - 0.001 * p.concurrency), tpot_s=0.004) for p in ramp
    ]
    assert fit_prefill(shrinking)[1] == 0.0


def test_one_size_of_prefill_is_all_launch() -> None:
    point = made(16, Timing.load())
    assert fit_prefill([point, point]) == (pytest.approx(point.prefill_ms / 2), 0.0)


def test_a_server_that_could_speculate_and_does_not_gives_the_fallback_factor() -> None:
    plain = [made(c, Timing.load()) for c in (1, 16)]
    idle = [replace(point, tpot_s=point.tpot_s * 1.25) for point in plain]
    fitted = fit_idle(plain, idle, Timing.load())
    assert fitted.plain_ms(16, speculation_loaded=True) == pytest.approx(1.25 * Timing.load().plain_ms(16))
    with pytest.raises(UsageError, match="share no valid point"):
        fit_idle(plain, [made(2, Timing.load())], Timing.load())


def test_the_figures_are_what_the_command_makes_of_the_real_run(capsys: pytest.CaptureFixture[str]) -> None:
    arms = ["--plain", "none", "--speculative", "static", "--idle", str(TAX), "always-plain"]
    assert fit_main([str(REAL), *arms]) == 0
    made_anew, kept = json.loads(capsys.readouterr().out), json.loads(DEFAULT_FILE.read_text())
    for mode in ("plain", "speculative"):
        assert made_anew["step_ms"][mode]["points"] == kept["step_ms"][mode]["points"]
    for name in ("prefill_ms", "prefill_token_us", "fallback_factor"):
        assert made_anew[name]["value"] == kept[name]["value"]


def test_an_arm_that_the_run_lacks_is_named() -> None:
    with pytest.raises(UsageError, match=r"no arm eagle3; there are none, static, dynamic"):
        read_points(REAL, "eagle3")


def test_points_that_are_not_valid_are_not_fitted(tmp_path: Path) -> None:
    summary = json.loads((REAL / "summary.json").read_text())
    for point in summary["arms"]["none"]["points"]:
        point["valid"] = point["concurrency"] == 8
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "arms").symlink_to(REAL / "arms")
    assert [point.concurrency for point in read_points(tmp_path, "none")] == [8]


def test_speculation_wins_at_low_load_and_loses_at_high_load() -> None:
    timing = Timing.load()
    gain = {b: 2 * timing.plain_ms(b) / timing.speculative_ms(b, SHAPE) for b in (1, 8, 32, 64)}
    assert gain[1] > 1.2
    assert gain[8] > 1.1
    assert gain[32] < 0.9
    assert gain[64] < 0.7


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
def test_a_fixed_accept_length_is_met_in_the_mean_by_steps_of_neighbouring_whole_numbers(
    length: float,
) -> None:
    drafting = Drafting(SHAPE, 0.55, length)
    taken = [drafting.fixed(step) or 0 for step in range(1000)]
    assert sum(taken) / 1000 == pytest.approx(length, abs=1e-3)
    assert set(taken) <= {int(length), int(length) + 1}


@pytest.mark.parametrize(("asked", "given"), [(0.5, 1), (9.0, 4)])
def test_a_fixed_accept_length_is_held_within_what_one_step_can_give(asked: float, given: int) -> None:
    assert Drafting(SHAPE, 0.55, asked).fixed(7) == given


def test_steps_accept_the_mean_length_that_the_rate_promises() -> None:
    answer = Answer(token_ids("a prompt", 1000), 1000)
    position, steps = 1, 0
    while position < 40_000:
        position += answer.accepted(position, 0.55, 4)
        steps += 1
    assert position / steps == pytest.approx(1 + 0.55 + 0.55**2 + 0.55**3, rel=0.02)


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


def test_with_a_fixed_accept_length_a_batch_speculates_in_step_and_ends_together() -> None:
    async def run() -> float:
        scheduler, clock = _scheduler(Limits(64, 100_000, 8192), Drafting(SHAPE, 0.55, length=2.0))
        await _serve(scheduler, list(_requests(16, 101, [])))
        return clock.spent_ms

    timing = Timing.load()
    whole_ms = timing.prefill_ms(16 * 20) + 50 * timing.speculative_ms(16, SHAPE)
    assert asyncio.run(run()) == pytest.approx(whole_ms)


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
