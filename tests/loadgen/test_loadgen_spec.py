"""A bad spec is refused with one line that names the key; a good one becomes plain values."""

from __future__ import annotations

import json

import pytest

from orchestrator.loadgen.bodies import CHAT, COMPLETIONS, GENERATE, digest, expand
from orchestrator.loadgen.pacing import allowed_in_flight, due_times_s, is_over, next_step_s
from orchestrator.loadgen.spec import Load, SpecError, parse_spec

GOOD = {
    "schema": 1,
    "host": "127.0.0.1",
    "port": 30000,
    "endpoint": CHAT,
    "requests": {"template": {"stream": True}, "prompts": ["a"]},
    "concurrency": 2,
    "load": {"kind": "closed"},
}
STRADDLE = {"kind": "straddle", "low": 2, "high": 4, "period_s": 2.0}

BAD = {
    "a missing key": ({"host": None}, "host: missing"),
    "an unknown key": ({"retries": 3}, "retries: unknown key"),
    "another schema": ({"schema": 2}, "schema: this load generator reads schema 1, not 2"),
    "a wrong type": ({"port": "30000"}, "port: expected a whole number, not '30000'"),
    "a boolean for a number": ({"port": True}, "port: expected a whole number, not True"),
    "an unknown endpoint": ({"endpoint": "/v1/embeddings"}, "endpoint: expected one of "),
    "no concurrency": ({"concurrency": None}, "concurrency: a closed load needs one"),
    "zero concurrency": ({"concurrency": 0}, "concurrency: must be at least 1, not 0"),
    "an endless limit": ({"idle_timeout_s": float("inf")}, "idle_timeout_s: must be at least 0.001, not inf"),
    "an unknown load": (
        {"load": {"kind": "ramp"}},
        "load.kind: expected closed, open or straddle, not 'ramp'",
    ),
    "an open load without rate": ({"load": {"kind": "open"}}, "load.rate_per_s: missing"),
    "an unknown arrival": (
        {"load": {"kind": "open", "arrival": "bursty", "rate_per_s": 1}},
        "load.arrival: expected",
    ),
    "a key of another load": ({"load": {"kind": "closed", "rate_per_s": 1}}, "load.rate_per_s: unknown key"),
    "a straddle without step": (
        {"concurrency": None, "load": {**STRADDLE, "high": 2}},
        "load.low: must be below load.high (2 >= 2)",
    ),
    "a straddle with concurrency": (
        {"load": STRADDLE},
        "concurrency: a straddle load has `low` and `high` instead",
    ),
    "nothing to send": ({"requests": {}}, "requests: nothing to send"),
    "a half batch": (
        {"requests": {"prompts": ["a"]}},
        "requests: expected either `bodies`, or `template` and",
    ),
    "an empty prompt": (
        {"requests": {"template": {}, "prompts": ["a", ""]}},
        "requests: prompt 1: a prompt is",
    ),
    "ids for chat": (
        {"requests": {"template": {}, "prompts": [[1, 2]]}},
        "requests: prompt 0: chat takes text",
    ),
    "no streaming": ({"requests": {"bodies": [{"stream": False}]}}, "requests: body 0 has no `stream: true`"),
    "an absent key": ({"api_key_env": "NOT_THERE"}, "api_key_env: the environment has no NOT_THERE"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_spec_is_refused_by_name(name):
    change, message = BAD[name]
    spec = {key: value for key, value in {**GOOD, **change}.items() if value is not None}
    with pytest.raises(SpecError) as refused:
        parse_spec(json.dumps(spec), environ={})
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_what_is_no_json_object_is_refused(text):
    with pytest.raises(SpecError):
        parse_spec(text)


def test_a_good_spec_has_its_bodies_encoded_and_its_key_read():
    spec = parse_spec(json.dumps({**GOOD, "api_key_env": "KEY"}), environ={"KEY": "s3"})
    assert json.loads(spec.requests[0]) == {"stream": True, "messages": [{"role": "user", "content": "a"}]}
    assert spec.warmup == []
    assert spec.api_key == "s3"
    assert spec.most_in_flight == 2


@pytest.mark.parametrize(
    ("endpoint", "prompt", "placed"),
    [
        (CHAT, "hi", {"messages": [{"role": "user", "content": "hi"}]}),
        (CHAT, [{"role": "system", "content": "s"}], {"messages": [{"role": "system", "content": "s"}]}),
        (COMPLETIONS, "hi", {"prompt": "hi"}),
        (COMPLETIONS, [5, 6], {"prompt": [5, 6]}),
        (GENERATE, "hi", {"text": "hi"}),
        (GENERATE, [5, 6], {"input_ids": [5, 6]}),
    ],
)
def test_a_prompt_goes_where_its_endpoint_wants_it(endpoint, prompt, placed):
    (body,) = expand({"template": {"stream": True}, "prompts": [prompt]}, endpoint)
    assert json.loads(body) == {"stream": True, **placed}


def test_the_digest_depends_on_order_and_bounds():
    assert digest([b"a", b"b"]) == digest([b"a", b"b"])
    assert len({digest([b"a", b"b"]), digest([b"b", b"a"]), digest([b"ab"]), digest([b"a"])}) == 4


def test_constant_arrivals_count_from_the_start():
    assert due_times_s(Load("open", rate_per_s=4.0), 5) == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_poisson_arrivals_have_their_rate_and_repeat_with_their_seed():
    load = Load("open", arrival="poisson", rate_per_s=50.0, seed=7)
    times = due_times_s(load, 5001)
    assert times == due_times_s(load, 5001)
    assert times != due_times_s(Load("open", arrival="poisson", rate_per_s=50.0, seed=8), 5001)
    gaps = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]  # noqa: RUF007
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(1 / 50, rel=0.05)
    assert deviation == pytest.approx(mean, rel=0.06)  # as exponential gaps have it


def test_a_straddle_steps_at_each_half_period():
    load = Load("straddle", low=3, high=7, period_s=2.0, duration_s=5.0)
    levels = [allowed_in_flight(load, None, at) for at in (0.0, 0.99, 1.0, 1.99, 2.0, 3.5)]
    assert levels == [3, 3, 7, 7, 3, 7]
    assert [next_step_s(load, at) for at in (0.0, 0.4, 1.0, 2.9)] == [1.0, 1.0, 2.0, 3.0]
    assert not is_over(load, 4.999)
    assert is_over(load, 5.0)


def test_a_closed_load_has_one_level_and_no_steps():
    load = Load("closed")
    assert allowed_in_flight(load, 5, 100.0) == 5
    assert next_step_s(load, 1.0) is None
    assert not is_over(load, 1e9)
