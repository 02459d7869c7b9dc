"""A window of a boot's GPU samples is what a look at all of them would tell, wherever the clock was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.analysis.trace import boot_trace, gpu_window, of_gpus
from orchestrator.config import load_experiment
from orchestrator.model.experiment import Gpus
from orchestrator.records.gpu_samples import GpuSamples
from orchestrator.records.points import read_points
from orchestrator.records.spans import load_span
from tests.run_folders import EXPERIMENT, write_run

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


@pytest.mark.parametrize(
    ("lines", "begin", "end", "misses"),
    [
        (ORDERED, 1002.5, 1002.6, True),
        (ORDERED, 1002.5, 1003, False),
        (SET_BACK, 902.5, 902.6, True),
        (SET_BACK, 901, 903, False),
        (NO_TIME, 1002.5, 1002.6, True),
        ([], 0, 2000, False),
    ],
)
def test_a_load_between_two_samples_is_known_as_unsampled(
    lines: list[str], begin: float, end: float, misses: bool, tmp_path: Path
) -> None:
    path = tmp_path / "gpu.csv"
    path.write_text("".join([HEAD, *lines]))
    assert GpuSamples(path).misses(begin, end) is misses


@pytest.mark.parametrize(
    ("simulated", "samples", "noted"), [(False, True, True), (True, True, False), (False, False, False)]
)
def test_a_real_point_without_a_sample_says_so(
    simulated: bool, samples: bool, noted: bool, tmp_path: Path
) -> None:
    store = write_run(tmp_path, "20260101-000000-trial-0001", boots=1, arms=("baseline",), sweep=(4,))
    (path,) = store.folder.glob("arms/baseline/boot-1/*.meta.json")
    load = {"wall_start_utc": "1970-01-01T00:16:42.250Z", "client": {"wall_s": 0.5}}
    path.write_text(json.dumps({**json.loads(path.read_text()), "simulated": simulated, "load": load}))
    if samples:
        (path.parent / "gpu.csv").write_text("".join([HEAD, *ORDERED]))
    text = EXPERIMENT.format(model="/models/m", boots=1, more="", sweep=[4], load="closed")
    (point,) = read_points(store, load_experiment(text, name="e.yaml").experiment).points
    said = "gpu_unsampled: no GPU sample is of the 0.5 s of this load: what limited its clocks is unknown"
    assert (said in point.notes) is noted


THERMAL = HEAD.replace(",clocks", ",clocks.sm,clocks") + "".join(
    f"{1000 + t:.3f},{t:.3f},,,{index},{clock},{reasons}\n"
    for t in range(3)
    for index, clock, reasons in ((0, 345, "0x0000000000000020"), (1, 1980, "0x0000000000000000"))
)


@pytest.mark.parametrize(
    ("gpus", "throttle", "clock"),
    [("all", {"sw_thermal_slowdown"}, 345), ((1,), set(), 1980), ((0, 1), {"sw_thermal_slowdown"}, 345)],
)
def test_what_limits_another_gpu_of_the_node_is_no_limit_of_the_run(
    gpus: Gpus, throttle: set[str], clock: int, tmp_path: Path
) -> None:
    path = tmp_path / "gpu.csv"
    path.write_text(THERMAL)
    window = GpuSamples(path, gpus).window(1000, 1003)
    assert window is not None
    assert window.throttle == throttle
    series = {item.name: item for item in boot_trace("a", 1, (), of_gpus(THERMAL.splitlines(), gpus)).gpu}
    assert set(series["SM clock"].values) == {clock}


def test_samples_without_an_index_are_taken_as_they_are() -> None:
    lines = ["utc_s,clocks.sm", "1000,345"]
    assert list(of_gpus(lines, (1,))) == lines


@pytest.mark.parametrize(
    ("ahead", "begin_s"),
    [({}, 60.0), ({"node_clock_ahead_s": -7.5}, 52.5), ({"node_clock_ahead_s": None}, 60.0)],
)
def test_a_load_that_was_offered_from_elsewhere_is_found_by_the_clock_of_the_node(
    ahead: dict[str, Any], begin_s: float
) -> None:
    load = {"wall_start_utc": "1970-01-01T00:01:00Z", "client": {"wall_s": 3.0}, **ahead}
    assert load_span({"load": load}) == (begin_s, begin_s + 3.0)
