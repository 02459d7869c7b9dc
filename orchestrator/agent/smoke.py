"""The smoke check: the patched files in an overlay that no live server sees, compiled and imported there.

The overlay is a folder of links into the real package, with real folders only along the way to the touched files;
beside these, the bytecode of untouched files is linked file by file. Nothing writes bytecode, and Python would
put a new file in a link's place, so nothing is ever written through one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set

from . import args, facts, interpreter, places
from .interpreter import Answer
from .wire import AgentError, Message, unpack_text

_QUIET = {"PYTHONDONTWRITEBYTECODE": "1"}
_NOISE_LINES = 10
_BYTECODE = "__pycache__"


class Touched(NamedTuple):
    """`path` is package-relative; `data` None: the file is absent in this patch set."""

    path: str
    data: Optional[bytes]


def check(given: Message) -> Message:
    """Raises AgentError `not_found` for a missing interpreter or package; what does not work is in the reply."""
    place = facts.place_of(given)
    package = args.path_name(given, "package")
    package_path = places.expand(args.text(given, "package_path"))
    touched = [_touched(item) for item in args.objects(given, "files")]
    modules, argvs = args.words(given, "modules"), _argvs(given)
    timeout_s = args.seconds(given, "timeout_s", 120.0)
    work = places.work_folder(args.text(given, "workdir"), args.path_name(given, "run_id"))
    if not os.path.isdir(package_path):
        raise AgentError("not_found", "no package folder {}".format(package_path), path=package_path)
    with _work_folder(work) as folder:
        request = {
            "package": package,
            "root": _built(package_path, os.path.join(folder, package), touched),
            "files": [_described(item, package_path) for item in touched],
            "modules": modules,
            "argvs": argvs,
        }
        answer = interpreter.run(place, "probe_smoke", request, timeout_s, _QUIET)
    patched = [item.path for item in touched if item.data is not None and item.path.endswith(".py")]
    return summarise(answer, Asked(patched, modules, list(argvs)), timeout_s)


@contextlib.contextmanager
def _work_folder(work: str) -> Iterator[str]:
    """A folder for one overlay. A smoke check without a run leaves nothing behind; a guarded run's folder stays."""
    parent = os.path.join(work, "smoke")
    made = [folder for folder in (parent, *_above(parent)) if not os.path.isdir(folder)]
    places.private_folder(work)
    places.private_folder(parent)
    folder = tempfile.mkdtemp(dir=parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)  # links in it are removed, never followed
        for empty in made:
            with contextlib.suppress(OSError):
                os.rmdir(empty)


def _above(path: str) -> Iterator[str]:
    while path != os.path.dirname(path):
        path = os.path.dirname(path)
        yield path


def _argvs(given: Message) -> Dict[str, List[str]]:
    """Words of the server's command line by arm, or nothing: an older controller does not ask."""
    found = given.get("argvs", {})
    if not isinstance(found, dict):
        raise args.bad("argvs", "an object of word lists", found)
    return {arm: args.words(found, arm) for arm in found}


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


def _built(package_path: str, root: str, touched: List[Touched]) -> str:
    try:
        return build(package_path, root, touched)
    except OSError as error:  # of the overlay: which of its files it was says nothing
        code = "no_space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "failed"
        text = "cannot make the copy for the smoke check in {}: {}".format(root, error.strerror)
        raise AgentError(code, text, path=root) from None


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
        if name == _BYTECODE:
            _link_bytecode(os.path.join(source, name), os.path.join(target, name), folder, touched)
        elif inside not in real_folders and inside not in touched:
            os.symlink(os.path.join(source, name), os.path.join(target, name))


def _link_bytecode(source: str, target: str, folder: str, touched: Set[str]) -> None:
    """Compiling every neighbour anew took two seconds of SGLang's import on a GPU machine."""
    os.mkdir(target, 0o700)
    for name in os.listdir(source):
        if os.path.join(folder, name.split(".")[0] + ".py") not in touched:
            os.symlink(os.path.join(source, name), os.path.join(target, name))


class Asked(NamedTuple):
    """What the probe was to look at; it answers for each, or the reason why it did not is put in its place."""

    files: List[str]
    modules: List[str]
    arms: List[str]


def summarise(answer: Answer, asked: Asked, timeout_s: float) -> Message:
    why = _why_it_ended(answer, timeout_s)
    compiled = {line["compile"]: line for line in answer.lines if "compile" in line}
    lost = {"ok": False, "error": "not compiled: " + why}
    return {
        "compile": [
            _fields(compiled.get(path, lost), path=path, ok=None, error=None) for path in asked.files
        ],
        "imports": _imports(answer, asked.modules, why),
        "arguments": _arguments(answer, asked.arms, why),
        "warnings": [line["warning"] for line in answer.lines if "warning" in line],
        "output": answer.noise[-_NOISE_LINES:],
    }


def _fields(found: Message, **defaults: Any) -> Message:
    return {name: found.get(name, default) for name, default in defaults.items()}


def _why_it_ended(answer: Answer, timeout_s: float) -> str:
    if answer.timed_out:
        return "no end within {:g} s".format(timeout_s)
    said = "; ".join(answer.noise[-_NOISE_LINES:]) or "nothing said"
    return "the interpreter ended with status {}: {}".format(answer.returncode, said)


def _imports(answer: Answer, modules: List[str], why: str) -> List[Message]:
    told = {line["module"]: line for line in answer.lines if "module" in line}
    begun = {line["importing"] for line in answer.lines if "importing" in line}
    return [
        _fields(
            told.get(module, {}),
            module=module,
            state="failed",
            file=None,
            sha256=None,
            missing=None,
            error=why if module in begun else "not tried: " + why,
        )
        for module in modules
    ]


def _arguments(answer: Answer, arms: List[str], why: str) -> List[Message]:
    told = {line["arm"]: line for line in answer.lines if "arm" in line}
    return [
        _fields(told.get(arm, {}), arm=arm, ok=False, how="parser", error=why, missing=None, near={})
        for arm in arms
    ]
