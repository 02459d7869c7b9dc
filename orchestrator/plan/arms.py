"""Arms as written -> arms as this tree serves them. Pure.

From SGLang 0.5.14 on the threshold of the dynamic_disable patch needs no patch: the arm gets SGLang's own adaptive
speculation with a configuration that rests above the threshold. Arms of a preset that a tree cannot serve are left
out with the reason; an arm that was written out is refused with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from orchestrator.errors import DoesNotFit
from orchestrator.model.experiment import ArgValue, Arm
from orchestrator.model.plan import PutFile
from orchestrator.model.speculation import (
    DRAFT_SYNC_FLAG,
    DYNAMIC_PATCH,
    SKIP_DRAFT_EXTEND,
    SWITCH_FLAG,
    THRESHOLD_FLAG,
    algorithm,
    threshold,
    whole,
)
from orchestrator.native_adaptive import CONFIG_FLAG, captured_batch_sizes, native_adaptive

# `adaptive_unsupported_reason` of 0.5.14 and 0.5.23: with these the server falls back to static speculation in silence.
_NO_ADAPTIVE = ("enable-dp-attention", "enable-multi-layer-eagle", "enable-two-batch-overlap", "enable-pdmux")


@dataclass(frozen=True)
class PatchRules:
    """What the carried patches say of this release: patch -> why it is not needed, patch -> why it is refused."""

    native: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


class NoArmServed(DoesNotFit):
    """Every arm that was asked for is one of a preset that this tree cannot serve. `unsupported`: see Plan."""

    def __init__(self, unsupported: Mapping[str, str]) -> None:
        reasons = tuple(f"arm {name}: {why}" for name, why in unsupported.items())
        alone = len(reasons) == 1
        super().__init__(
            reasons[0] if alone else "this tree can serve none of the arms", details=() if alone else reasons
        )
        self.unsupported = unsupported


@dataclass(frozen=True)
class FittedArms:
    """`arms`: as they are served. `files`: by arm, what its server reads. `modes`, `unsupported`: see Plan."""

    arms: tuple[Arm, ...]
    files: Mapping[str, PutFile] = field(default_factory=dict)
    modes: Mapping[str, str] = field(default_factory=dict)
    unsupported: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Fitted:
    arm: Arm
    file: PutFile | None = None
    mode: str = ""


def fit_arms(arms: Iterable[Arm], version: str | None, rules: PatchRules, folder: str) -> FittedArms:
    """`folder`: where on the node the files of this run lie. Raises DoesNotFit for a written arm that has no way."""
    fitted: list[_Fitted] = []
    unsupported: dict[str, str] = {}
    for arm in arms:
        try:
            fitted.append(_fit(arm, version, rules, folder))
        except DoesNotFit as error:
            if not arm.only_by:
                raise DoesNotFit(f"arm {arm.name}: {error.message}", help=error.help) from error
            unsupported[arm.name] = error.message
    modes = {item.arm.name: item.mode for item in fitted if item.mode}
    return FittedArms(
        tuple(item.arm for item in fitted),
        {item.arm.name: item.file for item in fitted if item.file is not None},
        modes,
        unsupported,
        tuple(f"arm {name}: {mode}" for name, mode in modes.items()),
    )


def leave_out(found: FittedArms, arm: str, why: str) -> FittedArms:
    """The same without an arm of a preset whose patches do not fit the tree."""
    return replace(
        found,
        arms=tuple(item for item in found.arms if item.name != arm),
        unsupported={**found.unsupported, arm: why},
    )


def _fit(arm: Arm, version: str | None, rules: PatchRules, folder: str) -> _Fitted:
    native = DYNAMIC_PATCH in rules.native
    if arm.only_by == "patch" and native:
        raise DoesNotFit(f"SGLang {version} needs no patch; arm native has its threshold")
    if arm.only_by == "patch" and DYNAMIC_PATCH in rules.refused:
        raise DoesNotFit(rules.refused[DYNAMIC_PATCH])
    if arm.only_by == "native" and not native:
        raise DoesNotFit(f"adaptive speculation of SGLang {version} never goes down to zero draft steps")
    if not native or (DYNAMIC_PATCH not in arm.patches and arm.only_by != "native"):
        return _Fitted(arm)
    bare = replace(arm, patches=tuple(name for name in arm.patches if name != DYNAMIC_PATCH))
    wanted = threshold(arm)
    if wanted is None:
        return _Fitted(bare, mode=f"without {DYNAMIC_PATCH}: not needed by SGLang {version}")
    return _natively(bare, wanted, version, folder)


def _natively(arm: Arm, wanted: int, version: str | None, folder: str) -> _Fitted:
    _refuse_no_counterpart(arm)
    steps = whole(arm, "speculative-num-steps")
    if steps is None:
        raise DoesNotFit(
            f"SGLang {version} has the threshold as an adaptive configuration, which needs the number of draft steps",
            help="write speculative-num-steps",
        )
    topk = whole(arm, "speculative-eagle-topk")
    native = native_adaptive(wanted, steps, captured_batch_sizes(arm), topk=1 if topk is None else topk)
    file = PutFile(f"{folder}/{arm.name}.json", native.to_json())
    args: dict[str, ArgValue] = {key: value for key, value in arm.args.items() if key != THRESHOLD_FLAG}
    args |= {**native.args, CONFIG_FLAG: file.path}
    fed = ", draft not fed there" if arm.env.get(SKIP_DRAFT_EXTEND) == "1" else ""
    way = f"SGLang {version}'s own adaptive speculation (zero draft steps above it{fed})"
    mode = f"threshold {wanted} by {way}, no patch"
    return _Fitted(replace(arm, args=args), file, mode)


def _refuse_no_counterpart(arm: Arm) -> None:
    """What the patch knows and the release does not, and what makes the release fall back in silence."""
    if SWITCH_FLAG in arm.args:
        raise DoesNotFit(
            f"{SWITCH_FLAG}: SGLang's own adaptive speculation cannot be switched while it serves"
        )
    if DRAFT_SYNC_FLAG in arm.args:
        raise DoesNotFit(
            f"{DRAFT_SYNC_FLAG} belongs to the patch, which this release does not need",
            help="remove it; SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND=1 in env is nearest to skip",
        )
    given = [flag for flag in ("speculative-adaptive", CONFIG_FLAG) if flag in arm.args]
    if given:
        raise DoesNotFit(
            f"{given[0]} and {THRESHOLD_FLAG} both say when to speculate", help="keep one of them"
        )
    if algorithm(arm) not in ("EAGLE", "EAGLE3", "NEXTN"):
        raise DoesNotFit(f"adaptive speculation knows EAGLE and EAGLE3, not {algorithm(arm)}")
    blocking = [flag for flag in _NO_ADAPTIVE if arm.args.get(flag) is True]
    if blocking:
        raise DoesNotFit(f"adaptive speculation does not work with {blocking[0]}: it would be off in silence")
