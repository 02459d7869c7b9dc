"""An experiment as keys and values that a person can write, for whoever is told which of them differ. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from orchestrator.config.measures import RATE, duration
from orchestrator.config.sections import Section
from orchestrator.config.tables import SERVER, SWEEP
from orchestrator.model.experiment import Arm, Experiment, Load, Prompts

Key = tuple[str, ...]
_PRESET = {"preset": "speculation"}


def deciding_keys(experiment: Experiment) -> dict[Key, Any]:
    """Key path -> value as the file spells it, of what decides the numbers: name, server, arms and sweep.

    How long a server may take to start (`server.ready`) measures nothing.

    Arms are complete, so each has what it inherits; those of a preset have no keys of their own.
    """
    found: dict[Key, Any] = {("name",): experiment.name}
    found |= {
        key: value for key, value in _section(("server",), SERVER, experiment.server) if key[1] != "ready"
    }
    if _of_preset(experiment):
        found["arms",] = _PRESET
        for arm in experiment.arms:
            for key, value in _arm(("arms",), arm, with_patches=False):
                found.setdefault(key, value)
    else:
        found["arms",] = [arm.name for arm in experiment.arms]
        for arm in experiment.arms:
            found |= _arm(("arms", arm.name), arm)
    return found | dict(_section(("sweep",), SWEEP, experiment.sweep))


def in_yaml(value: Any) -> str:
    """On one line; "absent" for what is not there."""
    if value is None:
        return "absent"
    text = yaml.safe_dump(
        _plain(value), default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6
    )
    return text.removesuffix("...\n").strip()


def _of_preset(experiment: Experiment) -> bool:
    return any(arm.only_by for arm in experiment.arms)


def _section(path: Key, section: Section, value: Any) -> Iterator[tuple[Key, Any]]:
    """The keys that the section's table lists; what only the code sets is none of them."""
    for field in section.fields:
        held, key = getattr(value, field.target), (*path, field.key)
        if isinstance(field.kind, Section):
            yield from _section(key, field.kind, held)
        elif isinstance(held, Load):
            yield key, _load(held)
        elif isinstance(held, Prompts):
            yield from _prompts(key, held)
        else:
            yield from _leaves(key, field.kind.spell(held))


def _arm(path: Key, arm: Arm, *, with_patches: bool = True) -> Iterator[tuple[Key, Any]]:
    yield from _leaves((*path, "args"), arm.args)
    yield from _leaves((*path, "env"), arm.env)
    if with_patches:
        yield (*path, "patches"), list(arm.patches)


def _load(load: Load) -> Any:
    if load.kind == "open":
        return {"open": load.arrival, "rate": RATE.spell(load.rate_per_s)}
    if load.kind == "straddle":
        return {"straddle": {"around": load.around, "period": duration().spell(load.period_s)}}
    return load.kind


def _prompts(path: Key, prompts: Prompts) -> Iterator[tuple[Key, Any]]:
    values = {
        "source": prompts.source,
        "kinds": list(prompts.kinds) or None,
        "file": prompts.path,
        "vocab": prompts.vocab,
        "seed": None if prompts.source == "file" else prompts.seed,
    }
    yield from (((*path, key), value) for key, value in values.items() if value is not None)


def _leaves(path: Key, value: Any) -> Iterator[tuple[Key, Any]]:
    if not isinstance(value, Mapping):
        yield path, value
        return
    for key, inner in value.items():
        yield from _leaves((*path, str(key)), inner)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return list(map(_plain, value)) if isinstance(value, list | tuple) else value
