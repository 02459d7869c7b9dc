"""The command: spec in, records and a summary out."""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import resource
import signal
import sys
import time
from array import array
from typing import IO, Any, Iterable, Iterator, Optional, Sequence

from . import SCHEMA
from .bodies import digest
from .exchange import LOAD, WARMUP
from .measure import Measurement, say
from .meter import spread
from .rawstore import RawStore
from .reading import Reading, record_line
from .spec import Spec, SpecError, parse_spec

_SPARE_FILES = 32


def main(argv: Sequence[str]) -> int:
    """0: the load was offered; 2: bad arguments or a bad spec, said in one line."""
    try:
        if len(argv) != 2:
            raise SpecError("usage: loadgen SPEC.json RECORDS.jsonl")
        spec = _read_spec(argv[0])
        _raise_file_limit(spec.most_in_flight)
        records = open(argv[1], "w", encoding="ascii")  # noqa: SIM115
    except (SpecError, OSError) as error:
        print(f"loadgen: {error}", file=sys.stderr)
        return 2
    # Nothing here makes garbage in cycles to speak of, and a collection would stop the loop, and later slow the
    # parsing, for as long as it takes to look at everything kept so far.
    gc.disable()
    with records:
        say({"summary": _run(spec, records, argv[1])})
    return 0


def _read_spec(path: str) -> Spec:
    with open(path, encoding="utf-8") as file:
        text = file.read()
    try:
        return parse_spec(text)
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None


def _raise_file_limit(connections: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _SPARE_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise SpecError(
            f"concurrency: {connections} connections need more open files than the limit of {hard}"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _run(spec: Spec, records: "IO[str]", path: str) -> "dict[str, Any]":
    measurement = Measurement(spec, RawStore(os.path.dirname(os.path.abspath(path))))
    asyncio.run(measurement.run())
    # From here on nothing waits for the server: a signal has nothing to cut short.
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, signal.SIG_IGN)
    tally = _Tally()
    began = time.perf_counter()
    with open(path + ".chunks" if spec.record_chunks else os.devnull, "w", encoding="ascii") as chunks:
        for reading in _readings(measurement):
            records.write(record_line(reading.record()) + "\n")
            if spec.record_chunks:
                chunks.write(_chunk_line(reading))
            tally.add(reading)
    return _summary(measurement, tally, time.perf_counter() - began)


def _readings(measurement: Measurement) -> "Iterator[Reading]":
    yield from measurement.readings
    measurement.readings.clear()
    store = measurement.store
    for exchange in sorted(store.exchanges, key=lambda exchange: exchange.index):
        yield Reading(exchange, store.raw_of(exchange), measurement.spec.endpoint)


def _chunk_line(reading: Reading) -> str:
    times = ",".join(map(str, reading.output_ns))
    return f'{{"i":{reading.exchange.index},"phase":"{reading.exchange.phase}","ns":[{times}]}}\n'


class _Tally:
    """Counts over all records, and the gaps between output chunks of the ok ones."""

    def __init__(self) -> None:
        self.phases = {name: {"attempted": 0, "ok": 0, "failed": 0} for name in (WARMUP, LOAD)}
        self.tokens: "dict[str, Optional[int]]" = {"prompt": None, "cached": None, "output": None}
        self.errors: "dict[str, int]" = {}
        self.gaps_ns = array("q")

    def add(self, reading: Reading) -> None:
        phase = self.phases[reading.exchange.phase]
        phase["attempted"] += 1
        phase["ok" if reading.ok else "failed"] += 1
        if reading.error is not None:
            self.errors[reading.error] = self.errors.get(reading.error, 0) + 1
        elif reading.exchange.phase == LOAD:
            reader = reading.reader
            self._count("prompt", reader.prompt_tokens)
            self._count("cached", reader.cached_tokens)
            self._count("output", reader.output_tokens)
            times = reading.output_ns
            self.gaps_ns.extend(later - earlier for earlier, later in zip(times, times[1:]))  # noqa: RUF007

    def _count(self, name: str, tokens: Optional[int]) -> None:
        if tokens is not None:
            self.tokens[name] = (self.tokens[name] or 0) + tokens


def _summary(measurement: Measurement, tally: _Tally, parse_s: float) -> "dict[str, Any]":
    spec = measurement.spec
    assert measurement.meter is not None
    return {
        "schema": SCHEMA,
        "interrupted": measurement.interrupted,
        "stopped": measurement.stopped,
        "load": {key: value for key, value in vars(spec.load).items() if key in _shown(spec.load.kind)},
        "endpoint": spec.endpoint,
        "concurrency": spec.concurrency,
        "wall_start_utc": measurement.wall_start_utc,
        "phases": tally.phases,
        "tokens": tally.tokens,
        "errors": dict(_most(tally.errors.items(), 10)),
        "unsent": measurement.unsent,
        "peak_in_flight": measurement.peak_in_flight,
        "connections_opened": measurement.connections_opened,
        "bodies_sha256": digest(spec.requests),
        "warmup_sha256": digest(spec.warmup),
        "chunk_gap_ns": spread(tally.gaps_ns),
        "client": {
            **measurement.meter.report(),
            "parse_s": parse_s,
            "process_cpu_s": time.process_time(),
            "spilled_bytes": measurement.store.spilled_bytes,
            "python": platform.python_version(),
        },
    }


def _shown(kind: str) -> "tuple[str, ...]":
    own = {"open": ("arrival", "rate_per_s", "seed"), "straddle": ("low", "high", "period_s", "duration_s")}
    return ("kind", *own.get(kind, ()))


def _most(counts: "Iterable[tuple[str, int]]", limit: int) -> "list[tuple[str, int]]":
    return sorted(counts, key=lambda pair: -pair[1])[:limit]
