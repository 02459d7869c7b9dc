"""Pieces of a real SGLang release, run without the rest of it.

SGLang can't be imported without a GPU stack. Its classes and functions that the hooks meet are taken out of the
source by syntax tree and run with the few names they need, so that a test meets the code of that very release.
"""

from __future__ import annotations
import __future__

import ast
import functools
import importlib
import importlib.util
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.demo.wheel import wheel_tree

FOLDER = Path(__file__).resolve().parents[2] / "patches/dynamic_disable"
RUNTIME = FOLDER / "runtime/dynspec"
PACKAGE = "sglang.srt.speculative.dynspec"


@functools.cache
def _patcher() -> Any:
    spec = importlib.util.spec_from_file_location("dynamic_disable_patcher", FOLDER / "patcher.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def source(version: str, path: str) -> str:
    """The text of a package-relative file, hooked where the patch hooks it."""
    text = (wheel_tree(version) / path).read_text()
    return _patcher().patch(path, text) if path in _patcher().HOOKS else text


def definitions(version: str, path: str, names: tuple[str, ...], given: Mapping[str, Any]) -> dict[str, Any]:
    """The top-level classes and functions `names` of a file, run with the globals `given`."""
    wanted = [n for n in ast.parse(source(version, path)).body if getattr(n, "name", None) in names]
    missing = set(names) - {n.name for n in wanted}
    assert not missing, f"{path} of {version} has no {missing}"
    return _run(wanted, path, given)


def method(version: str, path: str, klass: str, name: str, given: Mapping[str, Any]) -> Any:
    """One method of a class, as a plain function."""
    tree = ast.parse(source(version, path))
    body = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == klass).body
    found = next(n for n in body if isinstance(n, ast.FunctionDef) and n.name == name)
    return _run([found], path, given)[name]


def has(version: str, path: str, text: str) -> bool:
    return text in source(version, path)


def _run(nodes: list[ast.stmt], path: str, given: Mapping[str, Any]) -> dict[str, Any]:
    names = {"__name__": f"lifted.{Path(path).stem}", **given}
    module = ast.Module(nodes, [])
    # Annotations stay text: the names in them are not needed.
    code = compile(module, path, "exec", flags=__future__.annotations.compiler_flag, dont_inherit=True)
    # dataclasses look annotations such as ClassVar up in the module of the class.
    sys.modules[names["__name__"]] = types.ModuleType(names["__name__"])
    vars(sys.modules[names["__name__"]]).update(names)
    exec(code, names)
    return names


def load_runtime(changes: Mapping[str, tuple[str, str]] = types.MappingProxyType({})) -> types.ModuleType:
    """The runtime package, loaded anew under its real name.

    `changes`: file -> (text that stands in it once, text to put there), for mutants; the disk is not touched.
    """
    for name in [n for n in sys.modules if n == PACKAGE or n.startswith(f"{PACKAGE}.")]:
        del sys.modules[name]
    sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, _Runtime)]
    sys.meta_path.insert(0, _Runtime(changes))
    parent = ""
    for part in PACKAGE.split(".")[:-1]:
        parent = f"{parent}.{part}".lstrip(".")
        if parent not in sys.modules:
            sys.modules[parent] = types.ModuleType(parent)
            sys.modules[parent].__path__ = []
    return importlib.import_module(PACKAGE)


class _Runtime:
    """Finds and loads the modules of the runtime package from their files, changed where a mutant says so."""

    def __init__(self, changes: Mapping[str, tuple[str, str]]) -> None:
        self.changes = changes

    def find_spec(self, name, path=None, target=None):
        if name != PACKAGE and not name.startswith(f"{PACKAGE}."):
            return None
        return importlib.util.spec_from_loader(name, self, is_package=name == PACKAGE)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        stem = "__init__" if module.__name__ == PACKAGE else module.__name__.rpartition(".")[2]
        file = RUNTIME / f"{stem}.py"
        text = file.read_text()
        if file.name in self.changes:
            old, new = self.changes[file.name]
            assert text.count(old) == 1, f"{file.name}: {old!r} stands {text.count(old)} times"
            text = text.replace(old, new)
        exec(compile(text, str(file), "exec"), module.__dict__)
