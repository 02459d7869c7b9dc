"""What `/health` says while requests run: told, and never acted on.

A busy server may answer 503 although tokens flow (and a dead one 200), so it decides nothing. It is asked seldom; while
requests run, SGLang (0.5.8 to 0.5.23) answers from the steps that it makes anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

EVERY_S = 10.0


@dataclass
class HealthWatch:
    """Of one load. `ask` gives the status, None for no answer; `warn` gets one text, at the first bad answer."""

    ask: Callable[[], int | None]
    warn: Callable[[str], None]
    asked: int = 0
    unwell: int = 0
    _next_s: float = field(default=0.0, repr=False)

    def look(self, progress: Mapping[str, Any]) -> None:
        """At each progress report of the load generator."""
        elapsed_s = progress.get("elapsed_s")
        if (
            not isinstance(elapsed_s, int | float)
            or elapsed_s < self._next_s
            or not progress.get("in_flight")
        ):
            return
        self._next_s = elapsed_s + EVERY_S
        status = self.ask()
        self.asked += 1
        if status == 200:
            return
        self.unwell += 1
        if self.unwell == 1:
            said = "gives no answer" if status is None else f"is {status}"
            self.warn(f"/health {said} while requests run; that alone ends nothing")
