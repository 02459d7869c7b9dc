"""The load generator's bars, measured side by side with `sglang.bench_serving` against a server that knows the truth.

    tests/bench/setup_peer.sh               once: the peer's environment in /tmp/dynspec-bench, about 6 GB
    python -m tests.bench [--runs 3]        ours beside the peer, or alone where it is not set up

The server (truth_server.c, built here with gcc) is pinned to one core and the client with all its processes to another;
runs of the two clients alternate. Read the ratios: absolute times are this machine's.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.load.pack import build_zipapp
from orchestrator.load.point import body_template, build_spec
from orchestrator.metrics import nearest_rank

HERE = Path(__file__).resolve().parent
PEER = Path("/tmp/dynspec-bench")


@dataclass(frozen=True)
class Case:
    """`requests` streams of `tokens`, `concurrency` at a time; the first token after `first_ms`, then
    one each `gap_ms`."""

    name: str
    concurrency: int
    requests: int
    tokens: int
    gap_ms: float
    first_ms: float = 50.0

    @property
    def events(self) -> int:
        return self.requests * self.tokens


ONE = Case("one request", 1, 1, 16, 10.0)
PACED = Case("c256, a token each 10 ms", 256, 768, 128, 10.0)
WIDE = Case("c1024, a token each 50 ms", 1024, 3072, 32, 50.0)
FLOOD = Case("c64, no gap", 64, 768, 128, 0.0, first_ms=0.0)


@dataclass(frozen=True)
class Outcome:
    """One run of one client: its own figures beside the server's."""

    wall_s: float
    cpu_s: float
    ttft_s: list[float]
    tpot_s: list[float]
    read_s: float | None  # last client read - first
    parse_s: float
    client_bound_lag_s: float | None
    truth: list[dict[str, int]]


Client = Callable[[Case, int, Path], Outcome]


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--peer", type=Path, default=PEER, help="folder that setup_peer.sh filled")
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--cores", default="0,1", help="core of the server, core of the client")
    ahead = "run server and clients ahead of all other work (SCHED_RR, needs root): for a shared machine"
    options.add_argument("--ahead", action="store_true", help=ahead)
    given = options.parse_args()
    server_core, client_core = given.cores.split(",")
    if given.ahead:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(5))  # server and clients inherit it
    clients: dict[str, Client] = {"ours": own_client(client_core)}
    if (given.peer / "tokenizer").is_dir():
        clients["bench_serving"] = peer_client(given.peer, client_core)
    else:
        print(
            f"no peer in {given.peer}: ours alone; tests/bench/setup_peer.sh {given.peer} sets it up",
            file=sys.stderr,
        )
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), server_core, clients, given.runs)
        results = {case: bench.run(case) for case in (ONE, PACED, WIDE, FLOOD)}
    print(report(results))
    return 0


class Bench:
    """Runs every client `runs` times on a case, in turn, each against a fresh server."""

    def __init__(self, folder: Path, server_core: str, clients: dict[str, Client], runs: int) -> None:
        self._folder = folder
        self._core = server_core
        self._clients = clients
        self._runs = runs
        self._server = folder / "truth_server"
        subprocess.run(
            ["gcc", "-O2", "-Wall", "-o", str(self._server), str(HERE / "truth_server.c")], check=True
        )

    def run(self, case: Case) -> dict[str, list[Outcome]]:
        outcomes: dict[str, list[Outcome]] = {name: [] for name in self._clients}
        for turn in range(self._runs):
            for name, client in self._clients.items():
                print(f"{case.name}: {name}, run {turn + 1} of {self._runs}", file=sys.stderr)
                outcomes[name].append(self._once(case, client))
        return outcomes

    def _once(self, case: Case, client: Client) -> Outcome:
        port = free_port()
        log = self._folder / "truth.csv"
        argv = [
            "taskset",
            "-c",
            self._core,
            str(self._server),
            str(port),
            str(case.first_ms),
            str(case.gap_ms),
            str(log),
        ]
        server = subprocess.Popen(argv)
        try:
            wait_for(port)
            outcome = client(case, port, self._folder)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(30)
        with log.open() as file:
            outcome.truth.extend({k: int(v) for k, v in row.items()} for row in csv.DictReader(file))
        # A client may send a request of its own before the load.
        outcome.truth[:] = sorted(outcome.truth, key=lambda row: row["seq"])[-case.requests :]
        return outcome


def own_client(core: str) -> Client:
    def run(case: Case, port: int, folder: Path) -> Outcome:
        (folder / "loadgen.pyz").write_bytes(build_zipapp())
        template = body_template("chat", model="tiny", output_tokens=case.tokens)
        template["stream_options"] = {"include_usage": True}  # as the peer asks: the same events for both
        prompts = [f"{n} hello hello hello hello" for n in range(case.requests)]
        spec = build_spec(
            host="127.0.0.1", port=port, endpoint="chat", template=template, prompts=prompts,
            concurrency=case.concurrency,
        )  # fmt: skip
        (folder / "spec.json").write_text(json.dumps(spec))
        argv = [sys.executable, "loadgen.pyz", "spec.json", "records.jsonl"]
        output, wall_s, cpu_s = measured(core, argv, folder)
        summary = json.loads(output.splitlines()[-1])["summary"]
        rows = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
        assert summary["phases"]["load"]["ok"] == case.requests, summary["errors"]
        return Outcome(
            wall_s=wall_s,
            cpu_s=cpu_s,
            ttft_s=[(row["first_ns"] - row["sent_ns"]) / 1e9 for row in rows],
            tpot_s=[(row["last_ns"] - row["first_ns"]) / 1e9 / max(case.tokens - 1, 1) for row in rows],
            read_s=(max(row["end_ns"] for row in rows) - min(row["first_ns"] for row in rows)) / 1e9,
            parse_s=summary["client"]["parse_s"],
            client_bound_lag_s=(summary["client"]["lag_ns"]["p99"] or 0) / 1e9,
            truth=[],
        )

    return run


def peer_client(peer: Path, core: str) -> Client:
    def run(case: Case, port: int, folder: Path) -> Outcome:
        result = folder / "peer.jsonl"
        result.unlink(missing_ok=True)
        argv = [
            str(peer / "sglang/bin/python"), "-m", "sglang.benchmark.serving", "--backend", "sglang-oai-chat",
            "--host", "127.0.0.1", "--port", str(port), "--model", "tiny", "--tokenizer", str(peer / "tokenizer"),
            "--dataset-name", "random-ids", "--random-input-len", "16", "--random-output-len", str(case.tokens),
            "--random-range-ratio", "1.0", "--num-prompts", str(case.requests),
            "--max-concurrency", str(case.concurrency), "--warmup-requests", "1",
            "--output-file", str(result), "--output-details", "--disable-tqdm",
        ]  # fmt: skip
        _, wall_s, cpu_s = measured(core, argv, folder)
        found = json.loads(result.read_text().splitlines()[-1])
        assert found["completed"] == case.requests, found
        gaps = [itls for itls in found["itls"] if itls]
        return Outcome(
            wall_s=wall_s,
            cpu_s=cpu_s,
            ttft_s=found["ttfts"],
            tpot_s=[sum(itls) / (case.tokens - 1) for itls in gaps],
            read_s=found["duration"] - min(found["ttfts"]),
            parse_s=0.0,
            client_bound_lag_s=None,
            truth=[],
        )

    return run


def measured(core: str, argv: Sequence[str], folder: Path) -> tuple[str, float, float]:
    """Standard output, wall time and CPU time of a client with all that it started."""
    began = time.perf_counter()
    with (folder / "out.txt").open("w+") as out, (folder / "err.txt").open("w+") as err:
        process = subprocess.Popen(["taskset", "-c", core, *argv], stdout=out, stderr=err, cwd=folder)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall_s = time.perf_counter() - began
        if process.returncode:
            err.seek(0)
            raise SystemExit(f"{argv[:4]} ended with {process.returncode}:\n{err.read()[-3000:]}")
        out.seek(0)
        return out.read(), wall_s, usage.ru_utime + usage.ru_stime


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(port: int) -> None:
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise SystemExit("the server did not come up")


# Figures.


def report(results: dict[Case, dict[str, list[Outcome]]]) -> str:
    """A table: a line a figure, a column a client; medians over runs, smallest and largest in brackets."""
    names = list(next(iter(results.values())))
    rows: list[tuple[str, dict[str, list[float | None]]]] = []
    startup = {name: median(run.cpu_s for run in results[ONE][name]) for name in names}

    def add(label: str, case: Case, figure: Callable[[Outcome, str], float | None]) -> None:
        rows.append((label, {name: [figure(run, name) for run in results[case][name]] for name in names}))

    add("start-up CPU, s (one request)", ONE, lambda run, name: run.cpu_s)
    add("start-up wall, s (one request)", ONE, lambda run, name: run.wall_s)
    add(
        "c256: CPU per event after start-up, us",
        PACED,
        lambda run, name: (run.cpu_s - startup[name]) / PACED.events * 1e6,
    )
    add("c256: CPU of the whole run, s", PACED, lambda run, name: run.cpu_s)
    add("c256: ttft error, mean, ms", PACED, lambda run, name: error_ms(run, None))
    add("c256: ttft error, p99, ms", PACED, lambda run, name: error_ms(run, 99))
    add("c256: tpot error, mean, %", PACED, lambda run, name: tpot_error_percent(run))
    add("c256: server's own lateness, p99 of worst token, ms", PACED, lambda run, name: lateness_ms(run))
    add("c256: client lag p99, ms", PACED, lambda run, name: (run.client_bound_lag_s or 0) * 1e3 or None)
    add("c256: peak in flight seen by the server", PACED, lambda run, name: peak(run))
    add("c1024: peak in flight seen by the server", WIDE, lambda run, name: peak(run))
    add("c64, no gap: events/s, reading", FLOOD, lambda run, name: FLOOD.events / (run.read_s or 1))
    add("c64, no gap: events/s, reading and parsing", FLOOD,
        lambda run, name: FLOOD.events / ((run.read_s or 1) + run.parse_s))  # fmt: skip
    lines = [
        f"{'':52}" + "".join(f"{name:>30}" for name in names) + (f"{'ratio':>10}" if len(names) == 2 else "")
    ]
    lines.extend(line(label, figures) for label, figures in rows)
    return "\n".join(lines)


def line(label: str, figures: dict[str, list[float | None]]) -> str:
    cells, middles = "", []
    for values in figures.values():
        known = [value for value in values if value is not None]
        middles.append(median(known) if known else None)
        cells += f"{spread_text(known):>30}"
    ratio = (
        f"{middles[0] / middles[1]:10.3f}"
        if len(middles) == 2 and middles[0] is not None and middles[1]
        else ""
    )
    return f"{label:52}{cells}{ratio}"


def spread_text(values: Sequence[float]) -> str:
    if not values:
        return "-"
    digits = 0 if median(values) >= 1000 else 2
    return f"{median(values):,.{digits}f} [{min(values):,.{digits}f} .. {max(values):,.{digits}f}]"


def median(values: Any) -> float:
    return float(statistics.median(list(values)))


def error_ms(run: Outcome, percent: float | None) -> float:
    """Client's ttft minus the server's, of means or of percentiles of the two distributions."""
    truth = [(row["first_ns"] - row["recv_ns"]) / 1e9 for row in run.truth]
    if percent is None:
        return (statistics.fmean(run.ttft_s) - statistics.fmean(truth)) * 1e3
    seen, true = nearest_rank(sorted(run.ttft_s), percent), nearest_rank(sorted(truth), percent)
    assert seen is not None and true is not None  # noqa: PT018
    return (seen - true) * 1e3


def tpot_error_percent(run: Outcome) -> float:
    truth = statistics.fmean(
        (row["last_ns"] - row["first_ns"]) / 1e9 / (row["tokens"] - 1) for row in run.truth
    )
    return (statistics.fmean(run.tpot_s) / truth - 1) * 100


def lateness_ms(run: Outcome) -> float | None:
    return nearest_rank(sorted(row["late_ns"] / 1e6 for row in run.truth), 99)


def peak(run: Outcome) -> float:
    return float(max(row["in_flight"] for row in run.truth))


if __name__ == "__main__":
    sys.exit(main())
