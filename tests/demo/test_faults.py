"""Each scripted fault does what its line in `faults.py` says."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestrator.demo.engine.faults import NAMES, Faults, UnknownFault
from tests.demo.engines import EAGLE3, EAGLE3_V1, EngineProcess, StartEngine

pytestmark = pytest.mark.wheels
BODY = {"text": "fault", "sampling_params": {"temperature": 0, "max_new_tokens": 50, "ignore_eos": True}}


@pytest.mark.parametrize(
    ("fault", "code"), [("exit-during-load", 3), ("exit-during-load:9", 9), ("exit0-during-load", 0)]
)
def test_it_exits_while_loading_with_the_asked_code(start: StartEngine, fault: str, code: int) -> None:
    engine = start(DYNSPEC_DEMO_FAULT=fault)
    assert engine.wait_exit() == code
    assert "cannot read shard 3" in engine.log
    assert " 50% Completed" in engine.log
    assert "100% Completed" not in engine.log


def test_out_of_memory_kills_the_process_after_a_traceback(start: StartEngine) -> None:
    engine = start(DYNSPEC_DEMO_FAULT="oom-at-load")
    assert engine.wait_exit() == -signal.SIGKILL
    assert "torch.OutOfMemoryError: CUDA out of memory" in engine.log


@pytest.mark.parametrize("flags", [EAGLE3, EAGLE3_V1], ids=["v2", "v1"])
def test_it_crashes_when_ten_requests_speculate(start: StartEngine, flags: tuple[str, ...]) -> None:
    engine = start(*flags, DYNSPEC_DEMO_FAULT="crash-at-10").wait_ready()
    with ThreadPoolExecutor(9) as pool:
        assert all(r.status_code == 200 for r in pool.map(lambda _: engine.post("/generate", BODY), range(9)))
    assert engine.process.poll() is None
    tokens = {**BODY, "sampling_params": {**BODY["sampling_params"], "max_new_tokens": 2000}}  # type: ignore[dict-item]
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(lambda _: _swallow(engine, tokens), range(10)))
    assert engine.wait_exit() == -signal.SIGKILL
    wide = 10 * (4 if flags is EAGLE3 else 16)
    assert f"RuntimeError: shape '[{wide}]' is invalid for input of size 2" in engine.log


def test_a_server_without_speculation_does_not_crash_at_ten(start: StartEngine) -> None:
    engine = start(DYNSPEC_DEMO_FAULT="crash-at-10").wait_ready()
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: engine.post("/generate", BODY), range(12)))
    assert all(answer.status_code == 200 for answer in answers)


def test_a_hung_server_is_healthy_and_never_yields(start: StartEngine) -> None:
    engine = start(DYNSPEC_DEMO_FAULT="hang").wait_ready()
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(engine.base + "/generate", json=BODY, timeout=0.5)
    assert engine.health() == 200


def test_a_stuck_load_writes_no_byte(start: StartEngine) -> None:
    engine = start(DYNSPEC_DEMO_FAULT="stuck-load")
    while " 50% Completed" not in engine.log:
        time.sleep(0.02)
    size = len(engine.log)
    time.sleep(0.8)
    assert len(engine.log) == size
    assert engine.process.poll() is None
    assert engine.health() is None


def test_busy_health_is_503_while_tokens_flow(start: StartEngine) -> None:
    engine = start(DYNSPEC_DEMO_FAULT="busy-health").wait_ready()
    body = {**BODY, "stream": True, "sampling_params": {"max_new_tokens": 3000, "ignore_eos": True}}
    with httpx.stream("POST", engine.base + "/generate", json=body, timeout=60) as response:
        lines = response.iter_lines()
        next(lines)
        assert engine.health() == 503
        assert next(line for line in lines if line)
    deadline = time.monotonic() + 30
    while engine.health() != 200:
        assert time.monotonic() < deadline


def test_an_escaped_worker_holds_its_port_after_the_server_is_gone(start: StartEngine) -> None:
    engine = start(DYNSPEC_DEMO_FAULT="worker-escapes").wait_ready()
    (pid,) = _processes_named("sglang::escaped", str(engine.process.pid))
    try:
        assert os.getsid(pid) != engine.process.pid
        assert Path(f"/proc/{pid}/stat").read_text().split()[3] != str(engine.process.pid)
        os.killpg(engine.process.pid, signal.SIGKILL)
        engine.wait_exit()
        time.sleep(0.2)
        assert _listens(engine.port + 1)
    finally:
        os.kill(pid, signal.SIGKILL)


def test_ranks_are_real_processes_that_end_with_the_server(start: StartEngine) -> None:
    engine = start("--tp-size", "4").wait_ready()
    ranks = [_processes_named(f"sglang::scheduler_TP{i}", str(engine.process.pid)) for i in (1, 2, 3)]
    assert [len(found) for found in ranks] == [1, 1, 1]
    assert all(os.getpgid(found[0]) == engine.process.pid for found in ranks)
    engine.process.kill()
    engine.wait_exit()
    deadline = time.monotonic() + 30
    while any(_alive(found[0]) for found in ranks):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_sigterm_ends_a_server_with_code_0(start: StartEngine) -> None:
    engine = start().wait_ready()
    engine.process.terminate()
    assert engine.wait_exit() == 0


def test_a_slow_stop_ignores_sigterm(start: StartEngine) -> None:
    engine = start(DYNSPEC_DEMO_FAULT="slow-stop").wait_ready()
    engine.process.terminate()
    time.sleep(0.5)
    assert engine.process.poll() is None
    assert "SIGTERM received" in engine.log


def test_every_second_stream_carries_an_error_event(start: StartEngine) -> None:
    engine = start(DYNSPEC_DEMO_FAULT="error-in-stream:2").wait_ready()
    first, second = (engine.events("/generate", BODY) for _ in range(2))
    assert "error" not in first[0]
    assert second == [{"error": {"message": "simulated fault: error inside the stream"}}]


def test_every_second_request_is_aborted(start: StartEngine) -> None:
    engine = start(DYNSPEC_DEMO_FAULT="abort:2").wait_ready()
    body = {"prompt": "a b", "max_tokens": 50, "temperature": 0, "ignore_eos": True}
    first, second = (engine.events("/v1/completions", body) for _ in range(2))
    assert first[-1]["choices"][0]["finish_reason"] == "length"
    assert second[-1]["choices"][0]["finish_reason"] == "abort"


def test_every_second_stream_is_empty(start: StartEngine) -> None:
    engine = start(DYNSPEC_DEMO_FAULT="empty:2").wait_ready()
    assert len(engine.events("/generate", BODY)) > 10
    assert engine.events("/generate", BODY) == []


def test_every_second_request_is_refused(start: StartEngine) -> None:
    engine = start(DYNSPEC_DEMO_FAULT="reject:2").wait_ready()
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    statuses = [engine.post("/v1/chat/completions", body).status_code for _ in range(4)]
    assert statuses == [200, 503, 200, 503]


def test_short_output_stops_although_ignore_eos_was_asked(start: StartEngine) -> None:
    engine = start(*EAGLE3, DYNSPEC_DEMO_FAULT="short-output").wait_ready()
    answer: dict[str, Any] = engine.generate("short", 256)["meta_info"]
    assert answer["completion_tokens"] == 37  # the stop token is counted
    assert answer["finish_reason"]["type"] == "stop"


def test_usage_can_be_missing(start: StartEngine) -> None:
    engine = start(DYNSPEC_DEMO_FAULT="no-usage").wait_ready()
    body = {"prompt": "a", "max_tokens": 3, "stream_options": {"include_usage": True}}
    assert all(event.get("usage") is None for event in engine.events("/v1/completions", body))


def test_a_divergent_server_gives_other_text_under_speculation(start: StartEngine) -> None:
    plain = start(DYNSPEC_DEMO_FAULT="divergent").wait_ready().generate("same prompt", 20)["text"]
    assert (
        start(*EAGLE3, DYNSPEC_DEMO_FAULT="divergent").wait_ready().generate("same prompt", 20)["text"]
        != plain
    )


def test_secrets_reach_the_log_as_they_do_with_the_real_server(start: StartEngine) -> None:
    secret = "hf_first-line\nsecond-line"
    engine = start("--api-key", "sk-sentinel", DYNSPEC_DEMO_FAULT="leak-secret", HF_TOKEN=secret)
    while "fired up" not in engine.log:
        assert engine.process.poll() is None
        time.sleep(0.02)
    assert secret in engine.log
    assert "api_key='sk-sentinel'" in engine.log
    assert httpx.get(engine.base + "/server_info").status_code == 401
    header = {"Authorization": "Bearer sk-sentinel"}
    assert httpx.get(engine.base + "/server_info", headers=header).json()["api_key"] == "sk-sentinel"


@pytest.mark.parametrize(("unbuffered", "kept"), [("1", True), ("", False)])
def test_lines_without_a_flush_survive_a_kill_only_if_output_is_unbuffered(
    start: StartEngine, unbuffered: str, kept: bool
) -> None:
    engine = start(DYNSPEC_DEMO_FAULT="lost-lines", PYTHONUNBUFFERED=unbuffered)
    assert engine.wait_exit() == -signal.SIGKILL
    assert ("unflushed line 3" in engine.log) is kept


def test_an_unknown_fault_is_named(start: StartEngine) -> None:
    engine = start(DYNSPEC_DEMO_FAULT="crash-at-tea")
    assert engine.wait_exit() == 1
    assert "no fault 'crash-at-tea'" in engine.log


def test_every_fault_is_described_where_it_is_read() -> None:
    from orchestrator.demo.engine import faults

    assert faults.__doc__ is not None
    for name in NAMES:
        assert f"| {name}" in faults.__doc__, name
    with pytest.raises(UnknownFault):
        Faults.from_env({"DYNSPEC_DEMO_FAULT": "hang:soon"})


def _swallow(engine: EngineProcess, body: dict[str, Any]) -> None:
    try:
        engine.post("/generate", body)
    except httpx.TransportError:
        pass


def _processes_named(name: str, parent: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            if name in words and parent in words:
                found.append(int(entry.name))
    return found


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _listens(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
