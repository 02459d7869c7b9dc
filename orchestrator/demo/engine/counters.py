"""What the scheduler counts, with SGLang's own habits (`SchedulerMetricsMixin`) kept.

Two of them matter to readers: the lifetime accept length moves only when a decode line is logged (every
`decode_log_interval` steps), and a successful cache flush sets it back to nothing.
"""

from __future__ import annotations

import time
from typing import Any


class Counters:
    def __init__(self) -> None:
        self.started_s = time.perf_counter()
        self.totals: dict[str, float] = dict.fromkeys(
            ("prompt_tokens", "generation_tokens", "cached_tokens", "requests", "aborted", "retracted"), 0
        )
        self.samples: dict[str, list[float]] = {"ttft": [], "itl": [], "e2e": [], "queue": []}
        self.last_gen_throughput = 0.0
        self.spec_accept_length = 0.0
        self.spec_accept_rate = 0.0
        self._last_log_s = time.perf_counter()
        self.reset()

    def reset(self) -> None:
        """After a successful flush."""
        self.decode_steps = 0
        self._since_log_tokens = 0
        self._interval_tokens = self._interval_checks = 0
        self.total_tokens = self.total_checks = 0

    def decode_step(self, batch: int, tokens: int, checks: int) -> None:
        """`tokens` of a step over `batch` requests; `checks` = requests that went through the accept count."""
        self.decode_steps += 1
        self._since_log_tokens += tokens
        if checks:
            self._interval_tokens += tokens
            self._interval_checks += checks

    def due(self, interval: int) -> bool:
        return self.decode_steps % interval == 0

    def settle(self, draft_tokens: int | None) -> None:
        """Close a log interval: throughput, accept length and rate of it, and the lifetime sums."""
        now = time.perf_counter()
        self.last_gen_throughput = self._since_log_tokens / max(now - self._last_log_s, 1e-9)
        self._last_log_s = now
        self._since_log_tokens = 0
        if self._interval_checks:
            self.spec_accept_length = self._interval_tokens / self._interval_checks
            drafts = self._interval_checks * max((draft_tokens or 1) - 1, 1)
            self.spec_accept_rate = (self._interval_tokens - self._interval_checks) / drafts
        self.total_tokens += self._interval_tokens
        self.total_checks += self._interval_checks
        self._interval_tokens = self._interval_checks = 0

    @property
    def avg_spec_accept_length(self) -> float | None:
        return self.total_tokens / self.total_checks if self.total_checks else None

    def finished(self, request: Any) -> None:
        """Take a finished request into the totals that `/metrics` shows."""
        now = time.perf_counter()
        self.totals["requests"] += 1
        self.totals["prompt_tokens"] += len(request.prompt)
        self.totals["generation_tokens"] += len(request.output)
        self.totals["cached_tokens"] += request.cached_tokens
        if request.finish["type"] == "abort":
            self.totals["aborted"] += 1
        self.samples["e2e"].append(now - request.created_s)
        if request.first_token_s is not None:
            self.samples["ttft"].append(request.first_token_s - request.created_s)
            if len(request.output) > 1:
                self.samples["itl"].append((now - request.first_token_s) / (len(request.output) - 1))
