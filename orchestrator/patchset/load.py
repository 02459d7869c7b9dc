"""The edge of the patch engine: patch folders on disk -> `Patch` values."""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.errors import PatchLoadError
from orchestrator.model.experiment import Arm
from orchestrator.patchset import unidiff
from orchestrator.patchset.manifest import Manifest, TargetEntry, read_manifest, specifier
from orchestrator.patchset.patch import Add, Listing, Patch, Target, VersionRule
from orchestrator.patchset.patcher import load_patcher
from orchestrator.plain_file import read_plain


def patches_folder() -> Path:
    """Where the carried patches are: the checkout's top-level folder, or the wheel's data."""
    package = Path(__file__).resolve().parents[1]
    packed = package / "_data" / "patches"
    return packed if packed.is_dir() else package.parent / "patches"


@dataclass(frozen=True)
class Carried:
    """The patches that load, and of the others why they do not: those are in nobody's way who does not use them."""

    patches: tuple[Patch, ...]
    broken: Mapping[str, PatchLoadError] = field(default_factory=dict)
    folder: str = ""  # where they were looked for

    @property
    def names(self) -> tuple[str, ...]:
        return (*(patch.name for patch in self.patches), *self.broken)

    def refuse_broken(self, arms: Iterable[Arm]) -> None:
        """Raises PatchLoadError for an arm that names a patch which does not load."""
        for arm in arms:
            for name in arm.patches:
                if (fault := self.broken.get(name)) is not None:
                    raise PatchLoadError(
                        f"arm {arm.name}: patch {name} does not load: {fault.message}",
                        details=fault.details,
                        help=fault.help,
                    )


def carried_patches(folder: Path | None = None) -> Carried:
    """Every patch folder, by name."""
    root = folder or patches_folder()
    patches, broken = [], {}
    for name in patch_names(root):
        try:
            patches.append(load_patch(root / name))
        except PatchLoadError as fault:
            broken[name] = fault
    return Carried(tuple(patches), broken, str(root))


def patch_names(folder: Path) -> list[str]:
    """The folders that are meant as patches, whether they load or not, and links that lead nowhere."""
    try:
        entries = sorted(os.listdir(folder))
    except OSError:
        return []
    return [name for name in entries if _is_meant(folder / name)]


def _is_meant(entry: Path) -> bool:
    if entry.name.startswith(".") or entry.name == "__pycache__":
        return False
    return os.path.isdir(entry) or not os.path.exists(entry)


def available_patches(folder: Path | None = None) -> tuple[Patch, ...]:
    """The carried patches that load, by name."""
    return carried_patches(folder).patches


def find_patch(name: str, folder: Path | None = None) -> Patch:
    """The carried patch `name`. Raises PatchLoadError with the nearest known name."""
    root = folder or patches_folder()
    known = patch_names(root)
    if name in known:
        return load_patch(root / name)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known) or f'none in {root}'}"
    raise PatchLoadError(f"there is no patch {name!r}: {hint}", help="dynspec patch list")


def load_patch(folder: Path) -> Patch:
    """Read one patch folder: manifest, patchers, diffs and added files. Raises PatchLoadError."""
    where = folder / "manifest.yaml"
    manifest = read_manifest(_read(where), str(where))
    if manifest.name != folder.name:
        raise PatchLoadError(f"{where}: name is {manifest.name!r}, its folder is {folder.name!r}")
    patchers = {
        entry.patcher: load_patcher(folder / entry.patcher, _read(folder / entry.patcher), manifest.name)
        for entry in manifest.targets
        if entry.patcher is not None
    }
    diffs = _load_diffs(folder, manifest)
    targets = (
        Target(
            path=entry.path,
            optional=entry.optional,
            patcher=patchers[entry.patcher] if entry.patcher is not None else None,
            diff=diffs.get(entry.path),
        )
        for entry in manifest.targets
    )
    return _patch(folder, manifest, tuple(targets))


def _patch(folder: Path, manifest: Manifest, targets: tuple[Target, ...]) -> Patch:
    return Patch(
        name=manifest.name,
        summary=manifest.summary,
        package=manifest.package,
        workers=tuple(manifest.workers),
        flags=tuple(manifest.flags),
        targets=targets,
        adds=tuple(_load_add(folder, entry.path, entry.source) for entry in manifest.adds),
        listings={
            version: Listing(entry.status, entry.files, entry.after)
            for version, entry in manifest.versions.items()
        },
        native=tuple(VersionRule(specifier(rule.versions), rule.instead) for rule in manifest.native),
        refused=tuple(VersionRule(specifier(rule.versions), rule.reason) for rule in manifest.refused),
        folder=str(folder),
    )


def _read(path: Path) -> str:
    """The text with its line ends as they are."""
    try:
        return read_plain(path).decode("utf-8")
    except OSError as error:
        raise PatchLoadError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise PatchLoadError(f"{path}: not UTF-8: {error}") from error


def _load_add(folder: Path, path: str, source: str) -> Add:
    text = _read(folder / source)
    return Add(path=path, text=text, sha256=hashlib.sha256(text.encode()).hexdigest())


def _load_diffs(folder: Path, manifest: Manifest) -> dict[str, unidiff.FileDiff]:
    """Target path -> its part of a diff file. Every file of a diff must belong to a target."""
    entries = [entry for entry in manifest.targets if entry.diff is not None]
    found: dict[str, unidiff.FileDiff] = {}
    for file in sorted({entry.diff for entry in entries if entry.diff is not None}):
        parts = list(unidiff.parse(_read(folder / file), str(folder / file)))
        for entry in entries:
            if entry.diff == file:
                found[entry.path] = _take(parts, entry, folder / file)
        if parts:
            left = ", ".join(part.path for part in parts)
            raise PatchLoadError(f"{folder / file}: changes files that are no targets: {left}")
    return found


def _take(parts: list[unidiff.FileDiff], entry: TargetEntry, where: Path) -> unidiff.FileDiff:
    hits = [part for part in parts if part.path == entry.path or part.path.endswith(f"/{entry.path}")]
    if len(hits) != 1:
        raise PatchLoadError(f"{where}: changes {entry.path} {len(hits)} times, expected once")
    parts.remove(hits[0])
    return unidiff.FileDiff(path=entry.path, hunks=hits[0].hunks)
