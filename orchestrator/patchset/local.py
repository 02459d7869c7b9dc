"""A package folder on this machine judged without a node: what `dynspec patch check --package-dir` does."""

from __future__ import annotations

import ast
import hashlib
import re
from pathlib import Path

from orchestrator.errors import UsageError
from orchestrator.patchset.build import decode_source, try_patch
from orchestrator.patchset.fit import Fit
from orchestrator.patchset.patch import Patch


def check_folder(patch: Patch, package_dir: Path) -> Fit:
    """Judge the tree in `package_dir` (the folder of the package itself), reading files only.

    Raises UsageError when that is no package folder, DoesNotFit for a file that is not UTF-8.
    """
    if not package_dir.is_dir():
        raise UsageError(f"{package_dir} is not a folder")
    if not any((package_dir / path).is_file() for path in patch.paths) and not _is_package(package_dir):
        inner = package_dir / patch.package
        help_text = (
            f"did you mean {inner}?" if inner.is_dir() else f"give the folder of the package {patch.package}"
        )
        raise UsageError(f"{package_dir} holds no Python package", help=help_text)
    files = {path: package_dir / path for path in patch.paths}
    data = {path: file.read_bytes() if file.is_file() else None for path, file in files.items()}
    hashes = {p: None if raw is None else hashlib.sha256(raw).hexdigest() for p, raw in data.items()}
    sources = {path: None if raw is None else decode_source(path, raw) for path, raw in data.items()}
    return try_patch(patch, folder_version(package_dir), hashes, sources)


def folder_version(package_dir: Path) -> str | None:
    """The version that the package's own files write down, else that of the metadata beside it, else None."""
    for name in ("version.py", "_version.py", "__init__.py"):
        file = package_dir / name
        if file.is_file() and (version := _written_version(file.read_text("utf-8", errors="replace"))):
            return version
    pattern = re.compile(rf"{re.escape(package_dir.name)}-(.+)\.dist-info\Z")
    found = {hit[1] for entry in package_dir.parent.glob("*.dist-info") if (hit := pattern.match(entry.name))}
    # Two sets of metadata are those of another install that was not cleaned up: neither is believed.
    return found.pop() if len(found) == 1 else None


def _is_package(folder: Path) -> bool:
    return (folder / "__init__.py").is_file()


def _written_version(text: str) -> str | None:
    """The string given to `__version__` or `version` at the top of a module."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            names = {target.id for target in node.targets if isinstance(target, ast.Name)}
            if names & {"version", "__version__"} and isinstance(node.value.value, str):
                return node.value.value
    return None
