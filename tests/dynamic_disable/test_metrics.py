"""The counters as Prometheus shows them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("prometheus_client", reason="`make test-torch` installs it")

import prometheus_client
from lift import load_runtime


def test_the_counters_come_out_under_their_documented_names():
    load_runtime()
    from sglang.srt.speculative.dynspec import metrics, policy

    switch = policy.Switch("v2", 4, "lazy", switchable=False, rank=0)
    shown = metrics.metrics_for(SimpleNamespace(enable_metrics=True, served_model_name="m"), rank=0)
    for size in (9, 9, 3):
        switch.decide(size)
    switch.count_plain(18)
    switch.count_verified(3, 7)
    shown.update(switch.counters)
    shown.update(switch.counters)  # counters grow by what is new only
    text = prometheus_client.generate_latest().decode()
    for line in (
        'sglang:dynspec_steps_total{mode="plain",model_name="m"} 2.0',
        'sglang:dynspec_steps_total{mode="speculate",model_name="m"} 1.0',
        'sglang:dynspec_tokens_total{mode="plain",model_name="m"} 18.0',
        'sglang:dynspec_tokens_total{mode="speculate",model_name="m"} 7.0',
        'sglang:dynspec_verified_requests_total{model_name="m"} 3.0',
        'sglang:dynspec_transitions_total{model_name="m"} 2.0',
        'sglang:dynspec_threshold{model_name="m"} 4.0',
        'sglang:dynspec_plain{model_name="m"} 0.0',
    ):
        assert line in text.splitlines()


def test_there_are_none_on_other_ranks_or_without_enable_metrics():
    load_runtime()
    from sglang.srt.speculative.dynspec import metrics

    assert metrics.metrics_for(SimpleNamespace(enable_metrics=True, served_model_name="m"), rank=1) is None
    assert metrics.metrics_for(SimpleNamespace(enable_metrics=False, served_model_name="m"), rank=0) is None
