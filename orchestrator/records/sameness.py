"""Whether a run may go on here: what its points were measured on, and what would measure the rest. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.model.experiment import Experiment

Lock = Mapping[str, Any]  # the block `lock:` of experiment.lock.yaml
_GPU = re.compile(r"(?P<name>.*) \((?P<uuid>[^()]*)\), driver (?P<driver>.*)\Z")


@dataclass(frozen=True)
class Changes:
    """`fatal`: points of both sides must not stand in one report. `told`: worth knowing, and no more."""

    fatal: tuple[str, ...] = ()
    told: tuple[str, ...] = ()


def changes(begun: Lock, now: Lock) -> Changes:
    """From the lock block that the run was begun with and the one that it would have now.

    A machine may be lent again as another of its kind, so host and serial numbers are told and do not count. Where the
    older block lacks an entry, nothing is compared.
    """
    fatal = [*_differing(begun, now, _FATAL), *_named(begun, now, "files"), *_named(begun, now, "patch_sets")]
    fatal += [*_named(begun, now, "arms"), *_gpus(begun, now)]
    return Changes(tuple(fatal), tuple(_differing(begun, now, _TOLD)))


def experiment_changes(begun: Experiment, now: Experiment) -> tuple[str, ...]:
    """What decides the numbers and was written otherwise: `sweep.output_tokens: 64, now 128`. Where the node is reached
    and limits may differ. Values of the environment are not shown, since they may be secret."""
    was, is_now = _written(begun), _written(now)
    found: dict[tuple[str, ...], str] = {}
    for key in dict.fromkeys([*was, *is_now]):
        if was.get(key) == is_now.get(key):
            continue
        if key[0] == "arms" and ("server", *key[2:]) in found:
            continue  # inherited: told once
        values = "differs" if "env" in key else f"{_short(was.get(key))}, now {_short(is_now.get(key))}"
        found[key] = f"{'.'.join(key)}: {values}"
    return tuple(found.values())


_SPELLED = {  # as the file has them
    "request_timeout_s": "request_timeout",
    "idle_timeout_s": "idle_timeout",
    "warmup_requests_per_slot": "warmup",
    "rate_per_s": "rate",
    "period_s": "period",
    "timeout_s": "timeout",
}


def _written(experiment: Experiment) -> dict[tuple[str, ...], Any]:
    """Key path -> value, of what must be the same in both parts of a run."""
    arms = {arm.name: asdict(arm) for arm in experiment.arms}
    parts = {"name": experiment.name, "server": asdict(experiment.server), "arms": arms}
    order: dict[tuple[str, ...], Any] = {("arms",): [arm.name for arm in experiment.arms]}
    return order | dict(_leaves((), {**parts, "sweep": asdict(experiment.sweep)}))


def _leaves(path: tuple[str, ...], value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not isinstance(value, Mapping):
        yield path, value
        return
    for key, inner in value.items():
        yield from _leaves((*path, _SPELLED.get(key, str(key))), inner)


_FATAL = {
    "SGLang": ("tree", "version"),
    "source of the tree": ("tree", "baseline"),
    "hand-made changes of the tree": ("tree", "changed"),
    "Python": ("python", "version"),
    "prompts": ("prompts_sha256",),
}
_TOLD = {
    "host": ("host",),
    "kernel": ("kernel",),
    "dynspec": ("dynspec",),
    "place of the tree": ("tree", "path"),
    "interpreter": ("python", "path"),
}


def _differing(begun: Lock, now: Lock, what: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    for label, keys in what.items():
        was, is_now = _at(begun, keys), _at(now, keys)
        if was is not None and was != is_now:
            yield f"{label}: {_short(was)}, now {_short(is_now)}"


def _named(begun: Lock, now: Lock, key: str) -> Iterator[str]:
    """Entries that both have: a run may go on with fewer arms, which need fewer files."""
    was, is_now = _mapping(begun.get(key)), _mapping(now.get(key))
    for name in sorted(was.keys() & is_now.keys()):
        if was[name] != is_now[name]:
            yield f"{_LABELS[key]} {name}: {_short(was[name])}, now {_short(is_now[name])}"


_LABELS = {"files": "file", "patch_sets": "patch set", "arms": "arguments of arm"}


def _gpus(begun: Lock, now: Lock) -> Iterator[str]:
    was, is_now = _gpu_words(begun), _gpu_words(now)
    if was is None:
        return
    for label, part in (("GPUs", "name"), ("driver", "driver")):
        old, new = (_counted(words or (), part) for words in (was, is_now))
        if old != new:
            yield f"{label}: {old}, now {new}"


def _gpu_words(lock: Lock) -> tuple[str, ...] | None:
    found = lock.get("gpus")
    return tuple(map(str, found)) if isinstance(found, list) else None


def _counted(words: tuple[str, ...], part: str) -> str:
    """`8 x NVIDIA B200`, or the driver versions."""
    values = [match[part] if (match := _GPU.match(word)) else word for word in words]
    distinct = sorted(set(values))
    if part == "driver":
        return ", ".join(distinct) or "none"
    return ", ".join(f"{values.count(value)} x {value}" for value in distinct) or "none"


def _at(lock: Lock, keys: tuple[str, ...]) -> Any:
    value: Any = lock
    for key in keys:
        value = _mapping(value).get(key)
    return value


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _short(value: Any) -> str:
    """Digests by their first characters; what is longer than a line is cut."""
    text = "absent" if value is None else str(value)
    text = re.sub(r"\b([0-9a-f]{12})[0-9a-f]{52}\b", r"\1", text)
    return text if len(text) <= 160 else f"{text[:157]}..."
