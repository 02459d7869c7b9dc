"""What a server's log and the GPU samples say over time. Pure: lines in, values out.

SGLang (0.5.6 to 0.5.23) logs one `Decode batch` line in `decode_log_interval` steps, with whole seconds. The
dynamic-disable patch and the native adaptive mode log each switch. A line sums up the steps since the line before it,
so one that follows a switch is of both modes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from orchestrator.analysis.validity import Finding, GpuWindow
from orchestrator.model.experiment import Gpus
from orchestrator.model.result import BootTrace, Series

_WORTH = re.compile(r"Decode batch|dynspec: speculation|Switch adaptive|Retract requests")
_STAMP = re.compile(r"^\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,](\d+))?((?: [A-Z]{2,4}\d+)*)\]", re.ASCII)
_RUNNING = re.compile(r"Decode batch.*?#running-req: (\d{1,9})\b")
_ACCEPT = re.compile(r"accept len: (\d{1,9}(?:\.\d+)?)\b")
_RATE = re.compile(r"gen throughput \(token/s\): (\d{1,9}(?:\.\d+)?)\b")
_PATCH_SWITCH = re.compile(r"dynspec: speculation (on|off) batch=(\d{1,9})\b")
_NATIVE_SWITCH = re.compile(r"Switch adaptive runtime state: steps (\d{1,9}) -> (\d{1,9})\b")
# SGLang 0.5.8 to 0.5.23, scheduler.py. "Testing retraction." in its place is a drill, not a full cache.
_RETRACTED = re.compile(r"KV cache pool is full\. Retract requests\. #retracted_reqs: (\d{1,9})\b")


@dataclass(frozen=True)
class Sample:
    """`switches`: how many were logged before it."""

    t_s: float  # since the first line of the log
    running: int
    accept_length: float | None
    output_tps: float | None
    switches: int = 0


@dataclass(frozen=True)
class Switch:
    t_s: float
    speculating: bool
    batch: int | None


@dataclass(frozen=True)
class Trace:
    """`rank`: of the samples; of several data-parallel ranks the first that decodes."""

    rank: str
    samples: tuple[Sample, ...]
    switches: tuple[Switch, ...]
    start: datetime | None = None  # of the first stamped line, on the node's wall clock
    retracted: int = 0  # requests sent back to the queue for lack of KV memory, over all data-parallel ranks


def read_log(lines: Iterable[str]) -> Trace:
    """The trace of one boot's server log."""
    start: datetime | None = None
    rank: str | None = None
    samples: list[Sample] = []
    switches: list[Switch] = []
    retracted: dict[str, int] = {}
    t_s = 0.0
    for line in lines:
        if start is not None and not _WORTH.search(line):
            continue
        stamp = _STAMP.match(line)
        if not stamp:
            continue
        now, own = _time(stamp), stamp[3].strip()
        if now is None:
            continue
        start = start or now
        t_s = max(t_s, (now - start).total_seconds())  # a clock that is set back stands still here
        if (switch := _switch(line, t_s)) is not None:
            switches.append(switch)
        elif (running := _RUNNING.search(line)) and rank in (None, own):
            rank = own
            accept, rate = _number(_ACCEPT, line), _number(_RATE, line)
            samples.append(Sample(t_s, int(running[1]), accept, rate, len(switches)))
        elif full := _RETRACTED.search(line):
            retracted[own] = retracted.get(own, 0) + int(full[1])
    return Trace(rank or "", tuple(samples), tuple(switches), start, _over_replicas(retracted))


def _over_replicas(by_rank: Mapping[str, int]) -> int:
    """Tensor-parallel ranks tell of the same requests; data-parallel ranks each have their own."""
    most: dict[str, int] = {}
    for rank, count in by_rank.items():
        replica = next((word for word in rank.split() if word.startswith("DP")), "")
        most[replica] = max(most.get(replica, 0), count)
    return sum(most.values())


def _time(stamp: re.Match[str]) -> datetime | None:
    try:
        moment = datetime.fromisoformat(stamp[1])
    except ValueError:
        return None  # digits of the right shape that are no date
    return moment.replace(microsecond=int(stamp[2].ljust(6, "0")[:6])) if stamp[2] else moment


def _switch(line: str, t_s: float) -> Switch | None:
    if match := _PATCH_SWITCH.search(line):
        return Switch(t_s, match[1] == "on", int(match[2]))
    if match := _NATIVE_SWITCH.search(line):
        before, after = int(match[1]), int(match[2])
        return Switch(t_s, after > 0, None) if (before == 0) != (after == 0) else None
    return None


def _number(pattern: re.Pattern[str], line: str) -> float | None:
    match = pattern.search(line)
    return float(match[1]) if match else None


def boot_trace(arm: str, boot: int, log: Iterable[str], gpu: Iterable[str] = ()) -> BootTrace:
    """One boot for the report, from the lines of its server.log and gpu.csv."""
    trace = read_log(log)
    times = tuple(sample.t_s for sample in trace.samples)
    running = Series("running requests", "", times, tuple(float(sample.running) for sample in trace.samples))
    lengths = [(s.t_s, s.accept_length) for s in trace.samples if s.accept_length]
    accept = Series(
        "accept length", "tokens/step", tuple(t for t, _ in lengths), tuple(v for _, v in lengths)
    )
    switches = tuple((switch.t_s, switch.speculating) for switch in trace.switches)
    rows = list(gpu)
    late_s = _lag_s(trace.start, rows)
    samples = tuple(
        Series(found.name, found.unit, tuple(t - late_s for t in found.t_s), found.values)
        for found in read_gpu_csv(rows)
    )
    return BootTrace(arm, boot, running if times else None, accept if lengths else None, switches, samples)


ZONE_S = 900  # time zones differ by multiples of a quarter of an hour


def _lag_s(log_start: datetime | None, gpu: Sequence[str]) -> float:
    """How long after the first GPU sample's clock the log starts; 0 where one of them does not tell.

    The log has the node's wall clock without a zone and the samples have UTC: whole zones are taken out.
    """
    first = next(_rows(gpu), None)
    utc_s = _float(first.get("utc_s")) if first else None
    elapsed_s = _float(first.get("elapsed_s")) if first else None
    if log_start is None or utc_s is None or elapsed_s is None:
        return 0.0
    apart_s = log_start.replace(tzinfo=UTC).timestamp() - (utc_s - elapsed_s)
    return apart_s - round(apart_s / ZONE_S) * ZONE_S


def of_gpus(lines: Iterable[str], gpus: Gpus) -> Iterator[str]:
    """The header and the lines of the GPUs that the servers had: what another one does says nothing of them."""
    rows = iter(lines)
    head = next(rows, "")
    yield head
    names = head.strip().split(",")
    if gpus == "all" or "index" not in names:
        yield from rows
        return
    column, wanted = names.index("index"), set(map(str, gpus))
    for line in rows:
        cells = line.strip().split(",")
        if len(cells) > column and cells[column] in wanted:
            yield line


GPU_COLUMNS = {
    "clocks.sm": ("SM clock", "MHz"),
    "memory.used": ("memory", "MiB"),
    "power.draw": ("power", "W"),
    "temperature.gpu": ("temperature", "°C"),
    "utilization.gpu": ("utilization", "%"),
}


def read_gpu_csv(lines: Iterable[str]) -> tuple[Series, ...]:
    """The sampler's CSV: one series a quantity, over all GPUs the least clock and the most of everything else.

    A value that is no number (`[N/A]`, `[Not Supported]`) is a gap. A torn last line is left out.
    """
    rows = list(_rows(lines))
    found = []
    for column, (name, unit) in GPU_COLUMNS.items():
        by_time: dict[float, list[float]] = {}
        for row in rows:
            t_s, value = _float(row.get("elapsed_s")), _float(row.get(column))
            if t_s is not None and value is not None:
                by_time.setdefault(t_s, []).append(value)
        fold = min if column == "clocks.sm" else max
        if by_time:
            times = sorted(by_time)
            found.append(Series(name, unit, tuple(times), tuple(fold(by_time[t]) for t in times)))
    return tuple(found)


# Bits of nvidia-smi's clocks_event_reasons.active (clocks_throttle_reasons.active before driver 535). Idle is no limit.
EVENT_BITS = {
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
_EVENT_COLUMNS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")


def gpu_window(lines: Iterable[str], begin_utc_s: float, end_utc_s: float) -> GpuWindow | None:
    """What limited the clocks between two moments, which errors the driver reported, and who else computed there.

    None where the samples tell nothing of that time.
    """
    seen: set[str] = set()
    xids: set[int] = set()
    foreign: set[int] = set()
    told = False
    for row in _rows(lines):
        at = _float(row.get("utc_s"))
        if at is None or not begin_utc_s <= at <= end_utc_s:
            continue
        bits = _mask(row)
        told = told or bits is not None or "xids" in row
        seen |= {name for bit, name in EVENT_BITS.items() if (bits or 0) & bit}
        xids |= _numbers(row.get("xids"))
        foreign |= _numbers(row.get("foreign_pids"))
    return GpuWindow(frozenset(seen), tuple(sorted(xids)), tuple(sorted(foreign))) if told else None


def no_sample(load_s: float) -> Finding:
    """For a load of `load_s` seconds that fell between two samples."""
    text = f"no GPU sample is of the {load_s:.1f} s of this load: what limited its clocks is unknown"
    return Finding("gpu_unsampled", text, fatal=False)


def _mask(row: Mapping[str, str]) -> int | None:
    """None for a tool that does not say: [N/A], [Not Supported]."""
    text = next((row[name] for name in _EVENT_COLUMNS if row.get(name)), None)
    try:
        return int(text, 16) if text else None
    except ValueError:
        return None


def _numbers(cell: str | None) -> set[int]:
    """Numbers with spaces between them."""
    return {int(word) for word in (cell or "").split() if re.fullmatch("[0-9]{1,10}", word)}


def _rows(lines: Iterable[str]) -> Iterator[dict[str, str]]:
    """By column name, the lines that have all columns. The sampler quotes nothing, so this is plain splitting."""
    names: list[str] | None = None
    for line in lines:
        cells = line.strip().split(",")
        if names is None:
            names = cells
        elif len(cells) == len(names):
            yield dict(zip(names, cells, strict=True))


def _float(text: str | None) -> float | None:
    try:
        value = float(text) if text else None
    except ValueError:
        return None
    return value if value is not None and abs(value) < 1e15 else None  # not for inf and nan either


def thin(series: Series, most: int = 240) -> Series:
    """At most `most` points for a drawing: of each bucket its lowest and highest, in their order."""
    n = len(series.t_s)
    if n <= most:
        return series
    size = -(-2 * n // most)
    keep: list[int] = []
    for begin in range(0, n, size):
        bucket = range(begin, min(n, begin + size))
        ends = {min(bucket, key=series.values.__getitem__), max(bucket, key=series.values.__getitem__)}
        keep += sorted(ends)
    return Series(
        series.name, series.unit, tuple(series.t_s[i] for i in keep), tuple(series.values[i] for i in keep)
    )
