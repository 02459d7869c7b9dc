"""Runs in the serving interpreter, environment and folder: is a package in `root`, the first of PYTHONPATH, the one
that is loaded? It need not be there yet. Request on stdin, one marked line on stdout; nothing is imported."""

import importlib.machinery
import importlib.util
import json
import os
import sys
from typing import Any, List, Optional

MARK = "DYNSPEC-PROBE "
PathFinder = importlib.machinery.PathFinder
BUILT_IN = (importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter)


def name_of(finder: Any) -> str:
    kind = finder if isinstance(finder, type) else type(finder)
    return "{}.{}".format(kind.__module__, kind.__qualname__)


def place_of(spec: Any) -> str:
    return str(spec.origin or list(spec.submodule_search_locations or []))


def is_below(path: Optional[str], root: str) -> bool:
    return os.path.abspath(path or "/").startswith(root + os.sep)


def ask(finder: Any, name: str, path: Optional[List[str]]) -> Any:
    try:
        return finder.find_spec(name, path, None)
    except Exception:  # noqa: BLE001 - a hook that fails for this name does not answer for it
        return None


def before_root(package: str, root: str) -> Optional[str]:
    """What stands in the way on sys.path, or None when `root` comes first."""
    here = os.getcwd()
    entries = [os.path.abspath(entry or here) for entry in sys.path]
    if root not in entries:
        return "this interpreter does not look into PYTHONPATH"
    for entry in entries[: entries.index(root)]:
        spec = PathFinder.find_spec(package, [entry])
        if (
            spec is not None and spec.loader is not None
        ):  # without one it is part of a namespace: a package goes before it
            if entry == here:
                return "the folder that the server is started in has its own: {}".format(place_of(spec))
            return "{} comes before PYTHONPATH: {}".format(entry, place_of(spec))
    return None


def what_outranks(package: str, root: str) -> Optional[str]:
    for finder in sys.meta_path:
        if finder in BUILT_IN:
            continue
        if finder is PathFinder:
            return before_root(package, root)
        spec = ask(finder, package, None)
        if spec is not None and not is_below(spec.origin, root):
            text = "the import hook {} answers before any path: {}"
            return text.format(name_of(finder), place_of(spec))
    return "this interpreter has no PathFinder"


def what_answers_for(absent: List[str], location: str) -> Optional[str]:
    """A module that the patch set removes must not be found elsewhere: editable installs have hooks that do."""
    for name in absent:
        for finder in sys.meta_path:
            if finder in BUILT_IN or finder is PathFinder:
                continue
            spec = ask(finder, name, [location])
            if spec is not None and not is_below(spec.origin, location):
                return "the import hook {} still finds {}, which the patch set removes".format(
                    name_of(finder), name
                )
    return None


def what_is_loaded(package: str, root: str) -> Optional[str]:
    """Once the package lies there, the interpreter's own word."""
    spec = importlib.util.find_spec(package)
    if spec is None or not is_below(spec.origin, root):
        return "it finds {}".format("none" if spec is None else place_of(spec))
    return None


def main() -> None:
    request = json.loads(sys.stdin.read())
    package, root = request["package"], request["root"]
    location = os.path.join(root, package)
    problem = what_outranks(package, root) or what_answers_for(request["absent"], location)
    if problem is None and request["laid"]:
        problem = what_is_loaded(package, root)
    sys.stdout.write("\n" + MARK + json.dumps({"problem": problem}) + "\n")


main()
