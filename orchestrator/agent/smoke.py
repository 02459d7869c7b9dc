"""The smoke check: the patched files in an overlay that no live server sees, compiled and imported there.

The overlay is a folder of links into the real package, with real folders only along the way to the touched files. No
`__pycache__` is linked and nothing writes bytecode, so nothing is ever written through a link.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any, Dict, List, NamedTuple, Optional, Set

from . import args, facts, interpreter, places
from .interpreter import Answer
from .wire import AgentError, Message, unpack_text

_QUIET = {"PYTHONDONTWRITEBYTECODE": "1"}
_NOISE_LINES = 10


class Touched(NamedTuple):
    """`path` is package-relative; `data` None: the file is absent in this patch set."""

    path: str
    data: Optional[bytes]


def check(given: Message) -> Message:
    place = facts.place_of(given)
    package = args.path_name(given, "package")
    package_path = places.expand(args.text(given, "package_path"))
    touched = [_touched(item) for item in args.objects(given, "files")]
    modules = args.words(given, "modules")
    argvs = _argvs(given)
    timeout_s = args.seconds(given, "timeout_s", 120.0)
    if not os.path.isdir(package_path):
        raise AgentError("not_found", "no package folder {}".format(package_path), path=package_path)
    work = places.work_folder(args.text(given, "workdir"), args.path_name(given, "run_id"))
    held = os.path.isdir(work)  # a guarded run's folder stays
    places.private_folder(work)
    parent = places.private_folder(os.path.join(work, "smoke"))
    folder = tempfile.mkdtemp(dir=parent)
    try:
        root = build(package_path, os.path.join(folder, package), touched)
        request = {
            "package": package,
            "root": root,
            "files": [_described(item, package_path) for item in touched],
            "modules": modules,
            "argvs": argvs,
        }
        answer = interpreter.run(place, "probe_smoke", request, timeout_s, _QUIET)
    finally:
        shutil.rmtree(folder)  # links in it are removed, never followed
        _remove_empty(*([parent] if held else [parent, work]))
    return summarise(answer, modules, list(argvs), timeout_s)


def _argvs(given: Message) -> Dict[str, List[str]]:
    """Words of the server's command line by arm, or nothing: an older controller does not ask."""
    found = given.get("argvs", {})
    if not isinstance(found, dict):
        raise args.bad("argvs", "an object of word lists", found)
    return {arm: args.words(found, arm) for arm in found}


def _remove_empty(*folders: str) -> None:
    """A smoke check without a run leaves nothing behind."""
    for folder in folders:
        try:
            os.rmdir(folder)
        except OSError:
            return


def _touched(item: Message) -> Touched:
    path = args.text(item, "path")
    if os.path.isabs(path) or ".." in path.split("/") or os.path.normpath(path) != path:
        raise args.bad("path", "a path inside the package", path)
    return Touched(path, None if item.get("z") is None else unpack_text(item["z"]))


def _described(item: Touched, package_path: str) -> Dict[str, Any]:
    try:
        with open(os.path.join(package_path, item.path), "rb") as stream:
            original: Optional[str] = stream.read().decode("utf-8", "replace")
    except OSError:
        original = None
    return {"path": item.path, "patched": item.data is not None, "original": original}


def build(package_path: str, root: str, touched: List[Touched]) -> str:
    """Makes the overlay at `root` and returns it. A folder that a patch brings along holds nothing but its files."""
    contents = {item.path: item.data for item in touched}
    real_folders: Set[str] = {""}
    for path in contents:
        folder = os.path.dirname(path)
        while folder:
            real_folders.add(folder)
            folder = os.path.dirname(folder)
    for folder in sorted(real_folders):
        source = os.path.join(package_path, folder)
        os.mkdir(os.path.join(root, folder), 0o700)
        if os.path.isdir(source):
            _link_siblings(source, os.path.join(root, folder), folder, real_folders, set(contents))
    for path, data in contents.items():
        if data is not None:
            with open(os.path.join(root, path), "xb") as stream:
                stream.write(data)
    return root


def _link_siblings(source: str, target: str, folder: str, real_folders: Set[str], touched: Set[str]) -> None:
    for name in os.listdir(source):
        inside = os.path.join(folder, name)
        if name != "__pycache__" and inside not in real_folders and inside not in touched:
            os.symlink(os.path.join(source, name), os.path.join(target, name))


def summarise(answer: Answer, modules: List[str], arms: List[str], timeout_s: float) -> Message:
    """What the probe told, and for modules and arms it did not get to, why."""
    compiled = [
        {"path": line["compile"], "ok": line["ok"], "error": line["error"]}
        for line in answer.lines
        if "compile" in line
    ]
    told = {line["module"]: line for line in answer.lines if "module" in line}
    begun = {line["importing"] for line in answer.lines if "importing" in line}
    if answer.timed_out:
        why = "no end within {:g} s".format(timeout_s)
    else:
        why = "the interpreter ended with status {}: {}".format(
            answer.returncode, "; ".join(answer.noise[-_NOISE_LINES:]) or "nothing said"
        )
    imports = []
    for module in modules:
        error = why if module in begun else "not tried: " + why
        blank = {
            "module": module,
            "state": "failed",
            "file": None,
            "sha256": None,
            "missing": None,
            "error": error,
        }
        imports.append(told.get(module, blank))
    warnings = [line["warning"] for line in answer.lines if "warning" in line]
    return {
        "compile": compiled,
        "imports": imports,
        "arguments": _arguments(answer, arms, why),
        "warnings": warnings,
        "output": answer.noise[-_NOISE_LINES:],
    }


def _arguments(answer: Answer, arms: List[str], why: str) -> List[Message]:
    told = {line["arm"]: line for line in answer.lines if "arm" in line}
    blank = {"ok": False, "how": "parser", "error": why, "missing": None, "near": {}}
    return [told.get(arm, dict(blank, arm=arm)) for arm in arms]
