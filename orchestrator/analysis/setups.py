"""What two runs must have in common before their numbers may be set side by side. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from orchestrator.analysis.validity import Limits
from orchestrator.analysis.witness import EVENT_CPU, times_slower
from orchestrator.model.experiment import Experiment, Gpus, Load

ABSENT = "(absent)"
UUID_CHARS = len("GPU-01234567")
_BODIES = "request bodies at"


@dataclass(frozen=True)
class Setup:
    """Label -> value, as text. `work` is what was asked of the server: where it differs, rates are of unequal work.
    `place` is where it ran; `software` what ran. `arms`: arm -> its settings. `sweep`: concurrencies in order.
    `witness`: "arm concurrency" -> processor time of the load generator an event, s. `gpu_uuids`: of all the node's
    GPUs, empty where they are unknown; `boot_id`: of the node's kernel."""

    work: Mapping[str, str]
    place: Mapping[str, str]
    software: Mapping[str, str]
    arms: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    sweep: tuple[int, ...] = ()
    witness: Mapping[str, float] = field(default_factory=dict)
    gpu_uuids: tuple[str, ...] = ()
    boot_id: str = ""


@dataclass(frozen=True)
class Difference:
    """`blocks`: no number may be compared across it. `why`: its cause, where that is another difference."""

    what: str
    a: str
    b: str
    blocks: bool
    why: str = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.a} / {self.b}{f' ({self.why})' if self.why else ''}"


def used_gpus(facts: Mapping[str, Any], gpus: Gpus) -> list[Mapping[str, Any]]:
    """Of the node's GPUs in facts.json those that the servers had."""
    return [gpu for gpu in facts.get("gpus") or [] if gpus == "all" or gpu.get("index") in gpus]


def setup_of(
    experiment: Experiment, facts: Mapping[str, Any], summary: Mapping[str, Any], *, simulated: bool
) -> Setup:
    """From a run folder's experiment.lock.yaml, facts.json and summary.json."""
    sweep, tree = experiment.sweep, facts.get("tree") or {}
    gpus = used_gpus(facts, experiment.node.gpus)
    work = {
        "model": experiment.server.args.get("model-path", ABSENT),
        "engine": "simulated" if simulated else "real",
        "endpoint": sweep.endpoint,
        "load": _load(sweep.load),
        "output tokens": sweep.output_tokens,
        "ignore_eos": sweep.ignore_eos,
        "temperature": sweep.temperature,
    }
    place = {
        "host": facts.get("host", experiment.node.host),
        "GPUs": ", ".join(sorted(str(gpu.get("name")) for gpu in gpus)) or "none",
        "load generated on": sweep.load_from,
    }
    software = {
        "driver": ", ".join(sorted({str(gpu.get("driver")) for gpu in gpus})) or "none",
        "tree": f"{tree.get('package')} {tree.get('version')}",
        "interpreter": tree.get("python_version", ABSENT),
        "kernel": facts.get("kernel", ABSENT),
        "requests a slot": sweep.requests_per_slot,
        "warm-up requests a slot": sweep.warmup_requests_per_slot,
    }
    arms = {
        arm.name: {
            **_text(arm.args),
            **{f"env {k}": str(v) for k, v in arm.env.items()},
            "patches": str(arm.patches),
        }
        for arm in experiment.arms
    }
    work = {**work, **_bodies(summary)}
    return Setup(
        _text(work),
        _text(place),
        _text(software),
        arms,
        tuple(sweep.concurrency),
        _witness(summary),
        tuple(str(gpu["uuid"]) for gpu in facts.get("gpus") or [] if gpu.get("uuid")),
        str(facts.get("boot_id") or ""),
    )


def _load(load: Load) -> str:
    """As a reader would say it: `closed`, `open, poisson 5/s`, `steps across 12, period 2s`."""
    if load.kind == "open":
        return f"open, {load.arrival} {load.rate_per_s:.12g}/s"
    if load.kind == "straddle":
        return f"steps across {load.around}, period {load.period_s:.12g}s"
    return load.kind


def _text(values: Mapping[str, object]) -> dict[str, str]:
    return {key: str(value) for key, value in values.items()}


def _bodies(summary: Mapping[str, Any]) -> dict[str, str]:
    """Digest of the request bodies at each concurrency; one for all arms, or they are told apart."""
    found: dict[int, set[str]] = {}
    for arm in summary["arms"].values():
        for point in arm["points"]:
            digests = {boot["bodies_sha256"][:12] for boot in point["boots"]}
            found.setdefault(point["concurrency"], set()).update(digests)
    return {f"{_BODIES} {c}": ", ".join(sorted(found[c])) for c in sorted(found)}


def _witness(summary: Mapping[str, Any]) -> dict[str, float]:
    return {
        f"{name} {point['concurrency']}": entry["value"]
        for name, arm in summary["arms"].items()
        for point in arm["points"]
        if point["valid"] and (entry := point["metrics"].get(EVENT_CPU)) and entry["value"]
    }


def differences(a: Setup, b: Setup, arms: Sequence[str], *, same_place: bool) -> tuple[Difference, ...]:
    """Blocking ones first. `same_place`: a gate compares only runs of one machine, its GPUs and its load generator."""
    found = _differing("", a.work, b.work, blocks=True, common_only=_BODIES)
    found = [replace(item, why=_earlier_points(item.what, a.sweep, b.sweep)) for item in found]
    places = _differing("", a.place, b.place, blocks=same_place) or _other_machine(a, b, blocks=same_place)
    found += places
    found += _differing("", a.software, b.software, blocks=False)
    for arm in arms:
        found += _differing(f"{arm}: ", a.arms.get(arm, {}), b.arms.get(arm, {}), blocks=False)
    if not places:
        found += _speed_of_node(a.witness, b.witness)
    return tuple(sorted(found, key=lambda item: not item.blocks))


def _other_machine(a: Setup, b: Setup, *, blocks: bool) -> list[Difference]:
    """Two machines may have one name. Other GPUs of a node that was not started anew are those of the same machine."""
    known = a.gpu_uuids and b.gpu_uuids
    if not known or set(a.gpu_uuids) & set(b.gpu_uuids) or (a.boot_id and a.boot_id == b.boot_id):
        return []
    mine, theirs = (", ".join(uuid[:UUID_CHARS] for uuid in side.gpu_uuids) for side in (a, b))
    return [
        Difference("GPU UUIDs", mine, theirs, blocks, why="no GPU in common: another machine of that name")
    ]


def _speed_of_node(a: Mapping[str, float], b: Mapping[str, float]) -> list[Difference]:
    """What one and the same node was like meanwhile. Says nothing below what a boot is noted for."""
    times = times_slower(a, b)
    if times is None or 1 / Limits().node_slower <= times <= Limits().node_slower:
        return []
    slower = "second" if times > 1 else "first"
    return [
        Difference(
            "processor time of the load generator for the same work",
            "1",
            f"{times:.2f}",
            blocks=False,
            why=f"the node's processors were slower or shared in the {slower}, and the server works on them too",
        )
    ]


def _earlier_points(what: str, a: Sequence[int], b: Sequence[int]) -> str:
    """A boot serves no prompt twice, so what a point gets depends on how many the points before it took."""
    if not what.startswith(_BODIES):
        return ""
    concurrency = int(what.removeprefix(_BODIES))
    before = [tuple(takewhile(lambda c: c != concurrency, sweep)) for sweep in (a, b)]
    if before[0] == before[1]:
        return ""
    words = [", ".join(map(str, sweep)) or "none" for sweep in before]
    return (
        f"the sweeps differ before this point, which takes the prompts after theirs: {words[0]} / {words[1]}"
    )


def _differing(
    prefix: str, a: Mapping[str, str], b: Mapping[str, str], *, blocks: bool, common_only: str | None = None
) -> list[Difference]:
    """`common_only`: labels that start so count only where both sides have them (another sweep is no other work)."""
    found = []
    for key in dict.fromkeys([*a, *b]):
        left, right = a.get(key, ABSENT), b.get(key, ABSENT)
        if common_only and key.startswith(common_only) and ABSENT in (left, right):
            continue
        if left != right:
            found.append(Difference(f"{prefix}{key}", left, right, blocks))
    return found
