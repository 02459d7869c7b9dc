"""Folders and points that a run tells to have written and that are gone, each with what cannot be said for want of it.

What was written is known from the events; where those are lost, from the plan of a run that came to its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from orchestrator.model.result import ENDED
from orchestrator.records.events import events_of
from orchestrator.records.planned import plan_left
from orchestrator.report.text import plural
from orchestrator.store import META, OUTCOME, RECORDS, RunStore

Written = dict[Path, dict[str, None]]  # folder of a boot, below the run's -> stems of its points


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
