"""From the measurements to a setting: leave speculation off, on, or switch it off above a threshold. Pure.

With a threshold the server still pays for being able to speculate (the disabled tax), so the best threshold lies where
static speculation meets the *taxed* baseline, which is higher than where it meets the baseline itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.analysis.crossover import Crossover
from orchestrator.errors import DoesNotFit
from orchestrator.model.experiment import Arm
from orchestrator.native_adaptive import captured_batch_sizes, native_adaptive

Advice = Literal["off", "on", "threshold", "none"]


@dataclass(frozen=True)
class Recommendation:
    """`threshold`: batches of more requests run plain. `low`, `high`: its 95 % interval."""

    advice: Advice
    arm: str
    threshold: int | None
    low: int | None
    high: int | None
    why: str
    native_config: dict[str, Any] | None = None  # --speculative-adaptive-config of SGLang 0.5.14 and later
    native_why_not: str = ""
    native_note: str = ""  # where the configuration has another threshold; part of `why`


def recommend(taxed: Crossover, arm: Arm | None, tax: float | None) -> Recommendation:
    """`taxed`: static speculation against the baseline times (1 - tax); `tax` None: not measured, taken as 0."""
    level = "concurrency that counts" if taxed.uncounted_at else "measured concurrency"
    if taxed.kind == "never":
        return _plain_advice("off", taxed, f"no {level} gains from speculation")
    if taxed.kind == "always":
        return _plain_advice("on", taxed, f"no {level} loses from speculation")
    if taxed.kind != "crosses" or len(taxed.crossings) > 1 or taxed.crossings[0].turns == "better":
        return _plain_advice(
            "none", taxed, _NO_THRESHOLD.get(taxed.kind, "there is no single place to switch off")
        )
    crossing = taxed.crossings[0]
    threshold = math.floor(crossing.concurrency)
    paid = (
        "their disabled tax was not measured, and is taken as 0" if tax is None else f"disabled tax {tax:.1%}"
    )
    config, words = native_config(threshold, arm)
    note = f"; {words}" if config and words else ""
    return Recommendation(
        "threshold",
        taxed.arm,
        threshold,
        None if crossing.low is None else math.floor(crossing.low),
        None if crossing.high is None else math.floor(crossing.high),
        f"up to there {taxed.arm} is faster than plain steps of such a server ({paid}){note}",
        config,
        "" if config else words,
        note,
    )


_NO_THRESHOLD = {
    "noise": "no difference stands out of the noise",
    "untested": "one boot is no evidence",
    "partly": "half of the asked concurrencies or more do not count",
    "nothing": "nothing was measured on both sides",
}


def _plain_advice(advice: Advice, taxed: Crossover, why: str) -> Recommendation:
    return Recommendation(advice, taxed.arm, None, None, None, why)


def native_config(threshold: int, arm: Arm | None) -> tuple[dict[str, Any] | None, str]:
    """The threshold as SGLang's own adaptive configuration (0.5.14 and later), or why it has none.

    That mode pads a batch to a captured CUDA graph size before it looks, so only such sizes can be thresholds: the one
    below is taken, and said.
    """
    if arm is None:
        return None, "the arm's settings are not known"
    steps, topk = arm.args.get("speculative-num-steps"), arm.args.get("speculative-eagle-topk", 1)
    if not isinstance(steps, int) or not isinstance(topk, int):
        return None, "speculative-num-steps is not set"
    sizes = captured_batch_sizes(arm)
    nearest = max((size for size in sizes if size <= threshold), default=threshold)
    nearest = threshold if threshold >= max(sizes, default=0) else nearest
    try:
        native = native_adaptive(nearest, steps, sizes, topk=topk)
    except DoesNotFit as error:
        return None, error.message
    said = f"{threshold} is no captured CUDA graph batch size, so SGLang's own adaptive mode gets {nearest}"
    return {key: dict(slot) for key, slot in native.config.items()}, said if nearest != threshold else ""
