"""`make soak`: what twelve hours and ten thousand points do to memory, handles, threads and logs.

Three parts, each with the real programs. The lease: a guardian and an agent get the heartbeats and questions of twelve
hours, one after the other without the waits between them. The points: a whole run of many boots against the simulated
engine, with points as short as they can be; growth is told over all boots and for each point. The folder: ten thousand
points are stored and read back for a report. Exit code 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression

from orchestrator.agent import pack
from orchestrator.config import load_experiment
from orchestrator.records.summary import make_summary
from tests.agent.client import Client
from tests.agent.conftest import Node
from tests.e2e.controller import Place, Running
from tests.e2e.node import SshNode, experiment
from tests.run_folders import write_run
from tests.sshd import free_port

HOURS, BEAT_S, LOOK_S = (
    12,
    10,
    10,
)  # a beat a third of the shortest sensible lease; looks of a screen beside it
POINTS_AT_ALL = 10_000
# Bars.
LEASE_KIB, HANDLES, LOG_BYTES = 2_048, 2, 64 * 1024
POINT_KIB = 2.0  # a point once all is warm, of any of the three programs: 20 MiB in ten thousand
# Taken once, however many boots follow. Controller and agent carry all records of a point, the guardian carries none.
ONCE_KIB = {"controller": 4_096, "agent": 4_096, "guardian": 1_024}
SWEEP = (
    *range(1, 20),
    400,
)  # points of a boot; the last one leaves large records and hundreds of closed connections
WARM_SHARE = 0.5  # of the boots: what is taken in them is taken once, what is taken after them is growth
FOLDER_MIB, FOLDER_S = 1_024, 900


@dataclass(frozen=True)
class Usage:
    memory_kib: int
    handles: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> Usage:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        status = dict(line.split(":", 1) for line in lines)
        handles = len(os.listdir(f"/proc/{pid}/fd"))
        return cls(int(status["VmRSS"].split()[0]), handles, int(status["Threads"]))

    def __str__(self) -> str:
        return f"{self.memory_kib / 1024:.1f} MiB, {self.handles} handles, {self.threads} threads"


_PAGE = """\
# Long runs

What twelve hours and ten thousand points do to memory, handles, threads and logs. Written by `make soak`.

{asked}

| what | measured | bar |
|---|---|---|
{rows}

The beats and questions of twelve hours reach a real guardian and a real agent one after the other, without the waits
between them.

The points are those of a whole run against the simulated engine: boots with the same sweep of {sweep} points, the last
of {largest} requests at once, looked at where each boot ends, so that no larger point counts as growth. Memory is
judged twice. "Taken once" is what the end of the first half of the boots holds over what the first boot ended with: a
program's threads take it when a point or the end of a boot first needs it, and use it again. It depends on the largest
point and not on the number of points: agent and controller carry all records of a point, the guardian carries none and
so has a lower bar. "Memory a point" is the slope from boot to boot (least squares) after that half: what still rises
there is growth, and would go on as long as the run does. One bar in all for any number of points would hide a slow leak
behind what is taken once, or fail a short run for it.

The controller works out the prompts of a whole sweep before the first point: what it holds depends on the requests of
one boot and not on the number of boots.

Beside a run, a guardian looks at its processes every 4 s and notes each process of the server once, in a line of some
50 bytes.
"""


class Bars:
    def __init__(self) -> None:
        self.missed = 0
        self.rows: list[str] = []

    def check(self, what: str, value: float, bar: float, unit: str) -> None:
        good = value <= bar
        self.missed += not good
        self.rows.append(f"| {what} | {value:.4g} {unit}{'' if good else ', MISSED'} | {bar:g} {unit} |")
        print(f"{'ok    ' if good else 'MISSED'} {what}: {value:.6g} {unit} (bar {bar:g})", flush=True)

    def write(self, page: Path, asked: str) -> None:
        page.write_text(
            _PAGE.format(asked=asked, sweep=len(SWEEP), largest=max(SWEEP), rows="\n".join(self.rows))
        )


# -- the lease


@contextmanager
def small_node(folder: Path) -> Iterator[Node]:
    agent = folder / pack.name()
    agent.write_bytes(pack.build_zipapp())
    node = Node(folder / "node", agent)
    try:
        yield node
    finally:
        node.close()


def ask_as_a_run_does(client: Client, seconds: int) -> None:
    for second in range(0, seconds, BEAT_S):
        pending = [client.submit("beat"), client.submit("server")]
        if second % (6 * LOOK_S) == 0:
            pending += [client.submit("status"), client.submit("verify")]
        for future in pending:
            client.result(future)


def lease(folder: Path, bars: Bars, hours: float) -> None:
    with small_node(folder) as node:
        client = node.client()
        pids = {"guardian": node.guard(client, lease_s=30)["guardian_pid"], "agent": client.process.pid}
        node.start(client, "import time; time.sleep(3600)")
        ask_as_a_run_does(client, 1200)
        before = {name: Usage.of(pid) for name, pid in pids.items()}
        began = time.monotonic()
        ask_as_a_run_does(client, int(hours * 3600))
        print(f"{hours:g} h of beats and questions in {time.monotonic() - began:.0f} s")
        for name, pid in pids.items():
            now = Usage.of(pid)
            print(f"{name}: {before[name]} -> {now}")
            bars.check(f"{name}, more memory", now.memory_kib - before[name].memory_kib, LEASE_KIB, "KiB")
            bars.check(f"{name}, more handles", now.handles - before[name].handles, HANDLES, "")
            bars.check(f"{name}, more threads", now.threads - before[name].threads, HANDLES, "")
        run = node.home / "runs" / "run-1"
        for log in ("journal.jsonl", "guardian.log"):
            bars.check(f"{log} after {hours:g} h", (run / log).stat().st_size, LOG_BYTES, "bytes")
        client.ask("unwind", stop_s=5, reason="done")


# -- points


def points(folder: Path, bars: Bars, count: int) -> None:
    """Boots with the same sweep, looked at where each ends: what differs is growth and no larger point."""
    boots = max(4, count // len(SWEEP))
    with SshNode(folder / "sshd") as node:
        made = experiment(node, free_port(), arms={"plain": {}})
        made["sweep"].update(concurrency=list(SWEEP), requests_per_slot=1, min_requests=1)
        made["sweep"].update(output_tokens=2, repeats=boots)
        made["server"]["args"]["max-running-requests"] = max(SWEEP) + 1
        made["server"]["env"]["DYNSPEC_DEMO_LOAD_S"] = "0.1"
        place = Place(folder / "here")
        with place.start("run", place.write(made), "--json") as run:
            seen = list(looks(run, node, boots))
            done = run.wait(300)
        assert done.code in (0, 6), done.text
        for name in seen[0]:
            tell(name, bars, [look[name] for look in seen])
        events = place.run_folder() / "events.jsonl"
        bars.check("events.jsonl a point", events.stat().st_size / (boots * len(SWEEP)) / 1024, 8, "KiB")


def looks(run: Running, node: SshNode, boots: int) -> Iterator[dict[str, Usage]]:
    """What each program holds where a boot ends, boot by boot."""
    for boot in range(1, boots + 1):
        run.wait_event("point", limit_s=600, boot=boot, index=len(SWEEP) - 1)
        (agent,), guardian = node.agent_pids()[:1], node.guardian_pid()
        pids = {"controller": run.pid, "agent": agent, "guardian": guardian}
        yield {name: Usage.of(pid) for name, pid in pids.items()}


def tell(name: str, bars: Bars, seen: list[Usage]) -> None:
    print(f"{name}: {seen[0]} -> {seen[-1]}")
    print("  KiB at the end of each boot:", *(usage.memory_kib for usage in seen))
    warm = seen[int(len(seen) * WARM_SHARE) :]
    bars.check(f"{name}, taken once", warm[0].memory_kib - seen[0].memory_kib, ONCE_KIB[name], "KiB")
    points = [boot * len(SWEEP) for boot in range(len(warm))]
    slope, _ = linear_regression(points, [usage.memory_kib for usage in warm])
    bars.check(f"{name}, memory a point, {points[-1]} points", slope, POINT_KIB, "KiB")
    bars.check(f"{name}, more handles", seen[-1].handles - seen[0].handles, HANDLES, "")


# -- the folder


def stored(folder: Path, bars: Bars, count: int) -> None:
    """Three arms of 100 points in as many boots as `count` needs."""
    boots = -(-count // 300)
    count = boots * 300
    began = time.monotonic()
    store = write_run(folder / "results", "20260101-000000-soak-0000", boots=boots, sweep=(1,) * 100)
    print(f"{count} points written in {time.monotonic() - began:.0f} s")
    read = load_experiment((store.folder / "experiment.lock.yaml").read_text(), name="lock").experiment
    before, began = Usage.of(os.getpid()), time.monotonic()
    summary = make_summary(store, read)
    now, seconds = Usage.of(os.getpid()), time.monotonic() - began
    assert summary is not None
    bars.check(f"reading {count} points", seconds, FOLDER_S, "s")
    bars.check(f"memory for {count} points", (now.memory_kib - before.memory_kib) / 1024, FOLDER_MIB, "MiB")
    bars.check("reading, more handles", now.handles - before.handles, 0, "")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=HOURS)
    parser.add_argument("--points", type=int, default=800, help="points of the real run, in boots of 20")
    parser.add_argument("--stored", type=int, default=POINTS_AT_ALL, help="points of the folder")
    parser.add_argument("--page", type=Path, help="write what was measured as a page of the docs")
    asked = parser.parse_args()
    bars = Bars()
    for part, amount in ((lease, asked.hours), (points, asked.points), (stored, asked.stored)):
        with tempfile.TemporaryDirectory(prefix="dynspec-soak-") as folder:
            print(f"-- {part.__name__}")
            part(Path(folder), bars, amount)  # type: ignore[operator]
    print(f"{bars.missed} bars missed")
    if asked.page:
        bars.write(
            asked.page,
            f"Here: {asked.hours:g} hours of beats, a run of {asked.points} points, a folder of at least {asked.stored}"
            f" (`python -m tests.soak --hours {asked.hours:g} --points {asked.points} --stored {asked.stored}`).",
        )
    return 1 if bars.missed else 0


if __name__ == "__main__":
    sys.exit(main())
