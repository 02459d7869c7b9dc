"""Whether a run may go on here: what its points were measured on, and what would measure the rest. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.model.experiment import Experiment
from orchestrator.records.written import Key, deciding_keys, in_yaml

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
    was, is_now = deciding_keys(begun), deciding_keys(now)
    common = _common_arms(was[_ARMS], is_now[_ARMS])
    found: dict[Key, str] = {}
    for key in dict.fromkeys([*was, *is_now]):
        if was.get(key) == is_now.get(key):
            continue
        if key[0] == "arms" and len(key) > 1:
            name = key[1] if isinstance(was[_ARMS], list) else ""
            if ("server", *key[-2:]) in found or name not in common:
                continue  # told once: at the server, or as an arm that is not in both
        values = "differs" if "env" in key else f"{_value(was.get(key))}, now {_value(is_now.get(key))}"
        found[key] = f"{'.'.join(key)}: {values}"
    if begun.arms != now.arms and not any(key[0] in ("arms", "server") for key in found):
        found[_ARMS] = "arms: what the preset makes of the arguments differs"
    return tuple(found.values())


def _value(value: Any) -> str:
    return _cut(in_yaml(value))


_ARMS: Key = ("arms",)


def _common_arms(was: Any, is_now: Any) -> set[str]:
    """Names of arms whose keys can be compared; those of a preset are compared as of one arm without a name."""
    if isinstance(was, list) and isinstance(is_now, list):
        return set(was) & set(is_now)
    return {""} if was == is_now else set()


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
    """Text as it is: quotes tell nothing of a version or a path."""
    return _cut(value if isinstance(value, str) else in_yaml(value))


def _cut(text: str) -> str:
    """Digests by their first characters; what is longer than a line is cut."""
    text = re.sub(r"\b([0-9a-f]{12})[0-9a-f]{52}\b", r"\1", text)
    return text if len(text) <= 160 else f"{text[:157]}..."
