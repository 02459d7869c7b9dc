"""Patchers: the Python of a patch folder, which its author writes. Whatever it does wrong is told as its mistake."""

from __future__ import annotations

import sys
import traceback
import types
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from orchestrator.errors import DynspecError, PatchLoadError
from orchestrator.patchset.patch import Patcher

# A patcher that ends Python must not end dynspec without a word.
_MISTAKES = (Exception, SystemExit, GeneratorExit)


def load_patcher(path: Path, text: str, name: str) -> Patcher:
    """The function `patch` of the patcher file `path` of patch `name`; its mistakes become PatchLoadError.

    Compiled from its text each time: Python's bytecode cache takes an edit of the same size within the same
    second for no edit.
    """
    module = types.ModuleType(f"dynspec_patch_{name}_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        with redirect_stdout(sys.stderr):
            exec(compile(text, str(path), "exec", dont_inherit=True), module.__dict__)
    except _MISTAKES as error:
        raise PatchLoadError(f"{path}{_line(error, path)}: does not load: {_words(error)}") from error
    patch = getattr(module, "patch", None)
    if not callable(patch):
        raise PatchLoadError(f"{path}: defines no function patch(path, text)")
    return _guarded(path, patch)


def _guarded(file: Path, patch: Callable[[str, str], Any]) -> Patcher:
    def call(path: str, text: str) -> str:
        try:
            with redirect_stdout(sys.stderr):  # ours may be JSON
                after = patch(path, text)
        except DynspecError:  # what a patcher is to raise
            raise
        except _MISTAKES as error:
            where = f"{file}{_line(error, file)}"
            raise PatchLoadError(f"{where}: patch({path!r}, text) raised {_words(error)}") from error
        return _text(after, f"{file}: patch({path!r}, text) returned")

    return call


def _text(after: Any, returned: str) -> str:
    if not isinstance(after, str):
        what = "None" if after is None else f"a value of type {type(after).__name__}"
        raise PatchLoadError(f"{returned} {what}, the new text is wanted")
    try:
        after.encode("utf-8")
    except UnicodeEncodeError as error:
        line = after.count("\n", 0, error.start) + 1
        raise PatchLoadError(f"{returned} text that is no UTF-8: line {line}") from error
    return after


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def _line(error: BaseException, file: Path) -> str:
    """Where in the patcher itself it happened."""
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)
    ]
    return f":{lines[-1]}" if lines else ""
