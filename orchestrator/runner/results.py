"""From the records in a run folder to summary and report, without a node: `dynspec report`, and the end of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.analysis.summary import summarise
from orchestrator.load.point import read_records
from orchestrator.metrics import PointMetrics, point_metrics
from orchestrator.model.experiment import Experiment, Sweep
from orchestrator.model.result import PointResult, RunInfo
from orchestrator.report import markdown
from orchestrator.store import RunStore, StoredPoint

SIMULATED_KEY = "simulated"  # the stand-in engine says so in /server_info


def measured(
    records: Iterable[Mapping[str, Any]], load_summary: Mapping[str, Any], sweep: Sweep, concurrency: int
) -> PointMetrics:
    """The metrics of one point, by the experiment's own terms."""
    return point_metrics(
        records,
        concurrency=concurrency,
        load=sweep.load.kind,
        output_tokens=sweep.output_tokens if sweep.ignore_eos else None,
        summary=load_summary,
    )


def point_result(stored: StoredPoint, sweep: Sweep) -> PointResult:
    """One stored point, its metrics computed anew from its records."""
    metrics = measured(read_records(stored.records), stored.meta.get("load") or {}, sweep, stored.concurrency)
    return PointResult(
        arm=stored.arm,
        boot=stored.boot,
        index=stored.index,
        concurrency=stored.concurrency,
        metrics=metrics.metrics,
        ok=metrics.ok,
        failed=metrics.failed,
        attempted=metrics.attempted,
        warmup_requests=int(stored.meta.get("warmup_requests") or 0),
        bodies_sha256=str(stored.meta.get("bodies_sha256") or ""),
    )


def boot_order(store: RunStore) -> tuple[tuple[str, int], ...]:
    """(arm, boot) as they were started, from events.jsonl."""
    return tuple((event["arm"], event["boot"]) for event in events_of(store) if event["event"] == "started")


def events_of(store: RunStore) -> Iterable[dict[str, Any]]:
    path = store.folder / "events.jsonl"
    if not path.is_file():
        return
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # the last line of a killed run may be torn
            if isinstance(event, dict) and "event" in event:
                yield event


def run_info(store: RunStore, experiment: Experiment) -> RunInfo:
    """What the report says beside the numbers, from the files of the run folder."""
    plan = store.read_json("plan.json")["plan"]
    facts = store.read_json("facts.json")["facts"]
    outcome = store.read_json("outcome.json")["outcome"] if store.finished else {}
    first = next(iter(events_of(store)), {})
    prompts = experiment.sweep.prompts
    return RunInfo(
        run_id=store.run_id,
        name=experiment.name,
        host=experiment.node.host,
        folder=str(store.folder),
        started_utc=str(first.get("t", "")),
        ended_utc=str(outcome.get("ended_utc", "")),
        state=str(outcome.get("state", "")),
        message=str(outcome.get("message", "")),
        simulated=_simulated(store),
        load_from=experiment.sweep.load_from,
        load=experiment.sweep.load.kind,
        prompts=", ".join((prompts.source, *(prompts.kinds if prompts.source == "builtin" else ()))),
        prompts_random=prompts.source == "input_ids" and prompts.path is None,
        workers={
            arm: f"{path['worker']}: {path['why']}" for arm, path in (plan.get("worker_paths") or {}).items()
        },
        provenance=_provenance(facts),
        warnings=tuple(plan.get("warnings") or ()),
    )


def _simulated(store: RunStore) -> bool:
    for path in store.folder.glob("arms/*/boot-*/server_info.json"):
        if json.loads(path.read_text()).get(SIMULATED_KEY):
            return True
    return False


def _provenance(facts: Mapping[str, Any]) -> dict[str, str]:
    tree = facts.get("tree") or {}
    gpus = facts.get("gpus") or []
    names = sorted({f"{gpu.get('name')} (driver {gpu.get('driver')})" for gpu in gpus})
    return {
        "node": str(facts.get("host", "")),
        "GPUs": f"{len(gpus)} x {', '.join(names)}" if gpus else "none",
        "tree": f"{tree.get('package')} {tree.get('version')} at {tree.get('path')}",
        "interpreter": f"{tree.get('python')} ({tree.get('python_version')})",
        "kernel": str(facts.get("kernel", "")),
    }


def make_summary(store: RunStore, experiment: Experiment) -> dict[str, Any]:
    """summary.json as a value, from every finished point."""
    points = [point_result(stored, experiment.sweep) for stored in store.points()]
    return summarise(
        points, arms=experiment.arms, boot_order=boot_order(store), share_boot=experiment.sweep.share_boot
    )


def write_reports(store: RunStore, experiment: Experiment) -> tuple[dict[str, Any], RunInfo]:
    """Computes and writes summary.json and report.md; returns what a terminal report needs."""
    summary = make_summary(store, experiment)
    info = run_info(store, experiment)
    store.write_json("summary.json", summary)
    store.write("report.md", markdown.render(summary, info))
    return summary, info
