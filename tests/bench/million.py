"""From a million request records to the report: time and memory.

    python tests/bench/million.py [--records 1000000]

Three arms, three boots, six points; every record is read, folded, compared by output and reported in every format.
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

from orchestrator.analysis.equality import outputs_of
from orchestrator.analysis.summary import summarise
from orchestrator.load.point import read_records
from orchestrator.metrics import point_metrics
from orchestrator.model.result import PointResult
from orchestrator.report.files import report_files
from tests.report.example_runs import ARMS, INFO, SWEEP

MOST_S, MOST_GIB = 30.0, 1.5
BOOTS, SLOTS = 3, 64


def records(count: int, seed: int) -> Iterator[str]:
    """Requests of one second each, 64 at a time, with 256 tokens."""
    for i in range(count):
        sent = (i // SLOTS) * 1_000_000_000 + (i % SLOTS) * 10_000 + seed
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
                    "output_tokens": 256,
                    "finish": "length",
                    "ok": True,
                    "error": None,
                    "output_sha256": f"{i:064x}",
                    "verify_steps": 100,
                    "accepted": 156,
                    "drafted": 300,
                }
            )
            + "\n"
        )


def report(path: Path) -> dict[str, str]:
    points, outputs = [], {}
    for arm in ARMS:
        for boot in range(1, BOOTS + 1):
            digests = {}
            for index, concurrency in enumerate(SWEEP):
                with path.open(encoding="ascii") as lines:
                    rows = list(read_records(lines))
                found = point_metrics(rows, concurrency=SLOTS, output_tokens=256, summary={})
                digests |= outputs_of(rows, index)
                counts = (found.ok, found.failed, found.attempted, 0)
                points.append(
                    PointResult(arm.name, boot, index, concurrency, found.metrics, *counts, "ab" * 32)
                )
            outputs.setdefault(arm.name, []).append(digests)
    return report_files(summarise(points, arms=ARMS, outputs=outputs), INFO, ["md", "html", "junit"])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=1_000_000)
    count = parser.parse_args().records
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "point.jsonl"
        path.write_text("".join(records(count // (len(ARMS) * BOOTS * len(SWEEP)), 0)), encoding="ascii")
        started = time.perf_counter()
        files = report(path)
        seconds = time.perf_counter() - started
    gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    met = seconds <= MOST_S and gib <= MOST_GIB
    print(f"{count} records -> {', '.join(sorted(files))}")
    print(
        f"{seconds:.1f} s (bar {MOST_S:g}), peak {gib:.2f} GiB (bar {MOST_GIB:g}): {'met' if met else 'MISSED'}"
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
