"""Experiment files from the command line: found, read, checked."""

from __future__ import annotations

import codecs
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.config import Checked, load_experiment
from orchestrator.errors import UsageError
from orchestrator.plain_file import read_plain
from orchestrator.plain_text import os_words

if TYPE_CHECKING:
    from orchestrator.patchset import Carried

# What the shell opened for us, such as <(...), has its writer; another pipe would be waited for without end.
_OPENED, _STDIN = (Path("/dev/fd"), Path("/proc/self/fd")), Path("/dev/stdin")
_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def load(path: Path, overrides: Sequence[str] = (), carried: Carried | None = None) -> Checked:
    """The experiment, with the files that it names looked at. `carried`: the patches; None: those of dynspec.

    Raises UsageError for a file that is unreadable or lacking, ExperimentError for a wrong experiment, PatchLoadError
    for one that uses a broken patch.
    """
    from orchestrator.cli import named_files
    from orchestrator.patchset import carried_patches

    text = _text(path)
    carried = carried or carried_patches()
    flags = [flag for patch in carried.patches for flag in patch.flags]
    checked = load_experiment(
        text,
        name=str(path),
        overrides=overrides,
        patches=carried.names,
        flags=flags,
        patch_folder=carried.folder,
    )
    carried.refuse_broken(checked.experiment.arms)
    notes = named_files.look(checked.experiment, path.parent)
    return replace(checked, warnings=(*checked.warnings, *notes))


def _text(path: Path) -> str:
    if path.is_dir():
        raise UsageError(f"{path} is a folder, not an experiment file", help=_nearby(path, path))
    try:
        raw = path.read_bytes() if path.parent in _OPENED or path == _STDIN else read_plain(path)
    except FileNotFoundError:
        raise UsageError(f"no file {path}", help=_nearby(path, path.parent)) from None
    except OSError as error:
        raise UsageError(f"{path} can't be read: {os_words(error)}") from None
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        kind = "UTF-16 text" if raw.startswith(_MARKS) else f"not UTF-8: byte 0x{raw[error.start]:02x}"
        raise UsageError(f"{path}:{line}: {kind}", help="save the file as UTF-8") from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise UsageError(f"{path}:{line}: a NUL byte: no text file, or UTF-16", help="save the file as UTF-8")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def write(path: Path, text: str) -> None:
    """Raises UsageError where the file cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror}") from None


def default_experiment() -> Path:
    """`$DYNSPEC_EXPERIMENT`, else experiments/default.yaml."""
    return Path(os.environ.get("DYNSPEC_EXPERIMENT") or "experiments/default.yaml")


def _nearby(path: Path, folder: Path) -> str:
    folders = [item for item in (folder, Path("experiments")) if item.is_dir()]
    found = sorted({str(file) for item in folders for file in item.glob("*.yaml")} - {str(path)})
    return f"there are: {', '.join(found[:6])}" if found else "dynspec init NODE writes one"
