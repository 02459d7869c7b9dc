"""What a run tells to have written and is gone: folders, points and logs, each with what cannot be said without it.

What was written is known from the events; where those are lost, from the plan of a run that came to its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from orchestrator.model.result import ENDED
from orchestrator.records.events import events_of
from orchestrator.records.planned import plan_left
from orchestrator.report.text import plural
from orchestrator.store import GPU_SAMPLES, META, OUTCOME, PACKED_LOG, RECORDS, SERVER_LOG, RunStore

Written = dict[Path, dict[str, None]]  # folder of a boot, below the run's -> stems of its points

NO_LOG = "nothing of this boot over time is known, nor errors or requests sent back for lack of KV memory"
NO_SAMPLES = "clocks, throttling and other processes on the GPUs of this boot are unknown"
_COLLECTED = {SERVER_LOG: NO_LOG, GPU_SAMPLES: NO_SAMPLES}


def missing(store: RunStore) -> Iterator[tuple[str, str, str]]:
    """(name, fault, loss). A folder that is gone stands for all that was in it."""
    told: set[Path] = set()
    written = _written(store)
    for boot, stems in written.items():
        gone = next((path for path in (boot.parents[1], boot.parent, boot) if _gone(store, path)), None)
        if gone is None:
            for stem in stems:
                if not any(store.folder.joinpath(boot).glob(f"{stem}.*")):  # one file alone is told elsewhere
                    yield (boot / f"{stem}{META}").as_posix(), "is missing", "this measurement is left out"
        elif gone not in told:
            told.add(gone)
            lost = sum(len(own) for folder, own in written.items() if folder.is_relative_to(gone))
            fault = "is no folder" if store.folder.joinpath(gone).exists() else "is missing"
            yield gone.as_posix(), fault, _loss(lost)
    yield from (
        (name, "is no folder", _loss(0))
        for path in no_folders(store)
        if Path(name := path.relative_to(store.folder).as_posix()) not in told
    )
    yield from _collected_and_gone(store)


def _collected_and_gone(store: RunStore) -> Iterator[tuple[str, str, str]]:
    """Logs and samples that came over from the node. Some boots have none: what was never collected is not missed."""
    for name, size in sorted(_collected(store).items()):
        path = store.folder / name
        if not path.parent.is_dir() or path.name not in _COLLECTED:
            continue  # the folder is told
        if path.is_file():
            if 0 < path.stat().st_size < size:  # an empty one is told elsewhere
                yield name, "is cut short", "what came after that is unknown"
        elif path.name != SERVER_LOG or not path.with_name(PACKED_LOG).is_file():
            yield name, "is missing", _COLLECTED[path.name]


def _collected(store: RunStore) -> dict[str, int]:
    """File -> bytes that came over, at the least: starts of one boot are joined. Not of boots started again since."""
    found: dict[str, int] = {}
    for event in events_of(store):
        if event["event"] == "started":
            for name in _COLLECTED:
                found.pop(store.boot_path(event["arm"], event["boot"], name), None)
        elif event["event"] == "collected" and isinstance(event.get("file"), str):
            size = event.get("bytes")
            found[event["file"]] = size if type(size) is int else 0
    return found


def no_folders(store: RunStore) -> list[Path]:
    """What stands where the folder of an arm or a boot belongs, and is none."""
    arms = store.folder / "arms"
    boots = (path for path in arms.glob("*/boot-*") if path.name.removeprefix("boot-").isdigit())
    return [path for path in sorted((arms, *boots)) if path.exists() and not path.is_dir()]


def measured_and_gone(store: RunStore) -> int:
    """Measurements that were written and have no file left."""
    return sum(
        not (store.folder / boot / f"{stem}{RECORDS}").is_file()
        for boot, stems in _written(store).items()
        for stem in stems
    )


def _gone(store: RunStore, folder: Path) -> bool:
    return not (store.folder / folder).is_dir()


def _loss(measurements: int) -> str:
    logs = "the server logs and samples of its boots are unknown"
    if not measurements:
        return logs
    verb = "is" if measurements == 1 else "are"
    return f"{plural(measurements, 'measurement')} {verb} left out, and {logs}"


def _written(store: RunStore) -> Written:
    found: Written = {}
    seen = False
    for event in events_of(store):
        seen = True
        if event["event"] == "point_done" and {"arm", "boot", "index", "concurrency"} <= event.keys():
            boot = Path(store.boot_path(event["arm"], event["boot"], "x")).parent
            stem = f"point-{event['index']:02d}-c{event['concurrency']}"
            found.setdefault(boot, {})[stem] = None
    return found if seen else _planned(store)


def _planned(store: RunStore) -> Written:
    if store.section_left(OUTCOME, "outcome").get("state") not in ENDED:
        return {}
    boots = plan_left(store).get("boots") or ()
    return {Path(store.boot_path(item["arm"], item["boot"], "x")).parent: {} for item in boots}
