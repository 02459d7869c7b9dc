"""The packed generator against a real server: what it sends, when, and what it writes down."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from orchestrator.load.pack import build_zipapp
from tests.loadgen.loadstub import (
    STREAM_HEAD,
    LoadStub,
    Reply,
    Request,
    chat_chunk,
    chat_script,
    usage,
    usage_chunk,
)


class Run:
    """One run of the generator: exit code, summary, records by phase, progress lines."""

    def __init__(self, process: subprocess.CompletedProcess[str], records: Path) -> None:
        self.code = process.returncode
        self.stderr = process.stderr
        lines = [json.loads(line) for line in process.stdout.splitlines()]
        self.summary: dict[str, Any] = lines[-1]["summary"] if lines else {}
        self.progress = lines[:-1]
        rows = [json.loads(line) for line in records.read_text().splitlines()] if records.exists() else []
        self.load = [row for row in rows if row["phase"] == "load"]
        self.warmup = [row for row in rows if row["phase"] == "warmup"]


@pytest.fixture(scope="session")
def pyz(tmp_path_factory):
    path = tmp_path_factory.mktemp("pyz") / "loadgen.pyz"
    path.write_bytes(build_zipapp())
    return path


def wait_for_requests(stub: LoadStub, count: int) -> None:
    deadline = time.monotonic() + 20
    while len(stub.seen.requests) < count:
        assert time.monotonic() < deadline, f"{len(stub.seen.requests)} of {count} requests came"
        time.sleep(0.005)


@pytest.fixture
def offer(pyz, tmp_path):
    """Run the generator against a port; further spec keys override the defaults."""

    def run(port: int, requests: int = 8, warmup: int = 0, **more: Any) -> Run:
        return Run(start(port, requests, warmup, **more).finish(), tmp_path / "records.jsonl")

    class start:  # noqa: N801
        def __init__(self, port: int, requests: int = 8, warmup: int = 0, **more: Any) -> None:
            template = {"model": "m", "stream": True, "max_tokens": 4}
            spec = {
                "schema": 1, "host": "127.0.0.1", "port": port, "endpoint": "/v1/chat/completions",
                "requests": {"template": template, "prompts": [f"p{i}" for i in range(requests)]},
                "warmup": {"template": template, "prompts": [f"w{i}" for i in range(warmup)]},
                "concurrency": 2, "load": {"kind": "closed"}, **more,
            }  # fmt: skip
            (tmp_path / "spec.json").write_text(json.dumps(spec))
            argv = [sys.executable, str(pyz), str(tmp_path / "spec.json"), str(tmp_path / "records.jsonl")]
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True, cwd=tmp_path)

        def finish(self) -> subprocess.CompletedProcess[str]:
            out, err = self.process.communicate(timeout=60)
            return subprocess.CompletedProcess((), self.process.returncode, out, err)

    run.start = start
    run.result = lambda started: Run(started.finish(), tmp_path / "records.jsonl")
    run.folder = tmp_path
    return run


def test_a_closed_loop_keeps_exactly_the_asked_concurrency_and_the_order(offer):
    with LoadStub(chat_script(first_s=0.03)) as stub:
        run = offer(stub.port, requests=24, concurrency=6)
    assert run.code == 0
    assert stub.seen.peak == 6
    assert stub.seen.connections == 6
    assert sorted(r.body["messages"][0]["content"] for r in stub.seen.requests) == sorted(
        f"p{i}" for i in range(24)
    )
    first = [r.body["messages"][0]["content"] for r in stub.seen.requests[:6]]
    assert set(first) == {f"p{i}" for i in range(6)}
    assert [row["i"] for row in run.load] == list(range(24))
    assert run.summary["phases"]["load"] == {"attempted": 24, "ok": 24, "failed": 0}
    assert run.summary["tokens"] == {"prompt": 120, "cached": None, "output": 96}
    assert run.summary["peak_in_flight"] == 6


def test_times_are_those_of_the_server_s_script(offer):
    with LoadStub(chat_script(tokens=5, first_s=0.2, gap_s=0.05)) as stub:
        run = offer(stub.port, requests=4, record_chunks=True)
    # The half of them, since a busy machine may hold up one or another; none can be early.
    assert median(row["first_ns"] - row["sent_ns"] for row in run.load) / 1e9 == pytest.approx(0.2, abs=0.05)
    assert median(row["last_ns"] - row["first_ns"] for row in run.load) / 1e9 == pytest.approx(0.2, abs=0.05)
    for row in run.load:
        assert (row["first_ns"] - row["sent_ns"]) / 1e9 > 0.195
        assert (row["chunks"], row["first_tokens"], row["output_tokens"]) == (5, 1, 5)
    gaps = run.summary["chunk_gap_ns"]
    assert gaps["n"] == 16
    assert gaps["p50"] / 1e9 == pytest.approx(0.05, abs=0.02)
    rows = [json.loads(line) for line in (offer.folder / "records.jsonl.chunks").read_text().splitlines()]
    assert [len(row["ns"]) for row in rows] == [5, 5, 5, 5]
    assert [row["ns"][0] for row in rows] == [row["first_ns"] for row in run.load]


def test_nothing_is_sent_twice_when_the_server_is_busy(offer):
    async def script(request: Request, reply: Reply) -> None:
        if request.number % 3 == 0:
            await reply.status(503, "queue full")
        else:
            await chat_script()(request, reply)

    with LoadStub(script) as stub:
        run = offer(stub.port, requests=12)
    assert len(stub.seen.requests) == 12
    assert run.summary["phases"]["load"] == {"attempted": 12, "ok": 8, "failed": 4}
    assert run.summary["errors"] == {"HTTP 503: queue full": 4}


def test_a_hang_up_mid_stream_fails_that_request_and_the_load_goes_on(offer):
    async def script(request: Request, reply: Reply) -> None:
        if request.number == 1:
            await reply.send(STREAM_HEAD)
            await reply.event(chat_chunk("half", usage=usage(1)))
            reply.hang_up()
        await chat_script()(request, reply)

    with LoadStub(script) as stub:
        run = offer(stub.port, requests=6)
    failed = [row for row in run.load if not row["ok"]]
    assert len(failed) == 1
    assert failed[0]["error"].startswith("disconnected after ")
    assert failed[0]["output_tokens"] == 1
    assert len(stub.seen.requests) == 6


def test_a_silent_stream_is_given_up_after_the_idle_limit(offer):
    async def script(request: Request, reply: Reply) -> None:
        if request.number == 0:
            await reply.send(STREAM_HEAD)
            await reply.event(chat_chunk("then nothing"))
            await reply.pause(30)
        await chat_script(tokens=8, gap_s=0.1)(request, reply)

    with LoadStub(script) as stub:
        began = time.monotonic()
        run = offer(stub.port, requests=3, idle_timeout_s=0.4)
    assert time.monotonic() - began < 10
    assert [row["error"] for row in run.load if not row["ok"]] == ["idle: nothing came for 0.4 s"]
    assert (
        run.summary["phases"]["load"]["ok"] == 2
    )  # slower in all than the limit, but never silent for so long


def test_a_request_that_never_ends_is_given_up_after_its_limit(offer):
    async def script(request: Request, reply: Reply) -> None:
        await reply.send(STREAM_HEAD)
        while True:
            await reply.event(chat_chunk("more "))
            await reply.pause(0.02)

    with LoadStub(script) as stub:
        run = offer(stub.port, requests=2, request_timeout_s=0.5)
    assert {row["error"] for row in run.load} == {"timeout: not finished within 0.5 s"}


def test_a_server_that_is_not_there_is_a_result_and_not_a_crash(offer):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run = offer(port, requests=5)
    assert run.code == 0
    assert run.summary["phases"]["load"] == {"attempted": 5, "ok": 0, "failed": 5}
    assert all(row["error"].startswith("connect: ") and row["sent_ns"] is None for row in run.load)


@pytest.mark.parametrize("place", [{"port": 70_000}, {"port": 1, "host": "a" * 64}])
def test_a_place_that_no_server_can_be_at_is_a_result_and_no_wait_without_end(offer, place):
    run = offer(requests=2, **place)
    assert run.code == 0
    assert [row["error"][:9] for row in run.load] == ["connect: "] * 2


def test_a_server_that_closes_after_each_response_is_followed(offer):
    async def script(request: Request, reply: Reply) -> None:
        await reply.send(STREAM_HEAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        await reply.event(chat_chunk("a", usage=usage(1), finish_reason="stop"))
        await reply.end()

    with LoadStub(script) as stub:
        run = offer(stub.port, requests=6)
    assert run.summary["phases"]["load"]["ok"] == 6
    assert stub.seen.connections >= 6


def test_the_warm_up_is_of_the_same_shape_counted_and_left_out(offer):
    cold: list[int] = []

    async def script(request: Request, reply: Reply) -> None:
        if not cold:
            cold.append(request.number)
            await reply.pause(0.6)
        await chat_script()(request, reply)

    began = time.time()
    with LoadStub(script) as stub:
        run = offer(stub.port, requests=8, warmup=4, concurrency=4)
    assert stub.seen.peak == 4
    assert run.summary["phases"]["warmup"] == {"attempted": 4, "ok": 4, "failed": 0}
    assert max(row["first_ns"] - row["sent_ns"] for row in run.warmup) / 1e9 > 0.6
    assert max(row["first_ns"] - row["sent_ns"] for row in run.load) / 1e9 < 0.6
    assert max(row["end_ns"] for row in run.warmup) < min(row["sent_ns"] for row in run.load)
    begun = datetime.fromisoformat(run.summary["wall_start_utc"]).timestamp()
    assert began + 0.6 < begun < time.time()  # of the load, and to the millisecond
    assert run.summary["wall_start_utc"][19] == "."
    assert run.summary["tokens"]["output"] == 8 * 4


def test_a_failed_warm_up_stops_the_point(offer):
    async def script(request: Request, reply: Reply) -> None:
        await reply.status(500, "no")

    with LoadStub(script) as stub:
        run = offer(stub.port, requests=8, warmup=2)
    assert run.code == 0
    assert run.summary["stopped"] == "warm-up failed: 2 of 2 requests, first: HTTP 500: no"
    assert run.load == []
    assert len(stub.seen.requests) == 2


def test_a_warm_up_alone_is_a_run_of_its_own(offer):
    with LoadStub(chat_script()) as stub:
        run = offer(stub.port, requests=0, warmup=3)
    assert run.summary["phases"] == {
        "warmup": {"attempted": 3, "ok": 3, "failed": 0},
        "load": {"attempted": 0, "ok": 0, "failed": 0},
    }


def test_an_open_load_sends_at_its_due_times_however_slow_the_server(offer):
    load = {"kind": "open", "arrival": "constant", "rate_per_s": 20.0}
    with LoadStub(chat_script(first_s=1.0)) as stub:
        run = offer(stub.port, requests=16, concurrency=None, load=load)
    due = [row["due_ns"] for row in run.load]
    assert [(later - earlier) / 1e9 for earlier, later in pairwise(due)] == pytest.approx(
        [0.05] * 15, abs=1e-6
    )
    # Whoever waited for the server would be a second late, and later each time.
    assert max(row["sent_ns"] - row["due_ns"] for row in run.load) / 1e9 < 0.9
    assert stub.seen.peak > 5


def test_an_open_load_with_a_cap_records_the_wait_for_a_slot(offer):
    load = {"kind": "open", "arrival": "constant", "rate_per_s": 40.0}
    with LoadStub(chat_script(first_s=0.2)) as stub:
        run = offer(stub.port, requests=5, concurrency=1, load=load)
    assert stub.seen.peak == 1
    last = run.load[-1]
    assert (last["sent_ns"] - last["due_ns"]) / 1e9 > 0.6  # waited for four others
    assert 0.195 < (last["first_ns"] - last["sent_ns"]) / 1e9 < 0.6  # and that is not in its latency


def test_a_stepping_load_goes_up_and_down_tells_its_progress_and_ends_by_its_duration(offer):
    load = {"kind": "straddle", "low": 2, "high": 6, "period_s": 0.8, "duration_s": 2.0}
    with LoadStub(chat_script(tokens=2, first_s=0.02)) as stub:
        run = offer(stub.port, requests=2000, concurrency=None, load=load)
    began = min(row["sent_ns"] for row in run.load)

    def in_flight(at_s: float) -> int:
        at = began + int(at_s * 1e9)
        return sum(row["sent_ns"] <= at < row["end_ns"] for row in run.load)

    def peak(begin_s: float, end_s: float) -> int:
        return max(in_flight(begin_s + (end_s - begin_s) * step / 40) for step in range(41))

    assert [peak(0.15, 0.38), peak(0.45, 0.78), peak(0.95, 1.18), peak(1.25, 1.58)] == [2, 6, 2, 6]
    assert run.summary["unsent"] > 0
    assert 1.5 < (max(row["sent_ns"] for row in run.load) - began) / 1e9 <= 2.0
    _counts_each_second(run)


def _counts_each_second(run: Run) -> None:
    assert [round(line["elapsed_s"]) for line in run.progress[:2]] == [1, 2][: len(run.progress)]
    last = run.progress[-1]
    assert set(last) == {"phase", "done", "failed", "in_flight", "output_tokens", "elapsed_s"}
    assert (last["phase"], last["failed"]) == ("load", 0)
    assert 0 < last["done"] <= len(run.load)
    assert last["output_tokens"] == last["done"] * 2


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_everything_measured_so_far(offer, signum):
    with LoadStub(chat_script(tokens=10, gap_s=0.05)) as stub:
        started = offer.start(stub.port, requests=1000, concurrency=3)
        wait_for_requests(stub, 7)  # three have been answered, and then some
        started.process.send_signal(signum)
        began = time.monotonic()
        run = offer.result(started)
        assert time.monotonic() - began < 15
        assert len(stub.seen.requests) == len(run.load)
    assert run.code == 0
    assert run.summary["interrupted"] is True
    cut = [row for row in run.load if row["error"] == "interrupted"]
    assert 1 <= len(cut) <= 3
    assert run.summary["phases"]["load"]["ok"] == len(run.load) - len(cut) >= 3
    assert run.summary["unsent"] == 1000 - len(run.load)


def test_a_signal_during_the_warm_up_offers_no_load(offer):
    with LoadStub(chat_script(tokens=100, gap_s=0.1)) as stub:
        started = offer.start(stub.port, requests=5, warmup=2)
        wait_for_requests(stub, 2)
        started.process.send_signal(signal.SIGTERM)
        run = offer.result(started)
    assert run.summary["interrupted"] is True
    assert run.summary["stopped"] is None
    assert run.load == []


def test_it_reports_its_own_lateness_and_cpu(offer):
    with LoadStub(chat_script(tokens=10, gap_s=0.02)) as stub:
        client = offer(stub.port, requests=8).summary["client"]
    assert client["lag_ns"]["n"] > 25
    assert 0 <= client["lag_ns"]["p50"] <= client["lag_ns"]["p99"] <= client["lag_ns"]["max"]
    assert sum(client["lag_ns"]["histogram"].values()) == client["lag_ns"]["n"]
    assert 0 < client["cpu_share"] < 1


def test_bodies_are_sent_as_the_digest_says(offer):
    with LoadStub(chat_script()) as stub:
        one, two = (offer(stub.port, requests=n).summary["bodies_sha256"] for n in (3, 4))
        again = offer(stub.port, requests=3, warmup=1).summary["bodies_sha256"]
    assert one == again != two


def test_the_key_goes_into_the_header_and_nowhere_else(offer, monkeypatch):
    monkeypatch.setenv("BENCH_KEY", "sentinel-4711")
    with LoadStub(chat_script()) as stub:
        run = offer(stub.port, requests=2, api_key_env="BENCH_KEY")
        assert stub.seen.requests[0].headers["authorization"] == "bearer sentinel-4711"
    written = (offer.folder / "records.jsonl").read_text() + json.dumps(run.summary)
    assert "sentinel-4711" not in written


def test_a_bad_spec_ends_with_2_and_one_line(offer):
    run = offer(1, concurrency=0)
    assert run.code == 2
    assert run.stderr.startswith("loadgen: ")
    assert run.stderr.endswith("spec.json: concurrency: must be at least 1, not 0\n")
    assert run.stderr.count("\n") == 1


def test_arguments_and_files_that_are_missing_end_with_2_and_one_line(pyz, tmp_path):
    for argv in ([], ["one"], [str(tmp_path / "none.json"), str(tmp_path / "out")]):
        run = subprocess.run([sys.executable, str(pyz), *argv], capture_output=True, text=True)
        assert run.returncode == 2
        assert run.stderr.startswith("loadgen: ")
        assert run.stderr.count("\n") == 1


def test_a_stalled_stream_does_not_delay_the_others(offer):
    async def script(request: Request, reply: Reply) -> None:
        if request.number == 0:
            await reply.send(STREAM_HEAD)
            await reply.event(chat_chunk("a", usage=usage(1)))
            await reply.pause(1.5)
            await reply.event(chat_chunk(finish_reason="stop"))
            await reply.event(usage_chunk(1))
            await reply.end()
            return
        await chat_script(first_s=0.05)(request, reply)

    with LoadStub(script) as stub:
        run = offer(stub.port, requests=20, concurrency=2)
    others = [row for row in run.load if row["end_ns"] - row["sent_ns"] < 1.4e9]
    assert len(others) == 19
    assert max(row["first_ns"] - row["sent_ns"] for row in others) / 1e9 < 1.0


def test_a_client_that_could_not_run_says_so_in_its_lag(offer):
    with LoadStub(chat_script(tokens=16, gap_s=0.05)) as stub:
        started = offer.start(stub.port, requests=2)
        wait_for_requests(stub, 2)
        started.process.send_signal(signal.SIGSTOP)
        time.sleep(0.4)
        started.process.send_signal(signal.SIGCONT)
        run = offer.result(started)
    assert run.summary["client"]["lag_ns"]["max"] / 1e9 > 0.35
