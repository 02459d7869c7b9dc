"""A window of a boot's GPU samples is what a look at all of them would tell, wherever the clock was."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.analysis.trace import gpu_window
from orchestrator.records.gpu_samples import GpuSamples

HEAD = "utc_s,elapsed_s,foreign_pids,xids,index,clocks_event_reasons.active\n"


def _line(utc_s: float, xid: int) -> str:
    return f"{utc_s:.3f},0.000,,{xid},0,0x0000000000000004\n"


ORDERED = [_line(1000 + t, t) for t in range(10)]
SET_BACK = [*ORDERED[:5], *[_line(900 + t, 100 + t) for t in range(5)], *ORDERED[5:]]
TORN = [*ORDERED, "1010.0"]
NO_TIME = [*ORDERED[:3], "x,y\n", *ORDERED[3:]]


@pytest.mark.parametrize("lines", [ORDERED, SET_BACK, TORN, NO_TIME, []])
@pytest.mark.parametrize(
    ("begin", "end"), [(0, 2000), (1002, 1004), (1002.5, 1002.6), (901, 903), (3000, 4000)]
)
def test_a_window_tells_what_all_lines_tell(
    lines: list[str], begin: float, end: float, tmp_path: Path
) -> None:
    path = tmp_path / "gpu.csv"
    path.write_text("".join([HEAD, *lines]))
    assert GpuSamples(path).window(begin, end) == gpu_window([HEAD, *lines], begin, end)
