"""The numbers for other tools: `summary.csv`, and JSON lines in the keys of `sglang.bench_serving`. Pure."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from orchestrator.model.result import RunInfo
from orchestrator.report.shapes import Summary
from orchestrator.report.text import clean

_HEAD = ("arm", "index", "concurrency", "valid", "reasons", "ok", "failed", "attempted", "boots")


def summary_csv(summary: Summary) -> str:
    """One row an arm and position; for each metric its value and interval. Empty where absent. Units as in the
    contract: s, s/token, tokens/s."""
    points = [(arm, point) for arm, found in summary["arms"].items() for point in found["points"]]
    names = list(dict.fromkeys(name for _, point in points for name in point["metrics"]))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*_HEAD, *(column for name in names for column in (name, f"{name}_low", f"{name}_high"))])
    for arm, point in points:
        cells: list[object] = [cell(arm), point["index"], point["concurrency"], str(point["valid"]).lower()]
        cells += [cell("; ".join(point["reasons"])), point["ok"], point["failed"], point["attempted"]]
        cells.append(len(point["boots"]))
        for name in names:
            item = point["metrics"].get(name, {})
            cells += [item.get(key) for key in ("value", "low", "high")]
        writer.writerow(cells)
    return out.getvalue()


def cell(text: str) -> str:
    """Text that a spreadsheet must not take for a formula."""
    flat = " ".join(clean(text).split())
    return f"'{flat}" if flat[:1] in ("=", "+", "-", "@") else flat


_MS = {"e2e_latency": "e2e", "ttft": "ttft", "tpot": "tpot"}


def bench_serving_jsonl(summary: Summary, info: RunInfo) -> str:
    """One line a point and boot, valid ones only, with every key that `sglang.bench_serving` 0.5.23 writes.

    `tag` is the arm. `duration` is the steady window and rates are over it; `completed` and token totals are of all
    requests. What is not known is null: there is no inter-token latency here, since chunks are not tokens.
    """
    lines = [
        json.dumps(_line(arm, point, boot, info), allow_nan=False)
        for arm, found in summary["arms"].items()
        for point in found["points"]
        for boot in point["boots"]
        if boot["valid"]
    ]
    return "".join(f"{line}\n" for line in lines)


def _line(arm: str, point: dict[str, Any], boot: dict[str, Any], info: RunInfo) -> dict[str, Any]:
    metrics = boot["metrics"]
    rate, tokens, read = (metrics.get(name) for name in ("output_tps", "output_tokens", "input_tps"))
    line: dict[str, Any] = dict.fromkeys(BENCH_SERVING_KEYS)
    line |= {
        "tag": arm,
        "backend": "sglang",
        "dataset_name": info.prompts or None,
        "max_concurrency": point["concurrency"],
        "duration": metrics.get("window_s"),
        "completed": boot["ok"],
        "total_input_tokens": metrics.get("prompt_tokens"),
        "total_output_tokens": tokens,
        "request_throughput": metrics.get("requests_per_s"),
        "input_throughput": read,
        "output_throughput": rate,
        "total_throughput": None if rate is None or read is None else rate + read,
        "concurrency": metrics.get("achieved_concurrency"),
        "accept_length": metrics.get("accept_length"),
    }
    for key, name in _MS.items():
        line[f"mean_{key}_ms"] = _ms(metrics.get(name))
        line[f"median_{key}_ms"] = _ms(metrics.get(f"{name}_p50"))
        line[f"std_{key}_ms"] = _ms(metrics.get(f"{name}_std"))
        for percent in (90, 95, 99):
            line[f"p{percent}_{key}_ms"] = _ms(metrics.get(f"{name}_p{percent}"))
    return line


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


BENCH_SERVING_KEYS = (
    *(
        "tag",
        "backend",
        "dataset_name",
        "request_rate",
        "max_concurrency",
        "sharegpt_output_len",
        "random_input_len",
    ),
    *(
        "random_output_len",
        "random_range_ratio",
        "server_info",
        "duration",
        "completed",
        "total_input_tokens",
    ),
    *("total_input_text_tokens", "total_input_vision_tokens", "total_output_tokens"),
    *("total_output_tokens_retokenized", "request_throughput", "input_throughput", "output_throughput"),
    "total_throughput",
    *(
        f"{statistic}_{name}_ms"
        for name in ("e2e_latency", "ttft", "tpot", "itl")
        for statistic in ("mean", "median", "std", "p90", "p95", "p99")
    ),
    *("concurrency", "accept_length", "max_output_tokens_per_s", "max_concurrent_requests"),
)
