"""Continuous batching on simulated time: admit, prefill, then decode steps, plain or speculative."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from .clock import Pacer
from .counters import Counters
from .faults import Faults
from .prefix import PrefixCache
from .sequence import Request
from .timing import DraftShape, Timing


class SchedulerCrash(Exception):
    """A scripted death of the scheduler; the message is the traceback to print."""


@dataclass(frozen=True)
class Limits:
    """`running`: most requests at once; `tokens`: KV cache slots; `prefill_tokens`: most new tokens a prefill."""

    running: int
    tokens: int
    prefill_tokens: int
    log_interval: int = 40


@dataclass(frozen=True)
class Drafting:
    """How a speculating server drafts. `rate`: chance that a draft token is right.

    `length`: with it, acceptance is not drawn by request; every request of a step takes the same number of tokens, the
    number of one step or the next whole one, and `length` in the mean (SGLANG_SIMULATE_ACC_LEN, "match-expected").
    """

    shape: DraftShape
    rate: float
    length: float | None = None

    def fixed(self, step: int) -> int | None:
        """Tokens that each request takes in the given step, counted from 0; None: as its own drafts turn out."""
        if self.length is None:
            return None
        length = min(max(self.length, 1.0), float(self.shape.longest))
        return int((step + 1) * length) - int(step * length)


class Chooser(Protocol):
    """Says step by step whether to speculate. `counters`: what `internal_states` shows of it, if anything."""

    @property
    def counters(self) -> dict[str, Any] | None: ...

    def decide(self, batch: int) -> bool: ...

    def count(self, batch: int, tokens: int, speculated: bool) -> None: ...


class Scheduler:
    """`drafting` None: a server without speculation. `fallback` None: it speculates at every batch size."""

    def __init__(
        self,
        *,
        limits: Limits,
        timing: Timing,
        pacer: Pacer,
        cache: PrefixCache,
        faults: Faults,
        log: logging.Logger,
        drafting: Drafting | None = None,
        fallback: Chooser | None = None,
    ) -> None:
        self.limits = limits
        self.pacer = pacer
        self.cache = cache
        self.drafting = drafting
        self.fallback = fallback
        self.counters = Counters()
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._timing = timing
        self._faults = faults
        self._log = log
        self._verified = 0
        self._wake = asyncio.Event()

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    @property
    def used_tokens(self) -> int:
        return sum(request.length for request in self.running)

    def submit(self, request: Request) -> None:
        self.waiting.append(request)
        self._wake.set()

    def abort(self, match: Callable[[Request], bool]) -> None:
        """Finish matching requests: waiting ones at once, running ones at their next step, as SGLang does."""
        for request in [item for item in self.waiting if match(item)]:
            self.waiting.remove(request)
            request.abort()
            self._finish(request)
        for request in self.running:
            if match(request):
                request.abort()

    def flush(self) -> bool:
        """Drop the prefix cache and the accept sums; refused while any request is waiting or running."""
        if not self.idle:
            self._log.warning(
                "Cache not flushed because there are pending requests. #queue-req: %d, #running-req: %d",
                len(self.waiting),
                len(self.running),
            )
            return False
        self.cache.clear()
        self.counters.reset()
        self._log.info("Cache flushed successfully!")
        return True

    async def run(self) -> None:
        """Until cancelled. Raises SchedulerCrash when a fault says so."""
        while True:
            if self.idle or self._faults.has("hang"):
                self._wake.clear()
                await self._wake.wait()
                self.pacer.restart()
                continue
            admitted = self._admit()
            if admitted:
                await self._prefill(admitted)
            if self.running:
                await self._decode()

    def _admit(self) -> list[Request]:
        """Requests that fit: running limit, KV cache with room for the next steps, prefill budget."""
        admitted: list[Request] = []
        used = self.used_tokens
        budget = self.limits.prefill_tokens
        while self.waiting and len(self.running) + len(admitted) < self.limits.running:
            request = self.waiting[0]
            new = request.length - self.cache.match(request.prompt)
            if used + request.length + 1 > self.limits.tokens or (admitted and new > budget):
                break
            self.waiting.popleft()
            admitted.append(request)
            used += request.length + 1
            budget -= new
        if not admitted and not self.running:
            self._drop_unservable()
        return admitted

    def _drop_unservable(self) -> None:
        request = self.waiting.popleft()
        request.abort(f"The input of {request.length} tokens does not fit the KV cache.")
        self._finish(request)

    async def _prefill(self, admitted: list[Request]) -> None:
        cached = new = 0
        for request in admitted:
            request.cached_tokens = self.cache.match(request.prompt)
            cached += request.cached_tokens
            new += request.length - request.cached_tokens
            self.cache.insert(request.prompt)
        self._log.info(
            "Prefill batch, #new-seq: %d, #new-token: %d, #cached-token: %d, token usage: %.2f, "
            "#running-req: %d, #queue-req: %d, #pending-token: 0, cuda graph: False, "
            "input throughput (token/s): %.2f",
            *(len(admitted), new, cached, self.used_tokens / self.limits.tokens),
            *(len(self.running), len(self.waiting)),
            new * 1000 * self.pacer.speed / self._timing.prefill_ms(new),
        )
        await self.pacer.spend(self._timing.prefill_ms(new))
        for request in admitted:
            self.running.append(request)
            request.grow(1)
        self._report(admitted)

    async def _decode(self) -> None:
        self._make_room()
        batch = list(self.running)
        if not batch:
            return
        speculate = self._speculates(len(batch))
        if speculate and self.drafting is not None:
            self._maybe_crash(len(batch))
            await self.pacer.spend(self._timing.speculative_ms(len(batch), self.drafting.shape))
            fixed = self.drafting.fixed(self._verified)
            self._verified += 1
            tokens = sum(self._verify(request, self.drafting, fixed) for request in batch)
        else:
            loaded = self.drafting is not None
            await self.pacer.spend(self._timing.plain_ms(len(batch), speculation_loaded=loaded))
            tokens = sum(request.grow(1) for request in batch if not request.finished)
        if self.fallback is not None:
            self.fallback.count(len(batch), tokens, speculate)
        self.counters.decode_step(len(batch), tokens, len(batch) if self.drafting else 0)
        if self.counters.due(self.limits.log_interval):
            self._log_decode(batch)
        self._report(batch)

    def _speculates(self, batch: int) -> bool:
        if self.drafting is None:
            return False
        return True if self.fallback is None else self.fallback.decide(batch)

    def _verify(self, request: Request, drafting: Drafting, fixed: int | None) -> int:
        """One draft-and-verify step of a request: the accepted drafts and the bonus token."""
        if request.finished:
            return 0
        position = len(request.output)
        grown = request.grow(
            fixed or request.answer.accepted(position, drafting.rate, drafting.shape.longest)
        )
        request.verify_steps += 1
        request.accepted_drafts += grown - 1
        return grown

    def _make_room(self) -> None:
        """Send the newest requests back to the queue while a step could overrun the KV cache."""
        ahead = 1 if self.drafting is None else 2 * self.drafting.shape.draft_tokens
        while len(self.running) > 1 and self.used_tokens + ahead * len(self.running) > self.limits.tokens:
            request = self.running.pop()
            request.retractions += 1
            self.counters.totals["retracted"] += 1
            self.waiting.appendleft(request)
            self._log.info("KV cache pool is full. Retract requests. #retracted_reqs: 1")

    def _maybe_crash(self, batch: int) -> None:
        limit = self._faults.number("crash-at")
        if limit is not None and batch >= limit and self.drafting is not None:
            wide = batch * self.drafting.shape.draft_tokens
            raise SchedulerCrash(
                "Traceback (most recent call last):\n"
                '  File "sglang/srt/managers/scheduler.py", line 3932, in run_scheduler_process\n'
                "    scheduler.run_event_loop()\n"
                '  File "sglang/srt/speculative/eagle_worker.py", line 402, in forward_batch_generation\n'
                "    logits_output, verify_output = self.verify(batch, spec_info)\n"
                f"RuntimeError: shape '[{wide}]' is invalid for input of size 2"
            )

    def _report(self, batch: list[Request]) -> None:
        for request in batch:
            if request.finished:
                self.running.remove(request)
                self._finish(request)
            else:
                request.emit(request)

    def _finish(self, request: Request) -> None:
        if request.output:
            self.cache.insert([*request.prompt, *request.output])
        if request.logged:
            self.counters.finished(request)
        request.emit(request)

    def _log_decode(self, batch: list[Request]) -> None:
        shape = self.drafting.shape if self.drafting else None
        self.counters.settle(shape.draft_tokens if shape else None)
        used = self.used_tokens
        accept = ""
        if shape is not None:
            accept = (
                f"accept len: {self.counters.spec_accept_length:.2f}, "
                f"accept rate: {self.counters.spec_accept_rate:.2f}, "
            )
        self._log.info(
            "Decode batch, #running-req: %d, #token: %d, token usage: %.2f, %scuda graph: True, "
            "gen throughput (token/s): %.2f, #queue-req: %d",
            *(len(batch), used, used / self.limits.tokens, accept),
            *(self.counters.last_gen_throughput, len(self.waiting)),
        )

    def state(self) -> dict[str, Any]:
        """The moving part of `internal_states`."""
        state: dict[str, Any] = {
            "last_gen_throughput": self.counters.last_gen_throughput,
            "effective_max_running_requests_per_dp": self.limits.running,
        }
        if self.drafting is not None and self.counters.avg_spec_accept_length is not None:
            state["avg_spec_accept_length"] = self.counters.avg_spec_accept_length
        if self.fallback is not None and self.fallback.counters is not None:
            state["dynspec_stats"] = self.fallback.counters
        state["simulated"] = {"lag_s": round(self.pacer.lag_s, 3)}
        return state
