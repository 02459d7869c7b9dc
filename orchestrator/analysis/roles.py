"""Which arm plays which part in the comparison: baseline, static or dynamic speculation, two of a kind. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from orchestrator.model.experiment import Arm

THRESHOLD = "speculative-disable-batch-threshold"
ADAPTIVE_ARGS = frozenset({"speculative-adaptive", "speculative-adaptive-config"})
DYNAMIC_ARGS = ADAPTIVE_ARGS | {THRESHOLD}
DYNAMIC_ENV = frozenset({"SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND"})
DYNAMIC_PATCHES = frozenset({"dynamic_disable"})


@dataclass(frozen=True)
class Roles:
    """`static_of`: dynamic arm -> the arm with the same settings that always speculates, where there is one."""

    baseline: str | None  # the first arm without speculation
    static: tuple[str, ...]
    dynamic: tuple[str, ...]
    plain: tuple[str, ...]  # without speculation, beside the baseline
    static_of: dict[str, str] = field(default_factory=dict)
    thresholds: dict[str, int] = field(default_factory=dict)
    adaptive: tuple[str, ...] = ()  # dynamic, by a configuration that the arguments do not tell
    twins: tuple[tuple[str, str], ...] = ()  # arms with identical settings: an A/A pair

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """(arm, against): each arm against the baseline, each dynamic arm against its static one as well.

        An arm with the baseline's own settings is not compared: it is half of an A/A pair.
        """
        arms = (*self.static, *self.dynamic, *self.plain)
        against = [(arm, self.baseline) for arm in arms if self.baseline is not None]
        return tuple(pair for pair in (*against, *self.static_of.items()) if pair not in self.twins)


def roles(arms: Sequence[Arm]) -> Roles:
    """Read the parts from the arms' settings, never from their names."""
    plain = [arm.name for arm in arms if not arm.speculates]
    dynamic = [arm for arm in arms if arm.speculates and _is_dynamic(arm)]
    static = [arm for arm in arms if arm.speculates and not _is_dynamic(arm)]
    return Roles(
        plain[0] if plain else None,
        tuple(arm.name for arm in static),
        tuple(arm.name for arm in dynamic),
        tuple(plain[1:]),
        _partners(static, dynamic),
        {arm.name: value for arm in dynamic if isinstance(value := arm.args.get(THRESHOLD), int)},
        tuple(arm.name for arm in dynamic if THRESHOLD not in arm.args and _given(arm, ADAPTIVE_ARGS)),
        _twins(arms),
    )


def roles_of_names(names: Sequence[str]) -> Roles:
    """Where no settings are known: the arm called baseline, or else the first, is what others are set against."""
    if not names:
        return Roles(None, (), (), ())
    baseline = "baseline" if "baseline" in names else names[0]
    return Roles(baseline, tuple(name for name in names if name != baseline), (), ())


def _is_dynamic(arm: Arm) -> bool:
    return bool(DYNAMIC_PATCHES & set(arm.patches)) or _given(arm, DYNAMIC_ARGS)


def _given(arm: Arm, keys: frozenset[str]) -> bool:
    values = (arm.args.get(key) for key in keys)
    return any(value is not None and value is not False for value in values)  # a threshold of 0 is one


def _static_part(arm: Arm) -> object:
    args = {key: value for key, value in arm.args.items() if key not in DYNAMIC_ARGS}
    env = {key: value for key, value in arm.env.items() if key not in DYNAMIC_ENV}
    return args, env


def _partners(static: Sequence[Arm], dynamic: Sequence[Arm]) -> dict[str, str]:
    found = {}
    for arm in dynamic:
        for candidate in static:
            if _static_part(candidate) == _static_part(arm):
                found[arm.name] = candidate.name
                break
    return found


def _twins(arms: Sequence[Arm]) -> tuple[tuple[str, str], ...]:
    found = []
    for i, arm in enumerate(arms):
        for other in arms[i + 1 :]:
            if (arm.args, arm.env, arm.patches) == (other.args, other.env, other.patches):
                found.append((other.name, arm.name))
    return tuple(found)
