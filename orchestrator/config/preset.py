"""`arms`: written out by name, or as a preset of arms made from one set of arguments.

    arms:
      preset: speculation
      args: {speculative-algorithm: EAGLE3, ..., speculative-disable-batch-threshold: 12}

The threshold goes to the arms that can have one. Two ways to carry it out stand side by side, the patch and SGLang's
own; a tree knows one of them at most, and the plan leaves out the other with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from orchestrator.config.kinds import BAD, Bad, Choice, Json, Kind
from orchestrator.config.maps import ArgsMap, EnvMap
from orchestrator.config.sections import Field, Section
from orchestrator.config.tree import MapNode, Problems, TreeNode
from orchestrator.model.experiment import ArgValue, EnvValue
from orchestrator.model.speculation import (
    DRAFT_SYNC_FLAG,
    DYNAMIC_PATCH,
    SKIP_DRAFT_EXTEND,
    SWITCH_FLAG,
    THRESHOLD_FLAG,
)

PRESET_KEY = "preset"


@dataclass(frozen=True)
class RawArm:
    """An arm as written. None as a value of `args` or `env` removes the key; `patches` None means inherited."""

    extends: str | None = None
    args: dict[str, ArgValue | None] = field(default_factory=dict)
    env: dict[str, EnvValue | None] = field(default_factory=dict)
    patches: tuple[str, ...] | None = None
    only_by: Literal["", "patch", "native"] = ""


@dataclass(frozen=True)
class _Preset:
    preset: str
    args: dict[str, ArgValue | None]
    env: dict[str, EnvValue | None] = field(default_factory=dict)


_PRESET = Section(
    _Preset,
    (
        Field(
            PRESET_KEY,
            Choice(("speculation",)),
            "baseline, static, dynamic (the patch), native (SGLang's own) and native-skip; what the tree cannot do is "
            "left out with the reason",
            required=True,
        ),
        Field(
            "args",
            ArgsMap(),
            "arguments of the static arm, and speculative-disable-batch-threshold",
            required=True,
        ),
        Field("env", EnvMap(), "environment of the arms that speculate"),
    ),
    "Arms made from one set of arguments.",
)


@dataclass(frozen=True)
class ArmsChoice:
    """Arms by name, or a preset. An arm cannot be called `preset`."""

    by_name: Kind

    def read(self, node: TreeNode, path: str, problems: Problems) -> Any:
        if not isinstance(node, MapNode) or node.get(PRESET_KEY) is None:
            return self.by_name.read(node, path, problems)
        found = _PRESET.read(node, path, problems)
        if isinstance(found, Bad):
            return BAD
        for flag in ("speculative-algorithm", THRESHOLD_FLAG):
            if found.args.get(flag) is None:
                where = node.get("args") or node
                problems.add(
                    where.where, f"{path}.args.{flag}", "missing: the arms of the preset differ in it"
                )
                return BAD
        return speculation_arms(found.args, found.env)

    def schema(self) -> Json:
        return {"anyOf": [self.by_name.schema(), _PRESET.schema()]}

    def spell(self, value: object) -> object:
        return value


def speculation_arms(args: dict[str, ArgValue | None], env: dict[str, EnvValue | None]) -> dict[str, RawArm]:
    """No speculation, always, and three ways of a threshold."""
    of_patch = (THRESHOLD_FLAG, DRAFT_SYNC_FLAG, SWITCH_FLAG)
    static = {key: value for key, value in args.items() if key not in of_patch}
    return {
        "baseline": RawArm(),
        "static": RawArm(args=static, env=env),
        "dynamic": RawArm(args=args, env=env, patches=(DYNAMIC_PATCH,), only_by="patch"),
        "native": RawArm(args=args, env=env, only_by="native"),
        "native-skip": RawArm(args=args, env={**env, SKIP_DRAFT_EXTEND: "1"}, only_by="native"),
    }
