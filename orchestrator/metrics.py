"""From the records of one point of one boot to its metrics: pure, one definition each. Absent is None, never 0.

Latencies (`ttft`, `tpot`, `e2e`, `chunk_gap`, in s) are over the ok requests of the load; percentiles are nearest-rank,
`*_std` is the standard deviation over these requests. They count from the sending. `slot_wait`, from when a request was
due until it was sent, is in none of them.
Rates and concurrency are over the steady window:

- *closed*: from the moment the asked concurrency is first in flight until it is in flight for the last time. The ramp
  before and the drain after are cut.
- *open*: from the end of the first response to the sending of the last request.
- *straddle*: from the first to the last sending; both levels are inside on purpose.

Where that window does not exist or too few requests were sent (closed: fewer than two a slot), it is the whole span
from the first sending to the last end, and `window_reason` says why. A request's output tokens count where they came:
`first_tokens` at the first output, the others evenly from there to the last. `requests_per_s` counts ok requests that
ended inside the window, `input_tps` the prompt tokens of those whose first output came inside it: what was reached, and
in a closed loop no claim on a rate that could be asked for. `window_s` is the window's length.

`accept_length` = (verify steps + accepted draft tokens) / verify steps: each verify step gives its accepted drafts and
one bonus token; the first token of a response comes from the prefill, and plain decode steps don't enter. `accept_rate`
= accepted / proposed. Where the server tells verify steps but not accepted tokens, (output tokens - first token) /
verify steps, which is the same only if every step speculated.

`cached_share` = cached / prompt tokens of all ok requests, None if no response told cached tokens. SGLang's chat and
completions leave the count out when it is 0.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Record = Mapping[str, Any]
PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True)
class PointMetrics:
    """Metrics and counts of one point of one boot, ready for `model.result.PointResult`."""

    metrics: dict[str, float | None]
    attempted: int
    ok: int
    failed: int
    warmup_requests: int
    warmup_failed: int
    short_outputs: (
        int | None
    )  # ok requests with other than the asked number of tokens; None: nothing was asked or told
    tokens_unknown: int  # ok requests whose output tokens the server did not tell
    window_s: float | None
    window_reason: str | None  # why the whole span stands in for the steady window
    errors: dict[str, int] = field(default_factory=dict)


def point_metrics(
    records: Iterable[Record],
    *,
    concurrency: int | None,
    load: str = "closed",
    output_tokens: int | None = None,
    summary: Mapping[str, Any] | None = None,
) -> PointMetrics:
    """Fold the records of one point.

    `concurrency` is what was asked (None: no limit), `load` its kind, `output_tokens` the asked length where the
    end-of-text token is ignored. `summary` is the load generator's own, for its lag and the chunk gaps. Records may
    come as a generator: each is looked at once.
    """
    seen = _Seen()
    for record in records:
        seen.add(record, output_tokens)
    window, reason = _window(seen, concurrency, load)
    metrics: dict[str, float | None] = {}
    for name, values in seen.latencies.items():
        metrics.update(_spread(name, values))
    metrics.update({f"{name}_std": deviation(seen.latencies[name]) for name in ("ttft", "tpot", "e2e")})
    metrics.update(_gaps(summary))
    metrics.update(_rates(seen, window))
    metrics.update(_speculation(seen))
    metrics["client_lag_p99"] = _lag_p99_s(summary)
    return PointMetrics(
        metrics=metrics,
        attempted=seen.attempted,
        ok=seen.ok,
        failed=seen.attempted - seen.ok,
        warmup_requests=seen.warmup,
        warmup_failed=seen.warmup_failed,
        short_outputs=seen.short if output_tokens is not None and seen.tokens_known else None,
        tokens_unknown=seen.ok - seen.tokens_known,
        window_s=(window[1] - window[0]) / 1e9 if window else None,
        window_reason=reason,
        errors=seen.errors,
    )


def share_above(records: Iterable[Record], level: int) -> float | None:
    """Share of the time between the first and the last sending with more than `level` requests in flight.

    For a stepping load: how long it was really on the far side of a threshold. None without such a time.
    """
    spans = [
        (record["sent_ns"], record["end_ns"])
        for record in records
        if record.get("phase") != "warmup" and record["sent_ns"] is not None and record["end_ns"] is not None
    ]
    if not spans:
        return None
    begin, end = min(sent for sent, _ in spans), max(sent for sent, _ in spans)
    changes = sorted([(sent, 1) for sent, _ in spans] + [(min(ended, end), -1) for _, ended in spans])
    above_ns = in_flight = 0
    before = begin
    for time_ns, change in changes:
        above_ns += time_ns - before if in_flight > level else 0
        before = time_ns
        in_flight += change
    return above_ns / (end - begin) if end > begin else None


def nearest_rank(ordered: Sequence[float], percent: float) -> float | None:
    """The smallest of the rising values that at least `percent` of them do not exceed; None without values."""
    if not ordered:
        return None
    rank = -(-len(ordered) * round(percent * 1000) // 100_000)
    return ordered[max(rank, 1) - 1]


def deviation(values: Sequence[float]) -> float | None:
    """The standard deviation of these very values (over n, not n - 1); None without values."""
    if not values:
        return None
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))


class _Seen:
    """What is kept of each record: columns, so that a million records stay small."""

    def __init__(self) -> None:
        self.attempted = self.ok = self.warmup = self.warmup_failed = 0
        self.short = self.tokens_known = 0
        self.errors: dict[str, int] = {}
        self.latencies: dict[str, list[float]] = {"ttft": [], "tpot": [], "e2e": [], "slot_wait": []}
        self.spans: list[tuple[int, int]] = []  # sent, end of every request sent, failed ones too
        self.outputs: list[
            tuple[int, int, int, int]
        ] = []  # first, last, first tokens, output tokens of ok requests
        self.ended = array("q")  # ns, of ok requests
        self.prefilled = array("q")  # first output, prompt tokens; of ok requests that tell both
        self.totals: dict[str, int | None] = {"prompt": None, "cached": None, "output": None}
        self.verify_steps: int | None = None
        self.accepted: int | None = None
        self.drafted: int | None = None
        self.decoded_of_verified = 0  # output tokens after the first, of requests with verify steps

    def add(self, record: Record, asked_tokens: int | None) -> None:
        if record.get("phase") == "warmup":
            self.warmup += 1
            self.warmup_failed += not record["ok"]
            return
        self.attempted += 1
        if record["sent_ns"] is not None and record["end_ns"] is not None:
            self.spans.append((record["sent_ns"], record["end_ns"]))
        if not record["ok"]:
            error = record["error"] or "unknown"
            self.errors[error] = self.errors.get(error, 0) + 1
            return
        self.ok += 1
        self.ended.append(record["end_ns"])
        if record["first_ns"] is not None and record["prompt_tokens"] is not None:
            self.prefilled.extend((record["first_ns"], record["prompt_tokens"]))
        self._latencies(record)
        self._tokens(record, asked_tokens)
        self._speculation(record)

    def _latencies(self, record: Record) -> None:
        sent, first, last = record["sent_ns"], record["first_ns"], record["last_ns"]
        self.latencies["e2e"].append((record["end_ns"] - sent) / 1e9)
        self.latencies["slot_wait"].append((sent - record["due_ns"]) / 1e9)
        if first is None:
            return
        self.latencies["ttft"].append((first - sent) / 1e9)
        first_tokens, output = record["first_tokens"], record["output_tokens"]
        if first_tokens is not None and output is not None and output > first_tokens and last > first:
            self.latencies["tpot"].append((last - first) / 1e9 / (output - first_tokens))

    def _tokens(self, record: Record, asked: int | None) -> None:
        for name in self.totals:
            tokens = record[f"{name}_tokens"]
            if tokens is not None:
                self.totals[name] = (self.totals[name] or 0) + tokens
        output = record["output_tokens"]
        if output is None:
            return
        self.tokens_known += 1
        self.short += asked is not None and output != asked
        first = record["first_ns"] if record["first_ns"] is not None else record["end_ns"]
        last = record["last_ns"] if record["last_ns"] is not None else record["end_ns"]
        at_first = record["first_tokens"] if record["first_tokens"] is not None else min(output, 1)
        self.outputs.append((first, last, at_first, output))

    def _speculation(self, record: Record) -> None:
        steps = record.get("verify_steps")
        if steps is None:
            return
        self.verify_steps = (self.verify_steps or 0) + steps
        for name in ("accepted", "drafted"):
            if record.get(name) is not None:
                setattr(self, name, (getattr(self, name) or 0) + record[name])
        self.decoded_of_verified += max(0, (record["output_tokens"] or 0) - 1)


def _window(seen: _Seen, concurrency: int | None, load: str) -> tuple[tuple[int, int] | None, str | None]:
    """The steady window in ns, and why it is the whole span where it is."""
    if not seen.spans:
        return None, None
    whole = (min(sent for sent, _ in seen.spans), max(end for _, end in seen.spans))
    last_sent = max(sent for sent, _ in seen.spans)
    if load == "straddle":
        window, reason = (whole[0], last_sent), "nothing was sent after the first request"
    elif load == "open":
        window, reason = (
            (min(end for _, end in seen.spans), last_sent),
            "no response ended before the last sending",
        )
    elif concurrency is None or len(seen.spans) < 2 * concurrency:
        return whole, "fewer than two requests a slot: ramp and drain are inside"
    else:
        window, reason = _at_concurrency(seen.spans, concurrency), "the asked concurrency was never in flight"
    return (window, None) if window[1] > window[0] else (whole, reason)


def _at_concurrency(spans: Sequence[tuple[int, int]], concurrency: int) -> tuple[int, int]:
    """From when `concurrency` requests are first in flight to when they last are; empty if they never are."""
    # At equal times ends come first: a slot that passes from one request to the next is not two in flight.
    changes = sorted([(sent, 1) for sent, _ in spans] + [(end, -1) for _, end in spans])
    in_flight = 0
    begin: int | None = None
    end = changes[0][0]
    for time_ns, change in changes:
        if change < 0 and in_flight == concurrency:
            end = time_ns
        in_flight += change
        if change > 0 and in_flight == concurrency and begin is None:
            begin = time_ns
    return (end if begin is None else begin), end


def _rates(seen: _Seen, window: tuple[int, int] | None) -> dict[str, float | None]:
    tpot_p50 = nearest_rank(sorted(seen.latencies["tpot"]), 50)
    prompt, cached = seen.totals["prompt"], seen.totals["cached"]
    rates: dict[str, float | None] = {
        "output_tps": None,
        "per_user_tps": 1 / tpot_p50 if tpot_p50 else None,
        "achieved_concurrency": None,
        "cached_share": cached / prompt if cached is not None and prompt else None,
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "output_tokens": seen.totals["output"],
        "requests_per_s": None,
        "input_tps": None,
        "window_s": None,
    }
    if window is None or window[1] <= window[0]:
        return rates
    begin, end = window
    rates |= _finished(seen, begin, end)
    if seen.outputs:
        rates["output_tps"] = (
            sum(_tokens_inside(output, begin, end) for output in seen.outputs) * 1e9 / (end - begin)
        )
    overlap = sum(max(0, min(ended, end) - max(sent, begin)) for sent, ended in seen.spans)
    rates["achieved_concurrency"] = overlap / (end - begin)
    return rates


def _finished(seen: _Seen, begin: int, end: int) -> dict[str, float | None]:
    window_s = (end - begin) / 1e9
    ended = sum(begin <= at <= end for at in seen.ended)
    firsts, tokens = seen.prefilled[::2], seen.prefilled[1::2]
    read = sum(count for at, count in zip(firsts, tokens, strict=True) if begin <= at <= end)
    return {
        "requests_per_s": ended / window_s if seen.ended else None,
        "input_tps": read / window_s if firsts else None,
        "window_s": window_s,
    }


def _tokens_inside(output: tuple[int, int, int, int], begin: int, end: int) -> float:
    first, last, at_first, total = output
    inside = float(at_first) if begin <= first <= end else 0.0
    if last <= first:
        return inside + (total - at_first if begin <= first <= end else 0)
    return inside + (total - at_first) * max(0, min(last, end) - max(first, begin)) / (last - first)


def _speculation(seen: _Seen) -> dict[str, float | None]:
    steps, accepted, drafted = seen.verify_steps, seen.accepted, seen.drafted
    length: float | None = None
    if steps:
        length = (steps + accepted) / steps if accepted is not None else seen.decoded_of_verified / steps
    rate = accepted / drafted if accepted is not None and drafted else None
    return {"accept_length": length, "accept_rate": rate, "verify_steps": steps}


def _spread(name: str, values: list[float]) -> dict[str, float | None]:
    ordered = sorted(values)
    spread: dict[str, float | None] = {name: sum(ordered) / len(ordered) if ordered else None}
    for percent in PERCENTILES:
        spread[f"{name}_p{percent}"] = nearest_rank(ordered, percent)
    return spread


def _gaps(summary: Mapping[str, Any] | None) -> dict[str, float | None]:
    """Gaps between output chunks over the whole load, as the load generator measured them."""
    gaps = (summary or {}).get("chunk_gap_ns") or {}
    keys = {"chunk_gap": "mean", **{f"chunk_gap_p{percent}": f"p{percent}" for percent in PERCENTILES}}
    return {name: gaps[key] / 1e9 if gaps.get(key) is not None else None for name, key in keys.items()}


def _lag_p99_s(summary: Mapping[str, Any] | None) -> float | None:
    lag = ((summary or {}).get("client") or {}).get("lag_ns") or {}
    return lag["p99"] / 1e9 if lag.get("p99") is not None else None
