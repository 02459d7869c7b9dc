"""The counters on SGLang's /metrics, on the rank that reports (one per tensor-parallel group).

sglang:dynspec_steps_total{mode}    decode steps launched
sglang:dynspec_tokens_total{mode}   tokens given to requests; speculate counts accepted tokens, bonus included
sglang:dynspec_verified_requests_total   (request, verify step) pairs; tokens{speculate} / this = accept length
sglang:dynspec_transitions_total    changes of mode
sglang:dynspec_threshold            the threshold in force
sglang:dynspec_plain                1 while the last decode step was plain
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .policy import PLAIN, SPECULATE


class Metrics:
    """Copies `policy.new_counters` to Prometheus; `update` costs a few microseconds."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        # Imported here: prometheus_client reads its multi-process folder from the environment when imported.
        from prometheus_client import Counter, Gauge  # type: ignore[import-not-found]

        names = list(labels)

        def counter(name: str, text: str, *more: str) -> Any:
            return Counter(f"sglang:dynspec_{name}", text, [*names, *more])

        def gauge(name: str, text: str) -> Any:
            metric = Gauge(f"sglang:dynspec_{name}", text, names, multiprocess_mode="mostrecent")
            return metric.labels(**labels)

        steps = counter("steps_total", "Decode steps launched.", "mode")
        tokens = counter("tokens_total", "Tokens given to requests.", "mode")
        self._counters = {
            "plain_steps": steps.labels(**labels, mode=PLAIN),
            "spec_steps": steps.labels(**labels, mode=SPECULATE),
            "plain_tokens": tokens.labels(**labels, mode=PLAIN),
            "spec_tokens": tokens.labels(**labels, mode=SPECULATE),
            "spec_reqs": counter("verified_requests_total", "Request and verify-step pairs.").labels(
                **labels
            ),
            "transitions": counter("transitions_total", "Changes of mode.").labels(**labels),
        }
        self._threshold = gauge("threshold", "Batch size above which decode is plain.")
        self._plain = gauge("plain", "1 while the last decode step was plain.")
        self._seen = dict.fromkeys(self._counters, 0)
        self._shown: tuple[int, str] | None = None

    def update(self, counters: Mapping[str, Any]) -> None:
        """Add what `counters` has grown by since the last call."""
        for name, metric in self._counters.items():
            grown = counters[name] - self._seen[name]
            if grown:
                metric.inc(grown)
                self._seen[name] = counters[name]
        shown = counters["threshold"], counters["mode"]
        if shown != self._shown:
            self._shown = shown
            self._threshold.set(counters["threshold"])
            self._plain.set(1 if counters["mode"] == PLAIN else 0)


def metrics_for(server_args: Any, rank: int) -> Metrics | None:
    """Metrics where the server has them switched on, on rank 0; else None."""
    if rank != 0 or not getattr(server_args, "enable_metrics", False):
        return None
    return Metrics({"model_name": str(server_args.served_model_name)})
