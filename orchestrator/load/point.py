"""One point as a spec for the load generator, and its records back. Pure but for reading the records file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.errors import UsageError
from orchestrator.load.prompts import Prompt
from orchestrator.loadgen import SCHEMA, bodies
from orchestrator.model.experiment import Load

ENDPOINT_PATHS = {"chat": bodies.CHAT, "completions": bodies.COMPLETIONS, "generate": bodies.GENERATE}

_CLOSED = Load()


def request_count(concurrency: int, requests_per_slot: int, min_requests: int = 1) -> int:
    """Requests at a point."""
    return max(concurrency * requests_per_slot, min_requests)


def straddle_bounds(around: int) -> tuple[int, int]:
    """Requests in flight on either side of a threshold of `around`: at it, where steps speculate, and at twice it.

    Twice, not one more: requests join and leave a batch one by one, and a step over the edge by one would be lost.
    """
    return around, 2 * around


def body_template(
    endpoint: str,
    *,
    model: str,
    output_tokens: int,
    temperature: float = 0.0,
    ignore_eos: bool = True,
) -> dict[str, Any]:
    """Everything of a request body but its prompt. `endpoint` is chat, completions or generate."""
    sampling = {"temperature": temperature, "ignore_eos": ignore_eos}
    if endpoint == "generate":
        return {"sampling_params": {"max_new_tokens": output_tokens, **sampling}, "stream": True}
    return {
        "model": model,
        "max_tokens": output_tokens,
        **sampling,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


def build_spec(
    *,
    host: str,
    port: int,
    endpoint: str,
    template: Mapping[str, object],
    prompts: Sequence[Prompt],
    concurrency: int,
    load: Load = _CLOSED,
    seed: int = 1,
    idle_timeout_s: float = 120.0,
    request_timeout_s: float = 600.0,
    record_chunks: bool = False,
) -> dict[str, Any]:
    """The spec of one point; see `orchestrator.loadgen`.

    A warm-up is a spec of its own, so that the cache can be flushed and counters be read between it and the load. In an
    open load `concurrency` caps the requests in flight. A load lasts as long as the prompts.
    """
    check_prompts(endpoint, prompts)
    return {
        "schema": SCHEMA,
        "host": host,
        "port": port,
        "endpoint": ENDPOINT_PATHS[endpoint],
        "requests": {"template": dict(template), "prompts": list(prompts)},
        "concurrency": None if load.kind == "straddle" else concurrency,
        "load": _load_block(load, seed),
        "idle_timeout_s": idle_timeout_s,
        "request_timeout_s": request_timeout_s,
        "record_chunks": record_chunks,
    }


def _load_block(load: Load, seed: int) -> dict[str, Any]:
    if load.kind == "closed":
        return {"kind": "closed"}
    if load.kind == "open":
        if load.rate_per_s is None:
            raise UsageError("sweep.load: an open load needs a rate", help="add `rate: 8/s`")
        arrival = load.arrival or "constant"
        return {"kind": "open", "arrival": arrival, "rate_per_s": load.rate_per_s, "seed": seed}
    if load.around is None or load.period_s is None:
        raise UsageError("sweep.load: a straddle load needs `around` and `period`")
    low, high = straddle_bounds(load.around)
    return {"kind": "straddle", "low": low, "high": high, "period_s": load.period_s}


def bodies_sha256(endpoint: str, template: Mapping[str, object], prompts: Sequence[Prompt]) -> str:
    """sha256 over the bodies of a point as they will be sent, in order: equal across arms and boots, or not alike."""
    batch = {"template": dict(template), "prompts": list(prompts)}
    check_prompts(endpoint, prompts)
    return bodies.digest(bodies.expand(batch, ENDPOINT_PATHS[endpoint]))


def check_prompts(endpoint: str, prompts: Iterable[Prompt]) -> None:
    """Raises UsageError when the endpoint cannot take one of the prompts, such as token ids for chat."""
    for position, prompt in enumerate(prompts):
        try:
            bodies.place_prompt(ENDPOINT_PATHS[endpoint], prompt)
        except ValueError as error:
            raise UsageError(f"sweep.prompts: prompt {position}: {error}") from None


def read_records(source: Path | Iterable[str]) -> Iterator[dict[str, Any]]:
    """Records one by one, from a file or its lines. A last line cut short, as by a power cut, is left out, and so is
    whatever is no record: who needs to know asks `StoredPoint.damaged`."""
    if isinstance(source, Path):
        with source.open(encoding="ascii", errors="replace") as lines:
            yield from _records(lines)
    else:
        yield from _records(source)


def _records(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if not line.endswith(("\n", "}")):
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield record
