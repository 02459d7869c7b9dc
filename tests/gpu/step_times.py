"""Is an arm slower at each step, or did it stall now and then? Reads the request records of a timing run.

    python3 tests/gpu/step_times.py RUN_FOLDER [BASELINE_ARM]

A point's requests come in waves of its concurrency, since all have the same length. For each arm, boot and point:
tokens/s, and the median time a step of each wave, in ms, where a step is a streamed chunk after the first; then ttft.
With a baseline, three ratios to it: tokens/s, steps of the median request, and steps of the second half alone. A stall
lowers the first alone; a cost of each step lowers all three.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from statistics import median
from typing import Any

Record = dict[str, Any]


def records(point: Path) -> list[Record]:
    found: list[Record] = [json.loads(line) for line in point.read_text().splitlines()]
    return [record for record in found if record["ok"]]


def step_ms(record: Record) -> float:
    return float((record["last_ns"] - record["first_ns"]) / max(record["chunks"] - 1, 1) / 1e6)


def tokens_per_s(some: list[Record]) -> float:
    span_ns = max(r["end_ns"] for r in some) - min(r["sent_ns"] for r in some)
    return float(sum(r["output_tokens"] for r in some) / span_ns * 1e9)


def figures(some: list[Record]) -> tuple[float, float, float]:
    """Tokens/s, and tokens per ms of the median step: over all requests, and over the second half."""

    def speed(part: list[Record]) -> float:
        return float(median(r["output_tokens"] / r["chunks"] / step_ms(r) for r in part))

    return tokens_per_s(some), speed(some), speed(some[len(some) // 2 :])


def waves(some: list[Record], concurrency: int) -> list[list[Record]]:
    return [some[i : i + concurrency] for i in range(0, len(some), concurrency)]


def line(some: list[Record], concurrency: int) -> str:
    groups = waves(some, concurrency)
    steps = " ".join(f"{median(map(step_ms, group)):.2f}" for group in groups)
    first = " ".join(f"{median((r['first_ns'] - r['sent_ns']) / 1e6 for r in group):.0f}" for group in groups)
    return f"{tokens_per_s(some):8.0f} tok/s   step {steps}   ttft {first}"


def main(run: Path, baseline: str | None) -> None:
    points = {}
    for path in sorted(run.glob("arms/*/boot-*/point-*.jsonl")):
        arm, boot = path.parts[-3], path.parts[-2]
        found = re.fullmatch(r"point-(\d+)-c(\d+)", path.stem)
        if found and (some := records(path)):
            points[int(found[1]), int(found[2]), arm, boot] = some
    for (index, concurrency, arm, boot), some in sorted(points.items()):
        text = f"C {concurrency:<3} {arm:13} {boot:7} {line(some, concurrency)}"
        against = points.get((index, concurrency, baseline or "", boot))
        if against is not None and arm != baseline:
            ratios = [a / b for a, b in zip(figures(some), figures(against), strict=True)]
            text += "   ratios " + " ".join(f"{ratio:.3f}" for ratio in ratios)
        print(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
