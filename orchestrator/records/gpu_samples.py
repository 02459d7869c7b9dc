"""The GPU samples of one boot, cut by time: a boot of hours has some hundred thousand lines, and as many points."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from itertools import pairwise
from pathlib import Path

from orchestrator.analysis.trace import gpu_window, of_gpus
from orchestrator.analysis.validity import GpuWindow
from orchestrator.model.experiment import Gpus


class GpuSamples:
    """What a gpu.csv says of `gpus`, read once. `utc_s` is its first column; a clock that was set back leaves its lines
    out of order, and then every window looks at all of them."""

    def __init__(self, path: Path, gpus: Gpus = "all") -> None:
        self.path = path
        text = path.read_text(encoding="utf-8", errors="replace")
        lines = list(of_gpus(text.splitlines(keepends=True), gpus))
        self._head, self._lines = lines[:1], lines[1:]
        self._at = array("d", map(_utc_s, self._lines))
        self._in_order = all(earlier <= later for earlier, later in pairwise(self._at))

    def window(self, begin_utc_s: float, end_utc_s: float) -> GpuWindow | None:
        lines = self._lines[self._about(begin_utc_s, end_utc_s)]
        return gpu_window([*self._head, *lines], begin_utc_s, end_utc_s)

    def misses(self, begin_utc_s: float, end_utc_s: float) -> bool:
        """There are samples, and none of them is of that time."""
        near = self._at[self._about(begin_utc_s, end_utc_s)]
        return bool(self._lines) and not any(begin_utc_s <= at <= end_utc_s for at in near)

    def _about(self, begin_utc_s: float, end_utc_s: float) -> slice:
        """The lines of that time; all of them where they are in no order."""
        if not self._in_order:
            return slice(None)
        return slice(bisect_left(self._at, begin_utc_s), bisect_right(self._at, end_utc_s))


def _utc_s(line: str) -> float:
    """NaN, which is in no order, for a line that does not begin with a time."""
    try:
        return float(line.partition(",")[0])
    except ValueError:
        return float("nan")
