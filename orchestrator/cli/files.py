"""Experiment files from the command line: found, read, checked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from orchestrator.config import Checked, load_experiment
from orchestrator.errors import UsageError


def load(path: Path, overrides: Sequence[str] = ()) -> Checked:
    """Raises UsageError for an unreadable file, ExperimentError for a wrong one."""
    from orchestrator.patchset import available_patches

    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"no file {path}", help=_nearby(path)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} can't be read: {error}") from None
    carried = available_patches()
    names, flags = [patch.name for patch in carried], [flag for patch in carried for flag in patch.flags]
    return load_experiment(text, name=str(path), overrides=overrides, patches=names, flags=flags)


def write(path: Path, text: str) -> None:
    """Raises UsageError where the file cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror}") from None


def default_experiment() -> Path:
    """`$DYNSPEC_EXPERIMENT`, else experiments/default.yaml."""
    return Path(os.environ.get("DYNSPEC_EXPERIMENT") or "experiments/default.yaml")


def _nearby(path: Path) -> str:
    folders = [path.parent, Path("experiments")]
    found = sorted({str(file) for folder in folders if folder.is_dir() for file in folder.glob("*.yaml")})
    return f"there are: {', '.join(found[:6])}" if found else "dynspec init NODE writes one"
