"""The stand-in engine speaks SGLang's HTTP, with the field names and statuses of the 0.5.11 source."""

from __future__ import annotations

import json
import socket
import time
from itertools import pairwise
from typing import Any

import httpx
import pytest

from tests.demo.engines import EAGLE3, EngineProcess, StartEngine, running

pytestmark = pytest.mark.wheels
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Explain a ring buffer."}], "temperature": 0}


@pytest.fixture(scope="module")
def engine(site: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    log = tmp_path_factory.mktemp("engine") / "server.log"
    with running(site, log, (*EAGLE3, "--enable-metrics", "--enable-cache-report")) as process:
        yield process.wait_ready()


def test_health_is_refused_then_503_then_200(start: StartEngine) -> None:
    engine = start(DYNSPEC_DEMO_SPEED="1", DYNSPEC_DEMO_LOAD_S="0.5")
    seen = []
    deadline = time.monotonic() + 15
    while (not seen or seen[-1] != 200) and time.monotonic() < deadline:
        status = engine.health()
        if not seen or seen[-1] != status:
            seen.append(status)
    assert seen == [None, 503, 200]


def test_the_first_log_line_and_server_info_say_that_it_is_simulated(engine: EngineProcess) -> None:
    assert "SIMULATED" in engine.log.splitlines()[0]
    assert "SIMULATED" in engine.get("/server_info")["simulated"]


def test_load_progress_shows_shards_and_percent(engine: EngineProcess) -> None:
    assert "Loading safetensors checkpoint shards:  50% Completed | 2/4 [" in engine.log
    assert "The server is fired up and ready to roll!" in engine.log


def test_a_generate_stream_repeats_all_text_and_ids_in_each_event(engine: EngineProcess) -> None:
    params = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
    events = engine.events("/generate", {"text": "one two three", "sampling_params": params})
    assert len(events) < 24, "a speculating server sends several tokens an event"
    for before, after in pairwise(events):
        assert after["text"].startswith(before["text"])
        assert after["output_ids"][: len(before["output_ids"])] == before["output_ids"]
    last = events[-1]["meta_info"]
    assert events[0]["meta_info"]["finish_reason"] is None
    assert last["finish_reason"] == {"type": "length", "length": 24}
    assert last["completion_tokens"] == len(events[-1]["output_ids"]) == 24
    assert last["spec_verify_ct"] == len(events) - 1
    assert last["spec_accept_length"] == pytest.approx(24 / last["spec_verify_ct"])


def test_a_prompt_of_token_ids_is_served(engine: EngineProcess) -> None:
    body = {"input_ids": [5, 6, 7, 8], "sampling_params": {"temperature": 0, "max_new_tokens": 5}}
    answer = engine.post("/generate", body).json()
    assert answer["meta_info"]["prompt_tokens"] == 4
    assert len(answer["output_ids"]) == 5


def test_without_tokenizer_answers_have_ids_and_no_text(start: StartEngine) -> None:
    engine = start("--skip-tokenizer-init").wait_ready()
    body = {"input_ids": [5, 6, 7], "sampling_params": {"temperature": 0, "max_new_tokens": 4}}
    answer = engine.post("/generate", body).json()
    assert "text" not in answer
    assert len(answer["output_ids"]) == 4
    refused = engine.post("/generate", {"text": "hello", "sampling_params": {}})
    assert refused.status_code == 400
    assert "input_ids" in refused.json()["error"]["message"]


def test_a_chat_stream_has_role_content_finish_and_usage_chunks(engine: EngineProcess) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {**CHAT, "max_tokens": 16, "ignore_eos": True, "stream_options": options}
    chunks = engine.events("/v1/chat/completions", body)
    role, *content, finish, usage = chunks
    assert role["choices"][0]["delta"] == {"reasoning_content": None, "role": "assistant", "content": ""}
    assert "usage" not in role
    counts = [chunk["usage"]["completion_tokens"] for chunk in content]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[-1] == 16
    assert finish["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 16
    assert usage["usage"]["total_tokens"] == usage["usage"]["prompt_tokens"] + 16


def test_usage_comes_only_when_asked_for(engine: EngineProcess) -> None:
    chunks = engine.events("/v1/chat/completions", {**CHAT, "max_tokens": 4})
    assert all(chunk.get("usage") is None for chunk in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_streamed_and_whole_answers_are_the_same_text(engine: EngineProcess) -> None:
    streamed = engine.events("/v1/chat/completions", {**CHAT, "max_tokens": 20})
    text = "".join(c["choices"][0]["delta"].get("content") or "" for c in streamed)
    whole = engine.post("/v1/chat/completions", {**CHAT, "max_tokens": 20}).json()
    assert whole["choices"][0]["message"]["content"] == text
    assert whole["usage"]["completion_tokens"] == 20


def test_completions_take_text_or_ids_and_send_text_pieces(engine: EngineProcess) -> None:
    body = {"model": "m", "prompt": "a b c", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    chunks = engine.events("/v1/completions", {**body, "stream_options": {"include_usage": True}})
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"])
    assert text == engine.post("/v1/completions", body).json()["choices"][0]["text"]
    assert chunks[-1]["usage"]["completion_tokens"] == 12
    assert engine.post("/v1/completions", {**body, "prompt": [4, 5, 6]}).json()["usage"]["prompt_tokens"] == 3


def test_without_ignore_eos_an_answer_ends_by_itself(engine: EngineProcess) -> None:
    answer = engine.generate("tell me more", 4000, ignore_eos=False)
    assert answer["meta_info"]["finish_reason"]["type"] == "stop"
    assert answer["meta_info"]["completion_tokens"] < 4000


def test_greedy_answers_repeat_and_sampled_ones_differ(engine: EngineProcess) -> None:
    assert engine.generate("same", 12)["text"] == engine.generate("same", 12)["text"]
    assert engine.generate("same", 12, temperature=1.0)["text"] != engine.generate("same", 12)["text"]


def test_a_repeated_prompt_is_cached_until_the_cache_is_flushed(engine: EngineProcess) -> None:
    prompt = "every word of this prompt is new to the cache " * 3
    first = engine.generate(prompt, 4)["meta_info"]
    again = engine.generate(prompt, 4)["meta_info"]
    assert first["cached_tokens"] < again["cached_tokens"] == again["prompt_tokens"] - 1
    assert engine.post("/flush_cache", {}).status_code == 200
    assert engine.generate(prompt, 4)["meta_info"]["cached_tokens"] == 0


def test_the_cache_report_stands_in_the_usage(engine: EngineProcess) -> None:
    body = {
        "model": "m",
        "prompt": "a prompt that comes twice and has words",
        "max_tokens": 2,
        "temperature": 0,
    }
    engine.post("/v1/completions", body)
    usage = engine.post("/v1/completions", body).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1


def test_a_busy_server_refuses_to_flush(engine: EngineProcess) -> None:
    with httpx.stream(
        "POST",
        engine.base + "/generate",
        json={
            "text": "long",
            "stream": True,
            "sampling_params": {"max_new_tokens": 4000, "ignore_eos": True, "temperature": 0},
        },
        timeout=20,
    ) as response:
        lines = response.iter_lines()  # kept: a dropped iterator closes the response
        next(lines)
        refused = engine.post("/flush_cache", {})
        assert refused.status_code == 400
        assert "Cache not flushed because there are pending requests" in engine.log
        waited = engine.post("/flush_cache?timeout=0.2", {})
        assert waited.text == "Timed out waiting for idle state."
    wait_idle(engine)
    assert engine.post("/flush_cache", {}).status_code == 200


def test_a_client_that_leaves_frees_its_place(engine: EngineProcess) -> None:
    body = {"text": "gone", "stream": True, "sampling_params": {"max_new_tokens": 8000, "ignore_eos": True}}
    with httpx.stream("POST", engine.base + "/generate", json=body, timeout=20) as response:
        lines = response.iter_lines()
        next(lines)
        assert metric(engine, "num_running_reqs") == 1
    wait_idle(engine)


def test_abort_request_ends_a_stream_with_finish_reason_abort(engine: EngineProcess) -> None:
    body = {
        "text": "abort me",
        "rid": "abc-1",
        "sampling_params": {"max_new_tokens": 8000, "ignore_eos": True},
    }
    with engine.client.stream("POST", "/generate", json={**body, "stream": True}) as response:
        events = (line for line in response.iter_lines() if line.startswith("data: {"))
        next(events)  # it runs
        assert engine.post("/abort_request", {"rid": "abc"}).status_code == 200
        *_, last = events
    meta = json.loads(last.removeprefix("data: "))["meta_info"]
    assert meta["finish_reason"]["type"] == "abort"
    assert meta["completion_tokens"] > 0


def test_metrics_have_sglangs_names_and_count(engine: EngineProcess) -> None:
    before = metric(engine, "generation_tokens_total")
    engine.generate("count these", 7)
    assert metric(engine, "generation_tokens_total") == before + 7
    text = httpx.get(engine.base + "/metrics").text
    assert "# TYPE sglang:time_to_first_token_seconds histogram" in text
    assert 'sglang:e2e_request_latency_seconds_bucket{engine_type="unified"' in text


def test_metrics_are_absent_without_the_flag(start: StartEngine) -> None:
    engine = start().wait_ready()
    assert httpx.get(engine.base + "/metrics").status_code == 404


def test_set_internal_state_says_true_even_when_it_refused(engine: EngineProcess) -> None:
    answer = engine.post("/set_internal_state", {"server_args": {"port": 1}})
    assert answer.json() == [True]
    assert "Updating port is not supported." in engine.log
    assert engine.state()["port"] == engine.port


def test_models_and_model_info(engine: EngineProcess) -> None:
    (card,) = engine.get("/v1/models")["data"]
    assert card["id"] == "org/model"
    assert engine.get("/get_model_info")["model_path"] == "org/model"
    assert engine.get("/model_info")["is_generation"] is True


def test_accept_length_is_in_the_internal_state_after_a_decode_line(engine: EngineProcess) -> None:
    engine.post("/flush_cache", {})
    assert "avg_spec_accept_length" not in engine.state()
    engine.generate("long enough for a decode line", 400)
    state = engine.state()
    assert 1.6 < state["avg_spec_accept_length"] < 2.4
    assert state["last_gen_throughput"] > 0
    assert state["memory_usage"]["token_capacity"] == engine.get("/server_info")["max_total_num_tokens"]
    assert "accept len: " in engine.log


def test_health_generate_makes_a_token_and_is_not_counted(engine: EngineProcess) -> None:
    before = metric(engine, "num_requests_total")
    assert httpx.get(engine.base + "/health_generate").status_code == 200
    assert metric(engine, "num_requests_total") == before


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/generate", {}, 400, "Either text, input_ids"),
        ("/generate", {"text": "a", "sampling_params": {"regex": "a+"}}, 400, "regex is not simulated"),
        ("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 10**6}}, 400, "context length"),
        ("/v1/chat/completions", {"messages": []}, 400, "at least one message"),
        ("/v1/completions", {"prompt": "a", "n": 2}, 400, "n > 1 is not simulated"),
        ("/generate", {"text": "a", "sampling_params": "hot"}, 500, "Internal server error"),
        ("/nothing", {}, 404, "Not Found"),
    ],
)
def test_a_request_that_cannot_be_served_says_why(
    engine: EngineProcess, path: str, body: dict[str, Any], status: int, words: str
) -> None:
    answer = engine.post(path, body)
    assert answer.status_code == status
    assert words in answer.text


def metric(engine: EngineProcess, name: str) -> float:
    for line in httpx.get(engine.base + "/metrics").text.splitlines():
        if line.startswith(f"sglang:{name}{{"):
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"no metric {name}")


def wait_idle(engine: EngineProcess) -> None:
    deadline = time.monotonic() + 30
    while metric(engine, "num_running_reqs"):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_body_of_unknown_length_is_refused_and_the_server_lives_on(engine: EngineProcess) -> None:
    answer = httpx.post(engine.base + "/generate", content=iter([b"{}"]))
    assert answer.status_code == 411
    assert engine.health() == 200


def test_requests_on_one_connection_are_answered_in_order(engine: EngineProcess) -> None:
    body = b'{"text": "pipelined", "sampling_params": {"temperature": 0, "max_new_tokens": 3}}'
    request = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    last = b"GET /model_info HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", engine.port), timeout=10) as raw:
        for byte in request + request + last:  # byte by byte: heads and bodies arrive in pieces
            raw.sendall(bytes([byte]))
        answer = b""
        while piece := raw.recv(65536):
            answer += piece
    assert answer.count(b"HTTP/1.1 200 OK") == 3
    assert answer.count(b'"completion_tokens": 3') == 2
    assert answer.endswith(b"}")
