"""How long a simulated step takes, and how many draft tokens turn out right. Figures live in `timing.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEFAULT_FILE = Path(__file__).with_name("timing.json")


def interpolate(points: Sequence[Sequence[float]], x: float) -> float:
    """Piecewise linear through `points` (sorted by x); below the first point flat, beyond the last its slope."""
    if x <= points[0][0] or len(points) == 1:
        return points[0][1]
    for index in range(1, len(points)):
        if x <= points[index][0] or index == len(points) - 1:
            (x0, y0), (x1, y1) = points[index - 1], points[index]
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    raise AssertionError("unreachable")


@dataclass(frozen=True)
class DraftShape:
    """What one speculative step tries: draft steps, tree width, tokens given to the verify step."""

    steps: int
    topk: int
    draft_tokens: int
    worker: str

    @property
    def longest(self) -> int:
        """Most tokens one step can yield: every draft step right, and the bonus token."""
        return self.steps + 1


class Timing:
    """Durations in ms at speed 1. Pure: the caller waits."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self.parameters = parameters
        self._plain = parameters["step_ms"]["plain"]["points"]
        self._speculative = parameters["step_ms"]["speculative"]["points"]

    @classmethod
    def load(cls, file: Path = DEFAULT_FILE) -> Timing:
        return cls(json.loads(file.read_text(encoding="utf-8")))

    def plain_ms(self, batch: int, *, speculation_loaded: bool = False) -> float:
        """One token for each of `batch` requests."""
        factor = self.parameters["fallback_factor"]["value"] if speculation_loaded else 1.0
        return interpolate(self._plain, batch) * float(factor)

    def speculative_ms(self, batch: int, shape: DraftShape) -> float:
        """Draft, verify and draft-extend for `batch` requests; the accept length does not change it."""
        reference = self.parameters["reference_draft"]
        ms = interpolate(self._speculative, batch)
        ms += (shape.steps - reference["steps"]) * self.parameters["draft_step_ms"]["value"]
        extra_tokens = batch * (shape.draft_tokens - reference["draft_tokens"])
        ms += extra_tokens * self.parameters["verify_token_us"]["value"] / 1000
        if shape.worker == "v1":
            ms += self.parameters["v1_step_ms"]["value"]
        return max(float(ms), interpolate(self._plain, batch))

    def prefill_ms(self, new_tokens: int) -> float:
        per_token = self.parameters["prefill_token_us"]["value"] / 1000
        return float(self.parameters["prefill_ms"]["value"] + new_tokens * per_token)

    def accept_rate(self, shape: DraftShape) -> float:
        """Chance that a draft token is right."""
        rates = self.parameters["accept_rate"]
        return float(rates["topk_1"] if shape.topk == 1 else rates["topk_more"])
