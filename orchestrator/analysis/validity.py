"""May anything be claimed from this point? Pure checks with named reasons.

A *fatal* finding makes the point invalid: it is shown and never claimed. The others are notes that a reader must see
beside the number. What is unknown is said to be unknown; it is never taken for fine where a claim hangs on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from orchestrator.model.result import PointResult


@dataclass(frozen=True)
class Finding:
    name: str
    text: str
    fatal: bool = True

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


@dataclass(frozen=True)
class Limits:
    """Where a point stops being believed."""

    failed_share: float = 0.01
    concurrency_gap: float = 0.05  # share of the asked concurrency
    client_lag_s: float = 0.005  # p99
    client_cpu_share: float = 0.90
    cached_share: float = 0.01  # a note
    cached_gap: float = 0.05  # between arms, in share of prompt tokens
    requests_per_slot: int = 2  # closed load; below, ramp and drain are inside the window
    accept_about_one: float = 1.05
    output_gap: float = 0.02  # of token totals between arms
    node_slower: float = 1.25  # ratio of the load generator's processor time between boots of an arm
    client_cpu_s: float = 0.05  # with less processor time, or fewer chunks, such a ratio says nothing
    client_chunks: int = 300
    boot_speed_gap: float = 0.01  # a boot that is as fast needs no such note


@dataclass(frozen=True)
class GpuWindow:
    """What the 1 Hz sampler saw during the load. Reasons are nvidia-smi's clocks_event_reasons; XIDs come from the
    kernel's log where the node may read it; foreign are processes on a GPU that the server computes on too."""

    throttle: frozenset[str] = frozenset()
    xids: tuple[int, ...] = ()
    foreign_pids: tuple[int, ...] = ()


Expected = Literal["plain", "speculate"]


@dataclass(frozen=True)
class Evidence:
    """All that is known of one point of one boot. None: unknown."""

    concurrency: int | None  # asked; None: an open load without a cap
    metrics: Mapping[str, float | None]
    attempted: int
    ok: int
    failed: int
    load: str = "closed"
    warmup_requests: int = 0
    warmup_failed: int = 0
    short_outputs: int | None = None
    tokens_unknown: int = 0
    window_reason: str | None = None
    errors: Mapping[str, int] = field(default_factory=dict)
    client_cpu_share: float | None = None
    admission_limit: int | None = None  # running requests that the server admits, all ranks together
    speculates: bool = False
    max_accept_length: float | None = None  # draft steps + 1
    simulated_acceptance: bool = False
    expected_worker: str | None = None  # v1, v2, none
    actual_worker: str | None = None
    worker_problem: str | None = None  # what the start-up lines contradict
    adaptive_requested: bool = False
    adaptive_active: bool | None = None
    expected: Expected | None = None  # what the dynamic patch must do at this concurrency
    plain_steps: int | None = None  # decode steps of that kind during the load
    spec_steps: int | None = None
    gpu: GpuWindow | None = None


def judge(evidence: Evidence, limits: Limits | None = None) -> tuple[Finding, ...]:
    """Every finding on one point, fatal ones first."""
    used = limits or Limits()
    found = [finding for check in _CHECKS if (finding := check(evidence, used)) is not None]
    return tuple(sorted(found, key=lambda finding: not finding.fatal))


def judged(point: PointResult, findings: Iterable[Finding]) -> PointResult:
    """The point with `findings` added to what it has."""
    items = tuple(findings)
    fatal = tuple(str(item) for item in items if item.fatal)
    notes = tuple(str(item) for item in items if not item.fatal)
    return replace(
        point,
        valid=point.valid and not fatal,
        reasons=point.reasons + fatal,
        notes=point.notes + notes,
    )


def _no_output(e: Evidence, limits: Limits) -> Finding | None:
    if e.attempted == 0:
        return Finding("no_requests", "no request was sent")
    if e.ok == 0:
        return Finding("no_output", f"none of {e.attempted} requests gave a token{_errors(e)}")
    return None


def _failed_requests(e: Evidence, limits: Limits) -> Finding | None:
    if not e.failed or not e.ok:
        return None
    share = e.failed / e.attempted
    text = f"{e.failed} of {e.attempted} requests failed{_errors(e)}"
    return Finding("failed_requests", text, fatal=share > limits.failed_share)


def _errors(e: Evidence) -> str:
    if not e.errors:
        return ""
    error, count = max(e.errors.items(), key=lambda item: item[1])
    return f", {count} with {error!r}"


def _tokens_missing(e: Evidence, limits: Limits) -> Finding | None:
    if not e.ok or not e.tokens_unknown:
        return None
    return Finding(
        "tokens_missing", f"the server told no token count for {e.tokens_unknown} of {e.ok} requests"
    )


def _short_outputs(e: Evidence, limits: Limits) -> Finding | None:
    if not e.short_outputs:
        return None
    text = f"{e.short_outputs} of {e.ok} outputs have another length than asked, so arms did unequal work"
    return Finding("short_outputs", text)


def _concurrency(e: Evidence, limits: Limits) -> Finding | None:
    achieved = e.metrics.get("achieved_concurrency")
    if e.load != "closed" or e.concurrency is None or achieved is None:
        return None
    if achieved >= e.concurrency * (1 - limits.concurrency_gap):
        return None
    return Finding("concurrency_not_reached", f"{achieved:.1f} in flight on average, {e.concurrency} asked")


def _admission(e: Evidence, limits: Limits) -> Finding | None:
    if e.admission_limit is None or e.concurrency is None or e.concurrency <= e.admission_limit:
        return None
    text = f"the server runs at most {e.admission_limit} requests, {e.concurrency} were asked: the rest is queueing"
    return Finding("admission_limit", f"{text}; set max-running-requests in all arms")


def _client(e: Evidence, limits: Limits) -> Finding | None:
    lag = e.metrics.get("client_lag_p99")
    if lag is not None and lag > limits.client_lag_s:
        limit = limits.client_lag_s * 1000
        return Finding(
            "client_bound", f"the load generator ran {lag * 1000:.1f} ms late (p99; limit {limit:.0f} ms)"
        )
    if e.client_cpu_share is not None and e.client_cpu_share > limits.client_cpu_share:
        return Finding("client_bound", f"the load generator used {e.client_cpu_share:.0%} of its core")
    return None


def _cached(e: Evidence, limits: Limits) -> Finding | None:
    share = e.metrics.get("cached_share")
    if share is None or share <= limits.cached_share:
        return None
    return Finding(
        "cached_tokens", f"{share:.1%} of the prompt tokens came from the prefix cache", fatal=False
    )


def _warmup(e: Evidence, limits: Limits) -> Finding | None:
    if e.warmup_failed:
        return Finding("warmup_failed", f"{e.warmup_failed} of {e.warmup_requests} warm-up requests failed")
    if not e.warmup_requests:
        return Finding("no_warmup", "the first requests were cold", fatal=False)
    return None


def _few_requests(e: Evidence, limits: Limits) -> Finding | None:
    if e.attempted and e.load == "closed" and e.concurrency:
        wanted = limits.requests_per_slot * e.concurrency
        if e.attempted < wanted:
            text = f"{e.attempted} requests at concurrency {e.concurrency}: ramp and drain are inside the numbers"
            return Finding("few_requests", f"{text}; at least {wanted} are needed")
    if e.window_reason is not None:
        return Finding("no_steady_window", e.window_reason)
    return None


def _accept_length(e: Evidence, limits: Limits) -> Finding | None:
    """Unknown, zero and about one are three different things."""
    if not e.speculates or e.expected == "plain" or not e.ok:
        return None
    value = e.metrics.get("accept_length")
    if value is None:
        return Finding("accept_unknown", "the server does not tell the accept length", fatal=False)
    if value < 1:
        return Finding(
            "accept_impossible", f"accept length {value:.2f}: a verify step gives at least one token"
        )
    if e.max_accept_length is not None and value > e.max_accept_length + 1e-6:
        most = e.max_accept_length
        return Finding(
            "accept_impossible", f"accept length {value:.2f}, more than the {most:g} that a step can give"
        )
    if value <= limits.accept_about_one:
        text = f"accept length {value:.2f}: drafts are thrown away, SPECULATION HELPS NOTHING here"
        return Finding("accept_one", text, fatal=False)
    return None


def _synthetic(e: Evidence, limits: Limits) -> Finding | None:
    if not e.simulated_acceptance or not e.speculates:
        return None
    text = "the server was told to simulate its accept length: speeds are real, gains and text are made up"
    return Finding("synthetic_acceptance", text, fatal=False)


def _fallback(e: Evidence, limits: Limits) -> Finding | None:
    if e.expected_worker and e.actual_worker and e.expected_worker != e.actual_worker:
        text = f"worker {e.actual_worker} served where {e.expected_worker} was expected"
        return Finding("silent_fallback", text)
    if e.worker_problem:
        return Finding("worker_contradicted", e.worker_problem)
    if e.adaptive_requested and e.adaptive_active is False:
        return Finding(
            "silent_fallback", "the server switched adaptive speculation off and runs it statically"
        )
    if e.adaptive_requested and e.adaptive_active is None:
        return Finding("adaptive_unproven", "nothing shows that adaptive speculation is on", fatal=False)
    return None


def _patch_acted(e: Evidence, limits: Limits) -> Finding | None:
    if e.expected is None:
        return None
    steps, other = (e.plain_steps, e.spec_steps) if e.expected == "plain" else (e.spec_steps, e.plain_steps)
    if steps is None:
        return Finding("patch_unproven", f"nothing shows that steps were {_ACTED[e.expected]}")
    if steps == 0:
        return Finding("patch_never_acted", f"no step was {_ACTED[e.expected]}, {other or 0} were not")
    return None


_ACTED = {"plain": "plain, as the threshold asks", "speculate": "speculative, as the threshold asks"}


SLOWDOWNS = frozenset(
    {"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown"}
)


def _gpu(e: Evidence, limits: Limits) -> Finding | None:
    if e.gpu is None:
        return None
    if e.gpu.xids:
        return Finding("gpu_xid", f"the driver reported XID {', '.join(map(str, e.gpu.xids))}")
    if e.gpu.foreign_pids:
        text = f"another process used the GPU (pid {', '.join(map(str, e.gpu.foreign_pids))})"
        return Finding("gpu_shared", text)
    slow = sorted(e.gpu.throttle & SLOWDOWNS)
    if slow:
        return Finding("throttled", f"the GPU slowed itself down ({', '.join(slow)})")
    if e.gpu.throttle:
        text = f"clocks were limited by {', '.join(sorted(e.gpu.throttle))}"
        return Finding("clocks_limited", text, fatal=False)
    return None


Check = Callable[[Evidence, Limits], Finding | None]
_CHECKS: Sequence[Check] = (
    _no_output,
    _failed_requests,
    _tokens_missing,
    _short_outputs,
    _concurrency,
    _admission,
    _client,
    _cached,
    _warmup,
    _few_requests,
    _accept_length,
    _synthetic,
    _fallback,
    _patch_acted,
    _gpu,
)
