"""What of an earlier part of a run can be kept: whole points. The rest is named with its reason and measured again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.plan import Done
from orchestrator.records.served import home_of
from orchestrator.store import (
    DIGEST,
    META,
    RECORDS,
    SERVER_INFO,
    RunStore,
    StoredPoint,
    json_object,
    stored_point,
)


@dataclass(frozen=True)
class Dropped:
    """What is left of a point that does not count. `files` are set aside, so that no later reading meets them."""

    what: str
    why: str
    files: tuple[Path, ...]

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


@dataclass(frozen=True)
class Kept:
    points: tuple[StoredPoint, ...] = ()
    dropped: tuple[Dropped, ...] = ()

    @property
    def done(self) -> Done:
        return Done(points=frozenset((point.arm, point.boot, point.index) for point in self.points))

    @property
    def boots(self) -> frozenset[tuple[str, int]]:
        """Those that served the kept points."""
        homes = (home_of(point.meta, point.arm, point.boot) for point in self.points)
        return frozenset((home.arm, home.boot) for home in homes)

    def lines(self) -> Iterator[str]:
        """For people: what is kept, boot by boot, then what is not and why."""
        boots: dict[tuple[str, int], list[int]] = {}
        for point in self.points:
            boots.setdefault((point.arm, point.boot), []).append(point.concurrency)
        told = [
            f"{arm} boot {boot} (c={', '.join(map(str, points))})" for (arm, boot), points in boots.items()
        ]
        yield f"points kept: {len(self.points)}{': ' if told else ''}{'; '.join(told)}"
        for dropped in self.dropped:
            yield f"measured again: {dropped}"

    def set_aside(self) -> None:
        """Renames what does not count to `*.damaged`; a name that is taken is replaced."""
        for dropped in self.dropped:
            for path in dropped.files:
                if path.is_file():
                    path.replace(path.with_name(f"{path.name}.damaged"))


def look(store: RunStore) -> Kept:
    """Reads every point of a run folder, however much of it is damaged or missing."""
    kept: list[StoredPoint] = []
    dropped: list[Dropped] = []
    for stem in _stems(store):
        found = _point(store, stem)
        if isinstance(found, Dropped):
            dropped.append(found)
        else:
            kept.append(found)
    kept.sort(key=lambda point: (point.arm, point.boot, point.index))
    return Kept(tuple(kept), (*dropped, *_useless_infos(store)))


def _stems(store: RunStore) -> list[Path]:
    """`arms/<arm>/boot-<n>/point-<nn>-c<k>` of everything that was stored of a point, however little."""
    found = {
        path.with_name(path.name.removesuffix(suffix))
        for suffix in (META, RECORDS)
        for path in store.folder.glob(f"arms/*/boot-*/point-*{suffix}")
    }
    return sorted(found)


def _point(store: RunStore, stem: Path) -> StoredPoint | Dropped:
    meta_path, records = stem.with_name(stem.name + META), stem.with_name(stem.name + RECORDS)
    what = stem.relative_to(store.folder / "arms").as_posix()

    def drop(why: str, *more: Path) -> Dropped:
        return Dropped(what, why, (meta_path, records, *more))

    if not meta_path.is_file():
        return drop("it was being stored when the run ended")
    if not records.is_file():
        return drop(f"{records.name} is missing")
    point = stored_point(meta_path)
    if point is None:
        return drop(f"{meta_path.name} cannot be read")
    own = store.folder / store.boot_path(point.arm, point.boot, point.stem)
    if own != stem:
        return drop(f"it says that it is {own.relative_to(store.folder / 'arms').as_posix()}")
    if point.damaged or (DIGEST not in point.meta and _cut_short(records)):
        return drop(f"{records.name} is not what was stored")
    home = home_of(point.meta, point.arm, point.boot)
    info = store.folder / store.boot_path(home.arm, home.boot, SERVER_INFO)
    if info.is_file() and not json_object(info):
        return drop(f"{SERVER_INFO} of its boot cannot be read", info)
    return point


def _useless_infos(store: RunStore) -> Iterator[Dropped]:
    """Of boots that have no point: a reader would stumble over them all the same."""
    for path in sorted(store.folder.glob(f"arms/*/boot-*/{SERVER_INFO}")):
        if not json_object(path) and not list(path.parent.glob(f"point-*{META}")):
            what = path.relative_to(store.folder / "arms").as_posix()
            yield Dropped(what, "it cannot be read", (path,))


def _cut_short(records: Path) -> bool:
    """Of versions that stored no digest: every line must be a whole record."""
    try:
        return not all(isinstance(json.loads(line), dict) for line in records.read_bytes().splitlines())
    except ValueError:
        return True
