"""A server's log and the samples beside it: whatever a server prints, a report of the run can be made."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.analysis.failure import failure_card
from orchestrator.analysis.trace import boot_trace, gpu_window, read_gpu_csv, read_log
from orchestrator.analysis.worker_words import read_worker
from orchestrator.runner.readiness import load_progress
from orchestrator.runner.sampling import newest
from tests.fuzz.budget import fuzzed
from tests.fuzz.strategies import ODD_TEXTS, damaged, texts

LOG = """\
[2026-01-02 03:04:05 TP0] Load weight begin. avail mem=78.50 GB
Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01,  1.2s/it]\rLoading 100%
[2026-01-02 03:04:06] dynspec: speculation off batch=6
[2026-01-02 03:04:07 TP0] Decode batch, #running-req: 6, accept len: 2.50, gen throughput (token/s): 99.10
[2026-01-02 03:04:08 TP1] Scheduler hit an exception: Traceback (most recent call last):
  File "x.py", line 3, in <module>
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB
[2026-01-02 03:04:09] Switch adaptive runtime state: steps 3 -> 0
"""
CSV = """\
utc_s,elapsed_s,index,uuid,utilization.gpu,memory.used,power.draw,clocks.sm,temperature.gpu,clocks_event_reasons.active
1000.000,0.000,0,GPU-1,99,70000,650.1,1900,61,0x0000000000000004
1001.000,1.000,0,GPU-1,[N/A],[N/A],[N/A],[N/A],[N/A],Active
"""
STAMPS = [
    "[2026-99-99 99:99:99]",
    "[0000-00-00 00:00:00]",
    "[2026-01-02 03:04:05.99999999999]",
    "[\u0662\u0660\u0662\u0666-01-02 03:04:05]",
]
PIECES = [
    *ODD_TEXTS,
    *STAMPS,
    "\r",
    "\u0663",
    "9" * 400,
    "#running-req: " + "9" * 5000,
    "accept len: 1" + "0" * 400,
    "nan",
    "inf",
    "1e999",
    '"',
]


@fuzzed()
@given(
    damaged([LOG, LOG + LOG], PIECES) | texts(),
    st.sampled_from([None, 0, 1, 137]),
    st.sampled_from([None, 9, 11, 300]),
)
def test_any_log_is_read(log: str, exit_code: int | None, signal: int | None) -> None:
    lines = log.split("\n")
    trace = read_log(lines)
    assert [sample.t_s for sample in trace.samples] == sorted(sample.t_s for sample in trace.samples)
    read_worker(lines)
    load_progress(tuple(lines))
    card = failure_card(lines, arm="a", boot=1, concurrency=1, exit_code=exit_code, signal=signal)
    assert card is None or (card.title and all(len(line) < 2000 for line in card.excerpt))


@fuzzed()
@given(damaged([CSV, CSV * 2], PIECES) | texts(), st.sampled_from([LOG, "", *STAMPS]))
def test_any_samples_are_read(table: str, log: str) -> None:
    lines = table.split("\n")
    for series in read_gpu_csv(lines):
        assert len(series.t_s) == len(series.values)
        assert list(series.t_s) == sorted(series.t_s)
        assert all(value == value and abs(value) != float("inf") for value in (*series.t_s, *series.values))
    gpu_window(lines, 0.0, 2000.0)
    newest(lines[0], lines[1:])
    boot_trace("a", 1, log.split("\n"), lines)
