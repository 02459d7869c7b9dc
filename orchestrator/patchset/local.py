"""A patch against a package folder on this machine: `dynspec patch check`."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from orchestrator.errors import UsageError
from orchestrator.patchset.build import decode_source
from orchestrator.patchset.fit import Fit, check_fit
from orchestrator.patchset.patch import Patch

_VERSION = re.compile(r"""^(?:__version__|version)\s*=\s*.*?['"]([0-9][^'"]*)['"]""", re.MULTILINE)


def check_folder(patch: Patch, folder: Path) -> Fit:
    """Raises UsageError when `folder` does not hold the package."""
    if not (folder / "__init__.py").is_file():
        raise UsageError(
            f"{folder} is not a {patch.package} package folder",
            help=f"give the folder that holds {patch.package}/__init__.py, e.g. .../site-packages/{patch.package}",
        )
    hashes: dict[str, str | None] = {}
    sources: dict[str, str | None] = {}
    for path in patch.paths:
        file = folder / path
        raw = file.read_bytes() if file.is_file() else None
        hashes[path] = None if raw is None else hashlib.sha256(raw).hexdigest()
        sources[path] = None if raw is None else decode_source(path, raw)
    return check_fit(patch, package_version(folder), hashes, sources)


def package_version(folder: Path) -> str | None:
    """From `_version.py` or `version.py`, else from the distribution's folder beside the package."""
    for name in ("_version.py", "version.py"):
        file = folder / name
        found = _VERSION.search(file.read_text(encoding="utf-8")) if file.is_file() else None
        if found:
            return found[1]
    for info in sorted(folder.parent.glob(f"{folder.name}-*.dist-info")):
        return info.name.removesuffix(".dist-info").removeprefix(f"{folder.name}-")
    return None
