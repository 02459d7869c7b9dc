"""Stored points read anew: metrics, what speaks against each, and the digests of their outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.analysis.acceptance import counted, with_acceptance
from orchestrator.analysis.equality import Outputs, digest_of
from orchestrator.analysis.evidence import (
    DAMAGED_RECORDS,
    evidence_of,
    health_finding,
    over_boot,
    simulates_acceptance,
)
from orchestrator.analysis.likeness import (
    across_arms,
    argument_findings,
    asked_keys,
    server_arguments,
    unintended,
)
from orchestrator.analysis.roles import roles
from orchestrator.analysis.stepping import SHARE, TRANSITIONS, unstepped
from orchestrator.analysis.trace import no_sample
from orchestrator.analysis.validity import Evidence, Finding, GpuWindow, judge, judged
from orchestrator.analysis.witness import EVENT_CPU, ClientWork, across_boots, client_work, event_cpu_s
from orchestrator.load.point import read_records
from orchestrator.metrics import PointMetrics, point_metrics, share_above
from orchestrator.model.experiment import Arm, Experiment, Sweep
from orchestrator.model.result import PointResult
from orchestrator.records.gpu_samples import GpuSamples
from orchestrator.records.planned import plan_left
from orchestrator.records.restarts import restarted_boots
from orchestrator.records.served import SHARED_KEY, Home, home_of, served_arms
from orchestrator.records.spans import client_summary, load_span
from orchestrator.store import GPU_SAMPLES, SERVER_INFO, RunStore, StoredPoint, json_object

HEALTH_KEY = (
    "health"  # in the meta file of a point: how often /health was asked while requests ran, and was not 200
)
DIGEST_CHARS = 16  # of an output's sha256: enough to tell texts apart, and a million of them stay small
SHARED_NOTE = (
    "measured in boots shared with other thresholds, switched while the server ran: a within-boot contrast"
)
REPEATED_NOTE = (
    "its boots are repetitions inside one boot: what differs from boot to boot is not in the intervals"
)
_WORKERS = ("v1", "v2")


@dataclass(frozen=True)
class ReadPoints:
    """All finished points of a run, judged. `outputs`: arm -> one mapping a boot; `arm_notes`: for readers."""

    points: tuple[PointResult, ...]
    outputs: dict[str, list[Outputs]]
    arm_notes: dict[str, tuple[str, ...]]


def measured(
    records: Iterable[Mapping[str, Any]], load_summary: Mapping[str, Any], sweep: Sweep, concurrency: int
) -> PointMetrics:
    """The metrics of one point, by the experiment's own terms."""
    return point_metrics(
        records,
        concurrency=concurrency,
        load=sweep.load.kind,
        output_tokens=sweep.output_tokens if sweep.ignore_eos else None,
        summary=client_summary(load_summary),
    )


def read_points(store: RunStore, experiment: Experiment) -> ReadPoints:
    """Every stored point of an arm that the experiment has; each record is read once."""
    reader = _Reader(store, experiment)
    for stored in store.points():
        if stored.arm in reader.arms:
            reader.add(stored)
    return reader.judged()


class _Reader:
    """Collects points with their evidence, then judges them: alone, over their boot, and against other arms."""

    def __init__(self, store: RunStore, experiment: Experiment) -> None:
        self.store = store
        self.sweep, self.gpus = experiment.sweep, experiment.node.gpus
        plan = plan_left(store)
        self.arms = {arm.name: arm for arm in served_arms(plan, experiment)}
        self.homes: dict[tuple[str, int], Home] = {}
        self.sharing: dict[tuple[str, str], None] = {}  # arm and what to say of its boots
        self.baseline = roles(experiment.arms).baseline
        self.workers = _expected_workers(store)
        self.found: list[tuple[PointResult, Evidence, tuple[Finding, ...]]] = []
        self.works: list[ClientWork | None] = []  # of each point in `found`
        self.outputs: dict[str, dict[int, dict[tuple[int, int], str]]] = {}
        self.servers: dict[tuple[str, int], dict[str, Any]] = {}
        self.served: list[tuple[tuple[str, int], StoredPoint]] = []  # with the boot that served it
        self.samples: GpuSamples | None = None  # of the boot whose points come just now

    def add(self, stored: StoredPoint) -> None:
        arm, meta = self.arms[stored.arm], stored.meta
        home = self.homes[stored.arm, stored.boot] = home_of(meta, stored.arm, stored.boot)
        if SHARED_KEY in meta:
            self.sharing[stored.arm, SHARED_NOTE if home.boot == stored.boot else REPEATED_NOTE] = None
        boot: dict[tuple[int, int], str] = {}
        if not (arm.speculates and simulates_acceptance(arm)):  # such a server gives any text
            boot = self.outputs.setdefault(stored.arm, {}).setdefault(stored.boot, {})
        raw, stepping = self.numbers(stored, boot)
        before, after = meta.get("server_before") or [], meta.get("server_after") or []
        metrics, notes = with_acceptance(
            raw.metrics,
            speculates=arm.speculates,
            before=before,
            after=after,
            flushed=bool(meta.get("flushed")),
        )
        work = self.work(meta, raw.ok)
        metrics |= {**stepping, EVENT_CPU: event_cpu_s(work)}
        point = _point(stored, replace(raw, metrics=metrics))
        samples = self.store.folder / self.store.boot_path(home.arm, home.boot, GPU_SAMPLES)
        window, blind = self.gpu(stored, samples)
        evidence = evidence_of(
            replace(raw, metrics=metrics),
            arm=arm,
            concurrency=None if self.sweep.load.kind == "straddle" else stored.concurrency,
            load=self.sweep.load.kind,
            server=self.server(stored.arm, stored.boot),
            before=before,
            after=after,
            client=client_summary(meta.get("load") or {}),
            warmup_requests=point.warmup_requests,
            expected_worker=self.workers.get(stored.arm),
            gpu=window,
        )
        if blind is not None:
            notes = (*notes, blind)
        self.served.append(((home.arm, home.boot), stored))
        if stored.damaged:
            notes = (*notes, DAMAGED_RECORDS)
        if stepping and (still := unstepped(self.sweep.load, raw.window_s, stepping.get(SHARE))) is not None:
            notes = (*notes, still)
        if (unsteady := health_finding(meta.get(HEALTH_KEY))) is not None:
            notes = (*notes, unsteady)
        self.found.append((point, evidence, notes))
        self.works.append(work)

    def numbers(
        self, stored: StoredPoint, outputs: dict[tuple[int, int], str]
    ) -> tuple[PointMetrics, dict[str, float | None]]:
        """From its records; none from records that were changed so that they are no records any more."""
        load = stored.meta.get("load") or {}
        try:
            records = _noting_outputs(read_records(stored.records), stored.index, outputs)
            raw = measured(records, load, self.sweep, stored.concurrency)
            return raw, _stepping(self.sweep, stored, raw.window_s)
        except (LookupError, TypeError, ValueError, AttributeError):
            if not stored.damaged:
                raise
            outputs.clear()
            return measured((), load, self.sweep, stored.concurrency), {}

    def server(self, arm: str, boot: int) -> dict[str, Any]:
        """server_info.json of a boot; empty where there is none."""
        if (arm, boot) not in self.servers:
            home = self.homes.get((arm, boot), Home(arm, boot))
            path = self.store.folder / self.store.boot_path(home.arm, home.boot, SERVER_INFO)
            self.servers[arm, boot] = json_object(path)
        return self.servers[arm, boot]

    def gpu(self, stored: StoredPoint, path: Path) -> tuple[GpuWindow | None, Finding | None]:
        """What the samples say of a load, and that they say nothing. Points come boot by boot, so one file is held."""
        span = load_span(stored.meta)
        if span is None or not path.is_file():
            return None, None
        if self.samples is None or self.samples.path != path:
            self.samples = GpuSamples(path, self.gpus)
        real = not stored.meta.get("simulated")  # an invented GPU hides nothing
        unsampled = real and self.samples.misses(*span)
        return self.samples.window(*span), no_sample(span[1] - span[0]) if unsampled else None

    def work(self, meta: Mapping[str, Any], ok: int) -> ClientWork | None:
        """What the load generator says of the node's processors. A simulated engine's speed is no node's."""
        if self.sweep.load_from != "node" or meta.get("simulated"):
            return None
        return client_work(client_summary(meta.get("load") or {}), ok)

    def judged(self) -> ReadPoints:
        boots = {(point.arm, point.boot) for point, _, _ in self.found}
        shared = {boot: self._of_boot(*boot) for boot in boots}
        points = [
            judged(point, (*judge(evidence), *shared[point.arm, point.boot][0], *notes))
            for point, evidence, notes in self.found
        ]
        notes: dict[str, dict[str, None]] = {}
        for (arm, _), (_, texts) in sorted(shared.items()):
            notes.setdefault(arm, {}).update(dict.fromkeys(texts))
        for arm, note in self.sharing:
            notes.setdefault(arm, {})[note] = None
        for arm, count in sorted(restarted_boots(self.store, self.served).items()):
            some = "a boot" if count == 1 else f"{count} boots"
            notes.setdefault(arm, {})[
                f"{some} of it went on after an interruption: points of two server starts"
            ] = None
        return ReadPoints(
            tuple(across_boots(across_arms(points, self.baseline), self.works)),
            {arm: list(found.values()) for arm, found in self.outputs.items()},
            {arm: tuple(texts) for arm, texts in notes.items()},
        )

    def _of_boot(self, arm: str, boot: int) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
        """Findings for every point of a boot, and notes on its arm."""
        own = [evidence for point, evidence, _ in self.found if (point.arm, point.boot) == (arm, boot)]
        alike = self._arguments(arm, boot)
        fatal = tuple(finding for finding in alike if finding.fatal)
        return (*over_boot(own), *fatal), tuple(finding.text for finding in alike if not finding.fatal)

    def _arguments(self, arm: str, boot: int) -> tuple[Finding, ...]:
        """Server arguments that differ from the baseline's first boot beyond what the experiment asks for."""
        if self.baseline is None:
            return ()
        first = min((point.boot for point, _, _ in self.found if point.arm == self.baseline), default=None)
        mine = self.server(arm, boot)
        theirs = self.server(self.baseline, first) if first is not None else {}
        asked = asked_keys(self.arms[arm], self.arms[self.baseline])
        return argument_findings(
            unintended(server_arguments(mine, theirs), server_arguments(theirs, mine), asked), self.baseline
        )


def _point(stored: StoredPoint, found: PointMetrics) -> PointResult:
    return PointResult(
        arm=stored.arm,
        boot=stored.boot,
        index=stored.index,
        concurrency=stored.concurrency,
        metrics=found.metrics,
        ok=found.ok,
        failed=found.failed,
        attempted=found.attempted,
        warmup_requests=int(stored.meta.get("warmup_requests") or 0),
        bodies_sha256=str(stored.meta.get("bodies_sha256") or ""),
        extra={SHARED_KEY: stored.meta[SHARED_KEY]} if SHARED_KEY in stored.meta else {},
    )


def _stepping(sweep: Sweep, stored: StoredPoint, window_s: float | None) -> dict[str, float | None]:
    """Of a load that steps across a threshold: time beyond it, and changes of mode of one rank. Empty for others."""
    load = sweep.load
    if load.kind != "straddle" or load.around is None:
        return {}
    found: dict[str, float | None] = {SHARE: share_above(read_records(stored.records), load.around)}
    after = stored.meta.get("server_after") or []
    moved = counted(stored.meta.get("server_before") or [], after, ("transitions",))
    if moved is not None and window_s:
        found[TRANSITIONS] = moved[0] / len(after) / window_s
    return found


def _noting_outputs(
    records: Iterable[dict[str, Any]], index: int, into: dict[tuple[int, int], str]
) -> Iterator[dict[str, Any]]:
    """The records as they come; the digests of good outputs go into `into`."""
    for record in records:
        if (digest := digest_of(record)) is not None:
            into[index, record["i"]] = digest[:DIGEST_CHARS]
        yield record


def _expected_workers(store: RunStore) -> dict[str, str]:
    paths: Mapping[str, Mapping[str, str]] = plan_left(store).get("worker_paths") or {}
    return {arm: path["worker"] for arm, path in paths.items() if path.get("worker") in _WORKERS}


def measured_arms(
    experiment: Experiment, points: Sequence[PointResult], planned: Iterable[str]
) -> tuple[Arm, ...]:
    """Arms of this run in the experiment's order: those that were to run, and those that have points."""
    names = {*planned, *(point.arm for point in points)}
    return tuple(arm for arm in experiment.arms if arm.name in names)
