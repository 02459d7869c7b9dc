"""Patches applied in order, text -> text, into the exact content of each touched file."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.errors import AnchorError, DoesNotFit
from orchestrator.model.facts import Tree
from orchestrator.model.plan import Edit, PatchSet
from orchestrator.patchset.fit import Fit, FitState, Hashes, Sources, check_fit, targets_in
from orchestrator.patchset.patch import Patch
from orchestrator.patchset.sourcecheck import check

ORIGINAL = PatchSet(name="original", patches=(), edits=(), modules=())


def needed_files(patches: Sequence[Patch]) -> tuple[str, ...]:
    """Package-relative paths whose bytes and hashes are needed, each once, in order of first mention."""
    return tuple(dict.fromkeys(path for patch in patches for path in patch.paths))


def decode_source(path: str, data: bytes) -> str:
    """The text of a file of the tree, line ends and byte order mark as they are. Raises DoesNotFit."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DoesNotFit(f"{path}: not UTF-8 (byte {error.start}), so it can't be patched exactly") from error


def build_patch_set(
    patches: Sequence[Patch], sources: Sources, facts: Tree, *, allow_unlisted: bool
) -> PatchSet:
    """The patch set of `patches`, applied in this order to the texts `sources` of the tree `facts`.

    `sources` maps package-relative path -> text as decoded by `decode_source` (None: absent) for all of
    `needed_files(patches)`. Raises DoesNotFit, naming patch, file and reason, unless every patch fits the
    original tree, every edit is exact, and every result compiles without new undefined names.
    """
    if not patches:
        return ORIGINAL
    hashes = _hashes(needed_files(patches), sources, facts)
    texts = dict(sources)
    for patch in patches:
        fit = check_fit(patch, facts.version, hashes, sources)
        _refuse_unfit(patch, fit, allow_unlisted)
        _apply(patch, fit, _Step(sources, hashes, facts.version), texts)
    edits = tuple(_edit(path, sources.get(path), texts[path], facts) for path in _changed(sources, texts))
    for edit in edits:
        _check_source(edit.path, sources.get(edit.path), edit.after)
    return PatchSet(
        name="+".join(patch.name for patch in patches),
        patches=tuple(patch.name for patch in patches),
        edits=edits,
        modules=tuple(_module(facts.package, edit.path) for edit in edits if edit.path.endswith(".py")),
    )


def try_patch(patch: Patch, version: str | None, hashes: Hashes, sources: Sources) -> Fit:
    """`check_fit`, and then whether what comes out is what a run would take: sound, and as listed."""
    fit = check_fit(patch, version, hashes, sources)
    if fit.state not in (FitState.FITS, FitState.FITS_UNLISTED):
        return fit
    texts = dict(sources)
    try:
        _apply(patch, fit, _Step(sources, hashes, version), texts)
        for path in _changed(sources, texts):
            _check_source(path, sources.get(path), texts[path])
    except DoesNotFit as error:
        return Fit(FitState.MISFIT, "; ".join((error.message, *error.details)))
    return fit


@dataclass(frozen=True)
class _Step:
    """What stays the same while one patch is applied."""

    sources: Sources
    hashes: Hashes
    version: str | None


def _hashes(paths: Sequence[str], sources: Sources, facts: Tree) -> dict[str, str | None]:
    """Hashes of the texts, after comparing them with the facts: a file may change between the two reads."""
    hashes: dict[str, str | None] = {}
    for path in paths:
        if path not in sources:
            raise DoesNotFit(f"{path}: not read from the node, so the patch set can't be built")
        text = sources[path]
        hashes[path] = None if text is None else _sha256(text)
        fact = facts.file(path)
        if fact is not None and fact.sha256 != hashes[path]:
            raise DoesNotFit(
                f"{path}: changed while it was read (sha256 {fact.sha256} then {hashes[path]})",
                help="find out who edits the tree, then run again",
            )
    return hashes


def _refuse_unfit(patch: Patch, fit: Fit, allow_unlisted: bool) -> None:
    if fit.state is FitState.FITS or (fit.state is FitState.FITS_UNLISTED and allow_unlisted):
        return
    helps = {
        FitState.FITS_UNLISTED: "`node.allow_unlisted: true` patches a tree whose anchors all fit",
        FitState.NATIVE: f"take {patch.name} out of the arm's patches",
        FitState.ALREADY_APPLIED: "`dynspec restore NODE` puts the originals back if dynspec changed them; "
        f"else reinstall {patch.package} of the same version",
        FitState.REFUSED: f"dynspec patch show {patch.name}",
        FitState.MISFIT: f"dynspec patch show {patch.name}",
    }
    raise DoesNotFit(
        f"patch {patch.name} does not fit ({fit.state}): {fit.reason}", help=helps.get(fit.state, "")
    )


def _apply(patch: Patch, fit: Fit, step: _Step, texts: dict[str, str | None]) -> None:
    """Edit `texts` in place of the files of one patch."""
    listing = patch.listings.get(step.version or "") if fit.state is FitState.FITS else None
    for target in targets_in(patch, step.hashes):
        before = texts[target.path]
        assert before is not None
        try:
            after = target.edit(before, unique=listing is None)
        except AnchorError as error:
            raise AnchorError(f"patch {patch.name}: {error.message}", details=error.details) from error
        expected = listing.after.get(target.path) if listing is not None else None
        if expected is not None and before == step.sources[target.path] and _sha256(after) != expected:
            raise DoesNotFit(
                f"patch {patch.name}: {target.path} comes out otherwise than the manifest's `after` hash says",
                help=f"write the hashes of {patch.name} anew, after reading what changed in its patcher",
            )
        texts[target.path] = after
    for add in patch.adds:
        if texts[add.path] is not None:
            raise DoesNotFit(f"patch {patch.name}: {add.path} is added by an earlier patch of the arm too")
        texts[add.path] = add.text


def _changed(sources: Sources, texts: Sources) -> list[str]:
    return [path for path, text in texts.items() if text != sources.get(path)]


def _edit(path: str, before: str | None, after: str | None, facts: Tree) -> Edit:
    fact = facts.file(path)
    return Edit(
        path=path,
        absolute=fact.absolute if fact is not None else f"{facts.path}/{path}",
        before_sha256=None if before is None else _sha256(before),
        after_sha256=None if after is None else _sha256(after),
        after=after,
    )


def _check_source(path: str, before: str | None, after: str | None) -> None:
    if not path.endswith(".py") or after is None:
        return
    problems = check(path, before, after)
    if problems:
        raise DoesNotFit(
            f"the patched {path} is not sound: {len(problems)} problem(s), nothing was written",
            details=tuple(str(problem) for problem in problems),
        )


def _module(package: str, path: str) -> str:
    parts = path.removesuffix(".py").split("/")
    return ".".join([package, *(parts[:-1] if parts[-1] == "__init__" else parts)])


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
