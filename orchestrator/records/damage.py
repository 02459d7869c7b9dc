"""Files of a run folder that are missing, empty or cannot be read, each with what cannot be said for want of it.

A report is made of what is left; nothing that is lost may pass for "none" or "as asked".
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from orchestrator.plain_file import read_plain
from orchestrator.records.events import events_of
from orchestrator.records.missing import NO_LOG, NO_SAMPLES, missing
from orchestrator.records.planned import is_whole
from orchestrator.records.served import SHARED_KEY, home_of
from orchestrator.records.unfinished import outcome_lost
from orchestrator.store import (
    EVENTS,
    FACTS,
    GATE,
    GPU_SAMPLES,
    META,
    OUTCOME,
    PACKED_LOG,
    PLAN,
    RECORDS,
    SERVER_INFO,
    SERVER_LOG,
    RunStore,
    json_object,
    safe_name,
    stored_point,
)

_SECTIONS = {
    FACTS: (
        "facts",
        "the node, its GPUs, driver and SGLang tree are unknown, and it is not known whether the engine was simulated "
        "unless another file says so",
    ),
    PLAN: (
        "plan",
        "it is unknown which boots, patches and workers were planned, and what the plan warned of; arms are taken as "
        "written, and no worker can be found to be the wrong one",
    ),
    OUTCOME: ("outcome", "it is unknown how the run ended and whether the node was given back as it was"),
}
_PARTIAL = ".partial"
_NO_EVENTS = "the order of boots is unknown: no drift check, no boot over time, no failed boot is told"
_NO_INFO = "its boot's server arguments, admission limit and worker are unknown, so no difference in them can be found"


def damage(store: RunStore, *, ended: bool = False) -> tuple[str, ...]:
    """One sentence a file, in the order of the folder's layout. `ended`: the outcome is known and not yet written.

    What a run that is under way, or was killed, has not written yet is no damage.
    """
    return tuple(
        f"{name} {fault}: {loss}" for name, fault, loss in _all(store) if not (ended and name == OUTCOME)
    )


def _all(store: RunStore) -> Iterator[tuple[str, str, str]]:
    cut_short = not store.finished and not outcome_lost(store)
    for name, (key, loss) in _SECTIONS.items():
        fault = _of_section(store.folder / name, key)
        if fault and not (cut_short and name == OUTCOME):
            yield name, fault, loss
    fault = _of_lines(store.folder / EVENTS)
    if fault:
        yield EVENTS, fault, _NO_EVENTS
    elif store.finished and _torn(store.folder / EVENTS):
        yield (
            EVENTS,
            "is cut short",
            "what the run told after that is unknown, so a file that is lost may not be named",
        )
    if (store.folder / GATE).is_file() and (fault := _of_json(store.folder / GATE)):
        yield GATE, fault, "it is unknown what the gate said"
    yield from missing(store)
    storing = _storing(store) if cut_short else set()
    for boot in filter(Path.is_dir, sorted(store.folder.glob("arms/*/boot-*"))):
        yield from ((_shown(store, path), fault, loss) for path, fault, loss in _of_boot(boot, storing))


def _shown(store: RunStore, path: Path) -> str:
    return path.relative_to(store.folder).as_posix()


def _storing(store: RunStore) -> set[Path]:
    """Points, without the endings of their names, that the run was storing when it was last heard of: their records
    come first, and none says that it is done."""
    done = {
        (event.get("arm"), event.get("boot"), event.get("index"))
        for event in events_of(store)
        if event["event"] == "point_done"
    }
    running = [
        event
        for event in events_of(store)
        if event["event"] == "point"
        and all(event.get(key) is not None for key in ("arm", "boot", "index", "concurrency"))
    ]
    return {
        store.folder
        / store.boot_path(event["arm"], event["boot"], f"point-{event['index']:02d}-c{event['concurrency']}")
        for event in running
        if (event["arm"], event["boot"], event["index"]) not in done
    }


def _of_boot(boot: Path, storing: Collection[Path]) -> Iterator[tuple[Path, str, str]]:
    metas, records = _stems(boot, META), _stems(boot, RECORDS)
    for stem in sorted(metas | records):
        if stem not in metas and boot / stem in storing:
            continue
        yield from _of_point(boot / f"{stem}{META}", boot / f"{stem}{RECORDS}")
    info = boot / SERVER_INFO
    if (fault := _of_json(info)) and (_had_a_server(boot, metas) or info.is_file()):
        yield info, fault, _NO_INFO
    for name, loss in ((SERVER_LOG, NO_LOG), (PACKED_LOG, NO_LOG), (GPU_SAMPLES, NO_SAMPLES)):
        path = boot / name
        fault = _of_packed(path) if path.suffix == ".gz" else _empty(path)
        if path.is_file() and fault:
            yield path, fault, loss


def _had_a_server(boot: Path, metas: Iterable[str]) -> bool:
    """Points that were measured in the server of another boot leave the file there."""
    read = [stored_point(boot / f"{stem}{META}") for stem in metas]
    homes = [home_of(point.meta, point.arm, point.boot) for point in read if point is not None]
    own = [point for point in read if point is None or SHARED_KEY not in point.meta]
    return bool(own) or any(boot.match(f"arms/{safe_name(home.arm)}/boot-{home.boot}") for home in homes)


def _stems(boot: Path, suffix: str) -> set[str]:
    """Without what a server left of a point that it did not survive, which is kept and was never to count."""
    found = {path.name.removesuffix(suffix) for path in boot.glob(f"point-*{suffix}")}
    return {stem for stem in found if not stem.endswith(_PARTIAL)}


def _of_point(meta: Path, records: Path) -> Iterator[tuple[Path, str, str]]:
    left_out = "this measurement is left out"
    if fault := _of_json(meta) or ("is damaged" if stored_point(meta) is None else ""):
        yield meta, fault, left_out
    if not records.is_file():
        yield records, "is missing", left_out
    elif not records.stat().st_size:
        yield records, "is empty", "this measurement has no request, and does not count"


def _of_json(path: Path) -> str:
    """What is wrong with a JSON object; empty if nothing is."""
    try:
        text = read_plain(path).decode("utf-8")
        value = json.loads(text) if text.strip() else None
    except FileNotFoundError:
        return "is missing"
    except (OSError, ValueError, RecursionError):
        return "is damaged"
    if value is None:
        return "is empty"
    return "" if isinstance(value, dict) else "is damaged"


def _of_section(path: Path, key: str) -> str:
    if fault := _of_json(path):
        return fault
    found = json_object(path).get(key)
    if not isinstance(found, dict) or (key == "plan" and not is_whole(found)):
        return "is damaged"
    return "" if found else "is empty"


def _of_lines(path: Path) -> str:
    """The last line of a killed run may be torn; others may not."""
    if fault := _empty(path):
        return fault
    good = bad = 0
    try:
        with path.open("rb") as lines:
            for line in lines:
                try:
                    good += isinstance(json.loads(line), dict)
                except (ValueError, RecursionError):
                    bad += line.endswith(b"\n")
    except OSError:
        return "cannot be read"
    if bad:
        return f"is damaged ({bad} unreadable lines)"
    return "" if good else "is damaged"


def _torn(path: Path) -> bool:
    """Whether the last line has no end, which that of a run with an outcome has."""
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _empty(path: Path) -> str:
    try:
        return "" if path.stat().st_size else "is empty"
    except FileNotFoundError:
        return "is missing"


def _of_packed(path: Path) -> str:
    if not path.is_file() or not path.stat().st_size:
        return "is empty"
    try:
        with gzip.open(path) as packed:
            while packed.read(1 << 20):
                pass
    except (OSError, EOFError, zlib.error):
        return "is damaged"
    return ""
