"""From a million request records to the report: time and memory.

    python -m tests.bench.million [--records 1000000]

A run folder of three arms, three boots and three points, as `dynspec report` takes it: every record is read, folded,
judged, compared by output and reported in every format.
Exit 1 if a bar is missed: 30 s, 1.5 GiB.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from orchestrator.records.begun import begun_experiment
from orchestrator.records.results import write_reports
from orchestrator.store import RunStore
from tests.run_folders import write_run

MOST_S, MOST_GIB = 30.0, 1.5
BOOTS = 3
REPORTS = ("report.html", "report.md", "junit.xml", "summary.json", "summary.csv", "bench_serving.jsonl")


def records(count: int, slots: int) -> Iterator[str]:
    """Requests of one second each, `slots` at a time, with 64 tokens."""
    for i in range(count):
        sent = (i // slots) * 1_000_000_000 + (i % slots) * 10_000
        yield (
            json.dumps(
                {
                    "i": i,
                    "phase": "load",
                    "due_ns": sent,
                    "sent_ns": sent,
                    "first_ns": sent + 50_000_000 + i % 977,
                    "last_ns": sent + 990_000_000,
                    "end_ns": sent + 995_000_000,
                    "chunks": 100,
                    "prompt_tokens": 200,
                    "cached_tokens": 0,
                    "first_tokens": 1,
                    "output_tokens": 64,
                    "finish": "length",
                    "ok": True,
                    "error": None,
                    "output_sha256": f"{i:064x}",
                    "verify_steps": 25,
                    "accepted": 38,
                    "drafted": 75,
                }
            )
            + "\n"
        )


def run_folder(results: Path, count: int) -> RunStore:
    """A run whose points hold `count` records together, stored as a run stores them."""
    store = write_run(results, "20260101-000000-trial-0000", boots=BOOTS)
    points = list(store.points())
    for point in points:
        lines = "".join(records(count // len(points), point.concurrency))
        store.write_point(
            point.arm, point.boot, point.index, point.concurrency, lines.encode("ascii"), dict(point.meta)
        )
    return store


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=1_000_000)
    count = parser.parse_args().records
    with tempfile.TemporaryDirectory() as folder:
        store = run_folder(Path(folder), count)
        started, cpu = time.perf_counter(), time.process_time()
        summary, _ = write_reports(store, begun_experiment(store), formats=("md", "html", "junit"))
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        files = sorted(path.name for path in store.folder.iterdir())
    gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    valid = sum(point["valid"] for arm in summary["arms"].values() for point in arm["points"])
    met = seconds <= MOST_S and gib <= MOST_GIB and valid > 0
    print(f"{count} records -> {', '.join(name for name in files if name in REPORTS)}")
    took = f"{seconds:.1f} s (bar {MOST_S:g}), of them {cpu:.1f} s on a core; peak {gib:.2f} GiB (bar {MOST_GIB:g})"
    print(f"{took}; {valid} valid points: {'met' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
