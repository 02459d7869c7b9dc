"""Does a patch fit a tree? Judged by version, by hashes of the files, and where those are unknown by anchors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.errors import AlreadyPatched, AnchorError
from orchestrator.patchset.patch import Patch, Target
from orchestrator.patchset.sourcecheck import edit_syntax_error
from orchestrator.path_lists import few

Hashes = Mapping[str, str | None]  # package-relative path -> sha256 of the bytes; None: absent
Sources = Mapping[str, str | None]  # package-relative path -> text; None: absent


class FitState(StrEnum):
    """What a patch is to a tree. Only the first two can be applied, the second only when the node allows it."""

    FITS = "fits"
    FITS_UNLISTED = "fits_unlisted"
    NATIVE = "native"
    REFUSED = "refused"
    ALREADY_APPLIED = "already_applied"
    MISFIT = "misfit"

    @property
    def words(self) -> str:
        """For people; the contract's spelling."""
        return "fits, unlisted" if self is FitState.FITS_UNLISTED else self.value.replace("_", " ")


@dataclass(frozen=True)
class Fit:
    """The verdict and one sentence with its reason."""

    state: FitState
    reason: str


def check_fit(patch: Patch, version: str | None, hashes: Hashes, sources: Sources) -> Fit:
    """Judge `patch` on a tree.

    `hashes` must have an entry for each of `patch.paths`; a path that is not there counts as absent.
    `sources` is read only where hashes are not listed, so it may be empty for a listed tree.
    """
    return (
        _by_version(patch, version)
        or _already_applied(patch, hashes, sources)
        or _missing(patch, hashes)
        or _by_listing(patch, version, hashes)
        or _by_anchors(patch, version, hashes, sources)
    )


def targets_in(patch: Patch, hashes: Hashes) -> tuple[Target, ...]:
    """The targets that this tree has; optional ones that it lacks are left out."""
    return tuple(target for target in patch.targets if hashes.get(target.path) is not None)


def _by_version(patch: Patch, version: str | None) -> Fit | None:
    for rule in patch.refused:
        if rule.holds(version):
            return Fit(FitState.REFUSED, f"{patch.package} {version}: {rule.text}")
    for rule in patch.native:
        if rule.holds(version):
            return Fit(FitState.NATIVE, f"{patch.package} {version} needs no patch: {rule.text}")
    return None


def _already_applied(patch: Patch, hashes: Hashes, sources: Sources) -> Fit | None:
    after = {(path, sha) for listing in patch.listings.values() for path, sha in listing.after.items()}
    patched = [
        target.path
        for target in targets_in(patch, hashes)
        if (target.path, hashes[target.path]) in after or patch.marker in _comments(sources.get(target.path))
    ]
    patched += [add.path for add in patch.adds if hashes.get(add.path) == add.sha256]
    if not patched:
        return None
    return Fit(
        FitState.ALREADY_APPLIED,
        f"the tree already carries {patch.name} in {few(patched)}; it is never applied twice",
    )


def _comments(text: str | None) -> str:
    """What stands behind the first "#" of each line: cheap, and enough to find a marker."""
    if text is None:
        return ""
    return "\n".join(line.partition("#")[2] for line in text.split("\n") if "#" in line)


def _missing(patch: Patch, hashes: Hashes) -> Fit | None:
    lacking = [t.path for t in patch.targets if not t.optional and hashes.get(t.path) is None]
    if lacking:
        return Fit(FitState.MISFIT, f"the tree lacks {few(lacking)}, which {patch.name} edits")
    if not targets_in(patch, hashes) and not patch.adds:
        return Fit(FitState.MISFIT, f"the tree has none of the files that {patch.name} edits")
    taken = [add.path for add in patch.adds if hashes.get(add.path) is not None]
    if taken:
        return Fit(FitState.MISFIT, f"the tree has another {few(taken)}, which {patch.name} adds")
    return None


def _by_listing(patch: Patch, version: str | None, hashes: Hashes) -> Fit | None:
    listing = patch.listings.get(version or "")
    if listing is None:
        return None
    present = {target.path: hashes[target.path] for target in targets_in(patch, hashes)}
    if present == dict(listing.files):
        return Fit(FitState.FITS, f"the files are those of {patch.package} {version}")
    return None


def _by_anchors(patch: Patch, version: str | None, hashes: Hashes, sources: Sources) -> Fit:
    for target in targets_in(patch, hashes):
        text = sources.get(target.path)
        if text is None:
            return Fit(
                FitState.MISFIT, f"{target.path}: its text was not read, so anchors can't be looked for"
            )
        try:
            after = target.edit(text, unique=True)
        except AlreadyPatched as error:
            return Fit(FitState.ALREADY_APPLIED, error.message)
        except AnchorError as error:
            return Fit(FitState.MISFIT, error.message)
        if problem := edit_syntax_error(target.path, text, after):
            return Fit(FitState.MISFIT, f"{target.path}: the result does not compile: {problem.place}")
    return Fit(FitState.FITS_UNLISTED, f"{_unlisted(patch, version, hashes)}; every anchor is there once")


def _unlisted(patch: Patch, version: str | None, hashes: Hashes) -> str:
    listing = patch.listings.get(version or "")
    if listing is None:
        known = ", ".join(patch.listings) or "none"
        return f"{patch.package} {version or '(version unknown)'} is not listed (listed: {known})"
    odd = [t.path for t in targets_in(patch, hashes) if hashes[t.path] != listing.files.get(t.path)]
    return f"{few(odd)}: not the file of {patch.package} {version}"
