"""SGLang's own adaptive speculation with zero steps (0.5.14), for slots that hold one candidate each."""

from __future__ import annotations

import bisect
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class Slots:
    """Speculate or not by batch size. A batch is padded to the next captured size before its slot is looked up."""

    def __init__(self, steps: Mapping[int, int], captured: Sequence[int], log: logging.Logger) -> None:
        self._sizes = sorted(steps)
        self._steps = dict(steps)
        self._captured = sorted(captured)
        self._log = log
        self._current = max(steps.values())
        self.counters: dict[str, Any] | None = None

    @classmethod
    def read(cls, file: str | None, num_steps: int, captured: Sequence[int], log: logging.Logger) -> Slots:
        """Raises ValueError for what the release refuses, and for slots that move with acceptance."""
        if file is None:
            raise ValueError("speculative_adaptive without a configuration of its own is not simulated")
        config = json.loads(Path(file).read_text(encoding="utf-8"))
        steps: dict[int, int] = {}
        for key, entry in config.items():
            if not key.isdigit():
                continue
            candidates = entry.get("candidate_steps")
            if not isinstance(candidates, list) or len(candidates) != 1:
                raise ValueError(f"BS {key}: candidate_steps of another number than one is not simulated")
            steps[int(key)] = int(candidates[0])
        if num_steps not in steps.values():
            raise ValueError(
                f"--speculative-num-steps={num_steps} is not in the adaptive config candidate_steps "
                f"{sorted(steps.values())}. Pass one of those values."
            )
        if set(steps.values()) - {0, num_steps}:
            raise ValueError(f"adaptive steps other than 0 and {num_steps} are not simulated")
        return cls(steps, captured, log)

    def decide(self, batch: int) -> bool:
        """True: this step speculates."""
        steps = self._steps[self._slot(batch)]
        if steps != self._current:
            self._log.info(
                "Switch adaptive runtime state: steps %d -> %d, draft_tokens %d -> %d",
                *(self._current, steps, self._current + 1, steps + 1),
            )
            self._current = steps
        return steps > 0

    def count(self, batch: int, tokens: int, speculated: bool) -> None:
        """The release counts nothing of its own here."""

    def _slot(self, batch: int) -> int:
        place = bisect.bisect_left(self._captured, batch)
        padded = self._captured[place] if place < len(self._captured) else batch
        return self._sizes[max(0, bisect.bisect_right(self._sizes, padded) - 1)]
