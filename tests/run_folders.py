"""Run folders written as a run writes them, with records of a chosen speed: for results, compare and gate."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path

from orchestrator.redact import Redactor
from orchestrator.store import RunStore

TOKENS = 64
SWEEP = (1, 4, 16)
EXPERIMENT = """\
schema: 1
name: trial
node: {{host: gpu-1, python: /venv/bin/python3}}
server: {{args: {{model-path: {model}, max-running-requests: 64}}}}
arms:
  baseline: {{}}
  eagle3:
    args: {{speculative-algorithm: EAGLE3, speculative-draft-model-path: /models/d, speculative-num-steps: 3}}
  dynamic: {{extends: eagle3, patches: [dynamic_disable], args: {{speculative-disable-batch-threshold: 5}}}}
sweep:
  {{concurrency: {sweep}, load: {load}, output_tokens: 64, requests_per_slot: 4, min_requests: 4, repeats: {boots}}}
{more}"""

Rate = Callable[[str, int], float]  # arm, concurrency -> output tokens/s


def plain_rate(arm: str, concurrency: int) -> float:
    return 100.0 * concurrency**0.9 * (1.3 if arm != "baseline" and concurrency <= 5 else 1.0)


def write_run(
    results: Path,
    run_id: str,
    *,
    boots: int = 3,
    rate: Rate = plain_rate,
    noise: float = 0.002,
    model: str = "/models/m",
    more: str = "",
    arms: tuple[str, ...] = ("baseline", "eagle3", "dynamic"),
    acts: bool = True,
    sweep: tuple[int, ...] = SWEEP,
    load: str = "closed",
) -> RunStore:
    """A run whose points are all there. `acts`: the dynamic arm's counters show that it switched."""
    store = RunStore.create(results, run_id, Redactor({}))
    store.write(
        "experiment.lock.yaml",
        EXPERIMENT.format(model=model, boots=boots, more=more, sweep=list(sweep), load=load),
    )
    store.write_json("facts.json", {"facts": facts()})
    planned = [{"arm": arm, "boot": boot} for boot in range(1, boots + 1) for arm in arms]
    store.write_json("plan.json", {"plan": {"boots": planned, "warnings": [], "worker_paths": {}}})
    rng = random.Random(run_id)
    for item in planned:
        store.event("started", item)
        _boot(
            store,
            item["arm"],
            item["boot"],
            lambda arm, c: rate(arm, c) * math.exp(rng.gauss(0, noise)),
            acts,
            sweep,
        )
        store.event("stopped", item)
    return store


def facts() -> dict:
    tree = {"package": "sglang", "version": "0.5.11", "path": "/venv/sglang", "python": "/venv/bin/python3"}
    gpus = [{"name": "NVIDIA H200", "driver": "580.1", "index": n} for n in range(2)]
    return {"host": "gpu-1", "kernel": "6.1", "gpus": gpus, "tree": {**tree, "python_version": "3.12.3"}}


def _boot(store: RunStore, arm: str, boot: int, rate: Rate, acts: bool, sweep: tuple[int, ...]) -> None:
    info = {"max_running_requests": 64, "speculative_num_steps": None if arm == "baseline" else 3}
    store.write_json(store.boot_path(arm, boot, "server_info.json"), info)
    counters = {"plain_steps": 0, "spec_steps": 0, "spec_reqs": 0, "spec_tokens": 0}
    for index, concurrency in enumerate(sweep):
        before = dict(counters)
        plain = arm == "dynamic" and concurrency > 5 and acts
        counters["plain_steps" if plain else "spec_steps"] += 100
        if not plain:
            counters["spec_reqs"] += 100 * concurrency
            counters["spec_tokens"] += 250 * concurrency
        states = (
            [{"dynspec_stats": dict(item)} for item in (before, counters)] if arm == "dynamic" else [{}, {}]
        )
        records = _records(concurrency, rate(arm, concurrency), speculates=arm != "baseline")
        meta = {
            "warmup_requests": concurrency,
            "bodies_sha256": f"{index:064d}",
            "flushed": True,
            "load": {"client": {"lag_ns": {"p99": 200_000}, "cpu_share": 0.1}},
            "server_before": states[:1],
            "server_after": states[1:],
        }
        store.write_point(arm, boot, index, concurrency, records, meta)


def _records(concurrency: int, rate: float, *, speculates: bool) -> bytes:
    """Slots that answer one request after the other, all at once, at `rate` tokens/s together."""
    each_ns = int(TOKENS * concurrency / rate * 1e9)
    lines = []
    for number in range(4 * concurrency):
        sent = number // concurrency * each_ns + 1000 * (number % concurrency)
        record = {
            "i": number,
            "phase": "load",
            "due_ns": sent,
            "sent_ns": sent,
            "first_ns": sent + each_ns // 100,
        }
        record |= {"last_ns": sent + each_ns - 2000, "end_ns": sent + each_ns - 1500, "chunks": TOKENS}
        record |= {"prompt_tokens": 30, "cached_tokens": 0, "first_tokens": 1, "output_tokens": TOKENS}
        record |= {"finish": "length", "ok": True, "error": None, "output_sha256": f"{number:064x}"}
        if speculates:
            record |= {"verify_steps": 25, "accepted": 38, "drafted": 75}
        lines.append(json.dumps(record))
    return "".join(f"{line}\n" for line in lines).encode()
