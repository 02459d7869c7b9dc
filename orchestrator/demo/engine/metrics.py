"""`/metrics` in Prometheus text, with SGLang's names and labels (served under `--enable-metrics`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .core import Engine

_BUCKETS = {
    "ttft": (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400),
    "itl": (0.002, 0.004, 0.006, 0.008, 0.010, 0.015, 0.020, 0.025, 0.030, 0.035, 0.040, 0.060, 0.080, 0.1),
    "e2e": (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400, 600),
}


def render(engine: Engine) -> str:
    """The whole page. Labels are those of scheduler rank 0."""
    labels = (
        f'engine_type="unified",model_name="{engine.args.get("served_model_name")}",'
        'moe_ep_rank="0",pp_rank="0",tp_rank="0"'
    )
    lines: list[str] = []
    for name, value, about in _gauges(engine):
        lines += _one(name, "gauge", value, about, labels)
    for name, value, about in _counters(engine):
        lines += _one(name, "counter", value, about, labels)
    lines += _fallback(engine)
    samples = engine.scheduler.counters.samples
    for key, name in {
        "ttft": "time_to_first_token_seconds",
        "itl": "inter_token_latency_seconds",
        "e2e": "e2e_request_latency_seconds",
    }.items():
        lines += _histogram(f"sglang:{name}", samples[key], _BUCKETS[key], labels)
    return "\n".join(lines) + "\n"


def _gauges(engine: Engine) -> list[tuple[str, float, str]]:
    scheduler, counters = engine.scheduler, engine.scheduler.counters
    used, limit = scheduler.used_tokens, scheduler.limits.tokens
    gauges: list[tuple[str, float, str]] = [
        ("num_running_reqs", len(scheduler.running), "The number of running requests."),
        ("num_queue_reqs", len(scheduler.waiting), "The number of requests in the waiting queue."),
        ("gen_throughput", counters.last_gen_throughput, "The generation throughput (token/s)."),
        ("token_usage", used / limit, "The token usage."),
        ("num_used_tokens", used, "The number of used tokens."),
        ("max_total_num_tokens", limit, "Maximum total number of tokens in the KV cache pool."),
    ]
    if scheduler.drafting is not None:
        gauges += [
            ("spec_accept_length", counters.spec_accept_length, "The average acceptance length."),
            ("spec_accept_rate", counters.spec_accept_rate, "The average acceptance rate."),
        ]
    return gauges


def _counters(engine: Engine) -> list[tuple[str, float, str]]:
    totals = engine.scheduler.counters.totals
    return [
        ("prompt_tokens_total", totals["prompt_tokens"], "Number of prefill tokens processed."),
        ("generation_tokens_total", totals["generation_tokens"], "Number of generation tokens processed."),
        ("cached_tokens_total", totals["cached_tokens"], "Number of cached prompt tokens."),
        ("num_requests_total", totals["requests"], "Number of requests processed."),
        ("num_aborted_requests_total", totals["aborted"], "Number of requests aborted."),
        ("num_retracted_requests_total", totals["retracted"], "Total number of retracted requests."),
    ]


def _fallback(engine: Engine) -> list[str]:
    """The counters of the dynamic-disable patch under the names and labels that it gives them."""
    fallback = engine.scheduler.fallback
    counters = fallback.counters if fallback is not None else None
    if counters is None:
        return []
    model = f'model_name="{engine.args.get("served_model_name")}"'
    lines: list[str] = []
    for name, keys in {
        "steps": ("plain_steps", "spec_steps"),
        "tokens": ("plain_tokens", "spec_tokens"),
    }.items():
        full = f"sglang:dynspec_{name}_total"
        lines += [f"# HELP {full} By mode of the decode step.", f"# TYPE {full} counter"]
        lines.append(f'{full}{{{model},mode="plain"}} {float(counters[keys[0]])}')
        lines.append(f'{full}{{{model},mode="speculate"}} {float(counters[keys[1]])}')
    about = {"dynspec_verified_requests_total": "spec_reqs", "dynspec_transitions_total": "transitions"}
    for name, key in about.items():
        lines += _one(name, "counter", counters[key], "Of the dynamic-disable patch.", model)
    lines += _one(
        "dynspec_threshold", "gauge", counters["threshold"], "Largest batch that speculates.", model
    )
    return lines + _one(
        "dynspec_plain", "gauge", counters["mode"] == "plain", "1: the last step was plain.", model
    )


def _one(name: str, kind: str, value: float, about: str, labels: str) -> list[str]:
    full = f"sglang:{name}"
    return [f"# HELP {full} {about}", f"# TYPE {full} {kind}", f"{full}{{{labels}}} {float(value)}"]


def _histogram(name: str, samples: Sequence[float], buckets: Iterable[float], labels: str) -> list[str]:
    lines = [f"# HELP {name} Histogram in seconds.", f"# TYPE {name} histogram"]
    for bound in buckets:
        count = sum(1 for sample in samples if sample <= bound)
        lines.append(f'{name}_bucket{{{labels},le="{float(bound)}"}} {count}')
    lines.append(f'{name}_bucket{{{labels},le="+Inf"}} {len(samples)}')
    lines.append(f"{name}_count{{{labels}}} {len(samples)}")
    lines.append(f"{name}_sum{{{labels}}} {sum(samples)}")
    return lines
