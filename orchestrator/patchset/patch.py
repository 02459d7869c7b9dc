"""A carried patch as a value: which files it edits or adds, which trees it knows, and its text -> text edit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from orchestrator.errors import AnchorError
from orchestrator.patchset import unidiff

Patcher = Callable[[str, str], str]  # (package-relative path, text) -> new text; raises AnchorError


@dataclass(frozen=True)
class Target:
    """One file that a patch edits, by a Python patcher or by a unified diff (exactly one of the two)."""

    path: str  # package-relative, with "/"
    optional: bool = False  # a tree without this file is fine; the patch then leaves it out
    patcher: Patcher | None = None
    diff: unidiff.FileDiff | None = None

    def edit(self, text: str, *, unique: bool) -> str:
        """The edited text. `unique` asks diffs for blocks that stand once. Raises AnchorError."""
        if self.patcher is not None:
            after = self.patcher(self.path, text)
        else:
            assert self.diff is not None
            after = unidiff.apply(self.diff, text, unique=unique)
        if after == text:
            raise AnchorError(f"{self.path}: the patch changes nothing there")
        return after


@dataclass(frozen=True)
class Add:
    """A file that a patch brings along; the tree must not have one of that name."""

    path: str  # package-relative
    text: str = field(repr=False)
    sha256: str = ""


@dataclass(frozen=True)
class Listing:
    """A release whose files are known. Hashes are sha256 of bytes, by package-relative path."""

    status: str
    files: Mapping[str, str]  # originals
    after: Mapping[str, str]  # the same files with this patch alone; empty when the manifest has none


@dataclass(frozen=True)
class VersionRule:
    """A range of versions (PEP 440) and what holds there; `text` is shown to the user."""

    versions: SpecifierSet
    text: str

    def holds(self, version: str | None) -> bool:
        """False for a version that is unknown or that PEP 440 cannot read: rules only speak of known ones."""
        if version is None:
            return False
        try:
            return self.versions.contains(Version(version), prereleases=True)
        except InvalidVersion:
            return False


@dataclass(frozen=True)
class Patch:
    """A patch folder after strict reading."""

    name: str
    summary: str
    package: str
    workers: tuple[str, ...]  # EAGLE worker paths it touches: "v1", "v2"
    flags: tuple[str, ...]  # server flags it adds, without dashes in front
    targets: tuple[Target, ...]
    adds: tuple[Add, ...]
    listings: Mapping[str, Listing]  # by version
    native: tuple[VersionRule, ...] = ()
    refused: tuple[VersionRule, ...] = ()
    folder: str = ""

    @property
    def marker(self) -> str:
        """The comment text that each inserted block carries, so that a patched file can be told by reading."""
        return f"dynspec:{self.name}"

    @property
    def paths(self) -> tuple[str, ...]:
        """Package-relative paths that the patch edits or adds."""
        return tuple(target.path for target in self.targets) + tuple(add.path for add in self.adds)
