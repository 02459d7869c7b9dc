"""Overlay mode: the package as a copy in a folder of ours that goes first on the serving interpreter's path.

The copy is real, file by file, never a link. Most kernels refuse a hard link to somebody else's file
(fs.protected_hardlinks), which is the very tree that needs an overlay; it ends at the edge of the file system, and what
writes through it writes the installed file. Behind a symbolic link extension modules load from the installed path. A
copy of 2,500 files (34 MB) takes 0.2 s and one of 5,800 files (131 MB) about 1 s, once a run.

Only the journal's record has to survive a power cut: what lies in the folder by then is removed, never used.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Dict, List, NamedTuple, Optional

from . import args, bytecode, durable, files, places, tree_copy
from .files import Found
from .journal import Journal
from .tree_copy import Abort
from .wire import AgentError, Message, sha256_hex, unpack_text

FOLDER = "overlay"
_SPACE_MARGIN_BYTES = 16 << 20  # bytecode, and what else a server keeps beside its source


class Wanted(NamedTuple):
    """One file of a patch set by its path inside the package. None stands for "no such file"."""

    path: str
    before_sha256: Optional[str]
    data: Optional[bytes]


class Overlay:
    """A package laid under `root`, from `source`. `originals`: what the files that any set touched held at first."""

    def __init__(self, root: str, package: str, source: str) -> None:
        self.root = root
        self.package = package
        self.source = source
        self.originals: Dict[str, Optional[Found]] = {}
        self.made: List[str] = []  # folders that only a patch set has

    @property
    def path(self) -> str:
        return os.path.join(self.root, self.package)

    def file(self, inside: str) -> str:
        return os.path.join(self.path, inside)

    @property
    def touched(self) -> List[str]:
        return [self.file(inside) for inside in self.originals]


def root_in(workdir: str, run_id: str) -> str:
    """The folder that goes on the path. Never taken from a journal: it is removed with all that is in it."""
    return os.path.join(places.work_folder(workdir, run_id), FOLDER)


def parse(items: List[Message]) -> List[Wanted]:
    """The wire's list of files, checked against itself. Raises AgentError `bad_request`."""
    wanted = []
    for item in items:
        path = args.text(item, "path")
        if os.path.isabs(path) or ".." in path.split("/") or os.path.normpath(path) != path:
            raise args.bad("path", "a path inside the package", path)
        after_sha256 = args.optional_text(item, "after_sha256")
        data = None if item.get("z") is None else unpack_text(item["z"])
        if (None if data is None else sha256_hex(data)) != after_sha256:
            raise AgentError("bad_request", "the content sent for {} does not have its digest".format(path))
        wanted.append(Wanted(path, args.optional_text(item, "before_sha256"), data))
    if len({item.path for item in wanted}) != len(wanted):
        raise AgentError("bad_request", "two entries name the same file")
    return wanted


# -- laying it


def lay(journal: Journal, package: str, source: str, abort: Abort) -> Overlay:
    """A fresh copy of the package folder `source`. Raises AgentError with nothing left of it:

    `changed` when the source changed meanwhile, `mismatch` when it cannot be copied, `no_space`, `not_writable`.
    """
    overlay = Overlay(root_in(journal.workdir, journal.run_id), package, source)
    if not os.path.isfile(os.path.join(source, "__init__.py")):
        raise AgentError("mismatch", "{} has no __init__.py: it is no package of its own".format(source))
    before = tree_copy.measure(source)
    check_space(journal.workdir, before.size_bytes)
    journal.append("overlay", source=source, files=[])
    try:
        with durable.durable("overlay.build"):
            places.private_folder(overlay.root)
            for folder, name in _parts(overlay):
                tree_copy.copy(folder, os.path.join(overlay.root, name), abort)
        if tree_copy.measure(source).stamp != before.stamp:
            raise AgentError("changed", "{} changed while it was copied".format(source), path=source)
    except (AgentError, OSError) as error:
        remove(journal)
        raise _as_agent_error(overlay.root, error) from None
    return overlay


def _parts(overlay: Overlay) -> "list[tuple[str, str]]":
    """The package, and the libraries that a repaired wheel keeps beside it and finds by their relative place."""
    libraries = overlay.package + ".libs"
    beside = os.path.join(os.path.dirname(overlay.source), libraries)
    return [(overlay.source, overlay.package), *([(beside, libraries)] if os.path.isdir(beside) else [])]


def check_space(workdir: str, size_bytes: int) -> None:
    """Raises AgentError `no_space`."""
    folder = files.standing_folder(os.path.join(places.expand(workdir), FOLDER))
    needed, have = size_bytes + _SPACE_MARGIN_BYTES, files.free_bytes(folder)
    if have < needed:
        text = "{} MiB needed in {} for a copy of the package, {} MiB free"
        raise AgentError("no_space", text.format(-(-needed >> 20), folder, have >> 20), path=folder)


def _as_agent_error(root: str, error: Exception) -> AgentError:
    if isinstance(error, AgentError):
        return error
    assert isinstance(error, OSError)
    code = "no_space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "not_writable"
    return AgentError(code, "cannot lay the overlay {}: {}".format(root, error.strerror), path=root)


# -- a patch set in it


def bring(journal: Journal, overlay: Overlay, set_name: str, wanted: List[Wanted]) -> Message:
    """Brings the copy to exactly one set; returns the changed and the kept paths, inside the package.

    Raises AgentError `changed` when a file is not what the set was made for, with nothing written. After any other
    error the copy is no good and must be removed.
    """
    _check(overlay, wanted)
    looked = [_looked(overlay, item) for item in wanted if item.path not in overlay.originals]
    if looked:
        journal.append("overlay", source=overlay.source, files=looked)
    for item in wanted:
        overlay.originals.setdefault(item.path, files.look(overlay.file(item.path)))
    after: Dict[str, Optional[bytes]] = {
        inside: None if found is None else found.data for inside, found in overlay.originals.items()
    }
    after.update((item.path, item.data) for item in wanted)
    changed = [inside for inside, data in after.items() if _write(overlay, inside, data)]
    bytecode.drop(overlay.touched, journal.story.bytecode_prefixes)
    _remove_made(overlay)
    journal.append("applied", set=set_name)
    return {"changed": changed, "kept": [inside for inside in after if inside not in changed]}


def _check(overlay: Overlay, wanted: List[Wanted]) -> None:
    strange = []
    for item in wanted:
        known = item.path in overlay.originals
        found = overlay.originals[item.path] if known else files.look(overlay.file(item.path))
        if files.digest(found) != item.before_sha256:
            strange.append({"path": item.path, "expected": item.before_sha256, "found": files.digest(found)})
    if strange:
        raise files.changed_error(strange)


def _looked(overlay: Overlay, item: Wanted) -> Message:
    return {"path": os.path.realpath(os.path.join(overlay.source, item.path)), "sha256": item.before_sha256}


def _write(overlay: Overlay, inside: str, data: Optional[bytes]) -> bool:
    """Whether the file had to change; read back where it had."""
    path = overlay.file(inside)
    digest = None if data is None else sha256_hex(data)
    found = files.look(path)
    if files.digest(found) == digest:
        return False
    try:
        if found is not None:
            durable.remove("overlay.write", path)
        if data is not None:
            _make_folders(overlay, path)
            durable.write_new("overlay.write", path, data)
    except OSError as error:
        raise _as_agent_error(overlay.root, error) from None
    if files.digest(files.look(path)) != digest:
        raise AgentError("failed", "{} does not hold what was written".format(path), path=path)
    return True


def _make_folders(overlay: Overlay, path: str) -> None:
    for folder in files.missing_folders(path):
        durable.make_folder("overlay.write", folder, 0o700)
        overlay.made.append(folder)


def _remove_made(overlay: Overlay) -> None:
    """Folders of another set would be found as packages without a file."""
    for folder in reversed(list(overlay.made)):
        cache = os.path.join(folder, "__pycache__")
        if not set(os.listdir(folder)) - {"__pycache__"}:
            if os.path.isdir(cache):
                durable.remove_tree("overlay.write", cache)
            durable.remove_folder("overlay.write", folder)
            overlay.made.remove(folder)


# -- the way back


def remove(journal: Journal) -> Optional[str]:
    """Removes the overlay and the bytecode kept for it elsewhere. None, or why something is left."""
    if not journal.story.overlaid:
        return None
    root = root_in(journal.workdir, journal.run_id)
    prefixes = {*bytecode.own_prefixes(), *journal.story.bytecode_prefixes}
    caches = [os.path.join(prefix, root.lstrip("/")) for prefix in sorted(prefixes)]
    try:
        for folder in (root, *caches):
            if os.path.islink(folder):
                return "{} is a link and not ours".format(folder)
            if os.path.lexists(folder):
                durable.remove_tree("overlay.drop", folder)
    except OSError as error:
        return "cannot remove {}: {}".format(error.filename or root, error.strerror)
    for prefix, cache in zip(sorted(prefixes), caches):
        _remove_empty(os.path.dirname(cache), prefix)
    return None


def _remove_empty(folder: str, top: str) -> None:
    with contextlib.suppress(OSError):
        while folder.startswith(top + os.sep):
            durable.remove_folder("overlay.drop", folder)
            folder = os.path.dirname(folder)
