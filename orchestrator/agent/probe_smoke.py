"""Runs in the serving interpreter, environment and folder: do the touched files compile, do their modules import from
the overlay, does the tree's own parser take the arms' arguments? Request on stdin; each finding is one marked line, so
that a crash loses only what comes after it."""

import argparse
import ast
import difflib
import gc
import hashlib
import importlib
import importlib.machinery
import json
import os
import sys
import traceback
import warnings
from typing import Any, Dict, List, Optional, Set

MARK = "DYNSPEC-PROBE "


def tell(**message: Any) -> None:
    os.write(1, ("\n" + MARK + json.dumps(message) + "\n").encode("ascii"))


class OverlayFinder:
    """Answers for the package's own name before any path or editable-install hook can."""

    def __init__(self, package: str, root: str) -> None:
        self.package = package
        self.root = root

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.package:
            return None
        return importlib.machinery.PathFinder.find_spec(name, [self.root])


def compile_file(root: str, path: str) -> None:
    full = os.path.join(root, path)
    try:
        with open(full, "rb") as stream:
            compile(stream.read(), path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        tell(compile=path, ok=False, error="{}, line {}: {}".format(path, line, error.args[0]))
    else:
        tell(compile=path, ok=True, error=None)


def imported_names(source: str) -> Set[str]:
    """Top-level names that a text imports anywhere."""
    names: Set[str] = set()
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return names
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def needed_before(item: Dict[str, Any], files: List[Dict[str, Any]]) -> Set[str]:
    """What the text already imported before the patch; for a file that the patch adds, what its neighbours did."""
    if item["original"] is not None:
        return imported_names(item["original"])
    return {name for other in files for name in imported_names(other["original"] or "")}


def missing_dependency(error: BaseException, request: Dict[str, Any]) -> Optional[str]:
    """The name of a package or library that this node lacks, unless it was the patch that asked for it."""
    text = str(error)
    if isinstance(error, ModuleNotFoundError) and error.name:
        name = error.name.split(".")[0]
        if name == request["package"]:
            return None
        frame = traceback.extract_tb(error.__traceback__)[-1]
        for item in request["files"]:
            if os.path.realpath(frame.filename) == os.path.realpath(
                os.path.join(request["root"], item["path"])
            ):
                return name if name in needed_before(item, request["files"]) else None
        return name
    if isinstance(error, (ImportError, OSError)) and "cannot open shared object file" in text:
        return text.split(":")[0]
    return None


def import_module(name: str, request: Dict[str, Any]) -> None:
    try:
        module = importlib.import_module(name)
    except BaseException as error:  # noqa: BLE001 - a module may even call sys.exit
        missing = missing_dependency(error, request)
        text = place_of(error)
        state = "failed" if missing is None else "not_possible"
        tell(module=name, state=state, file=None, sha256=None, missing=missing, error=text)
        return
    path = os.path.realpath(getattr(module, "__file__", None) or "")
    if not path.startswith(os.path.realpath(request["root"]) + os.sep):
        text = "loaded from {}, not the patched copy".format(path or "nowhere")
        tell(module=name, state="failed", file=path, sha256=None, missing=None, error=text)
        return
    with open(path, "rb") as stream:
        digest = hashlib.sha256(stream.read()).hexdigest()
    inside = os.path.relpath(path, os.path.realpath(request["root"])).replace(os.sep, "/")
    tell(module=name, state="loaded", file=inside, sha256=digest, missing=None, error=None)


class Refused(Exception):
    """What argparse would have said before it ended the process."""


class Parser(argparse.ArgumentParser):
    """SGLang's own options on a parser that tells instead of exiting."""

    def error(self, message: str) -> Any:
        raise Refused(message)

    def exit(self, status: int = 0, message: Optional[str] = None) -> Any:
        raise Refused((message or "the parser ends with status {}".format(status)).strip())


def arguments_parser(request: Dict[str, Any]) -> argparse.ArgumentParser:
    """The parser that `prepare_server_args` makes; nothing here reads a model or a GPU."""
    module = importlib.import_module(request["package"] + ".srt.server_args")
    parser = Parser(prog="launch_server")
    module.ServerArgs.add_cli_args(parser)
    return parser


def check_arguments(request: Dict[str, Any]) -> None:
    argvs = request["argvs"]
    for arm in argvs:
        tell(parsing=arm)
    try:
        parser = arguments_parser(request)
    except BaseException as error:  # noqa: BLE001 - a module may even call sys.exit
        missing = missing_dependency(error, request)
        how = "parser" if missing is None else "not possible"
        for arm in argvs:
            tell(arm=arm, ok=missing is not None, how=how, error=place_of(error), missing=missing, near={})
        return
    for arm, words in argvs.items():
        refusal = refusal_of(parser, words)
        near = nearest(parser, words) if refusal else {}
        tell(arm=arm, ok=refusal is None, how="parser", error=refusal, missing=None, near=near)


def place_of(error: BaseException) -> str:
    """The error with the file and line that it comes from; of a syntax error, the text's."""
    if isinstance(error, SyntaxError):
        return "{}: {} ({}, line {})".format(type(error).__name__, error.msg, error.filename, error.lineno)
    last = traceback.extract_tb(error.__traceback__)[-1]
    return "{}: {} ({}, line {})".format(type(error).__name__, error, last.filename, last.lineno)


def refusal_of(parser: argparse.ArgumentParser, words: List[str]) -> Optional[str]:
    try:
        parser.parse_args(words)
    except Refused as refused:
        return str(refused)
    except BaseException as error:  # noqa: BLE001 - options may have actions of their own
        return "{}: {}".format(type(error).__name__, error)
    return None


def nearest(parser: argparse.ArgumentParser, words: List[str]) -> Dict[str, str]:
    """For each flag that the parser does not have, the one it was most likely meant to be."""
    known = list(parser._option_string_actions)
    near: Dict[str, str] = {}
    for word in words:
        flag = word.split("=", 1)[0]
        if flag.startswith("--") and not any(name.startswith(flag) for name in known):
            found = difflib.get_close_matches(flag, known, n=1, cutoff=0.75)
            near[flag] = found[0] if found else ""
    return near


def main() -> None:
    request = json.loads(sys.stdin.read())
    sys.dont_write_bytecode = True
    gc.disable()  # imports make much and drop little: collecting was a tenth of their time on a GPU machine
    for item in request["files"]:
        if item["patched"] and item["path"].endswith(".py"):
            compile_file(request["root"], item["path"])
    sys.meta_path.insert(0, OverlayFinder(request["package"], os.path.dirname(request["root"])))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for name in request["modules"]:
            tell(importing=name)
            import_module(name, request)
        if request["argvs"]:
            check_arguments(request)
    for warning in caught:
        place = "{}:{}".format(warning.filename, warning.lineno)
        tell(warning="{}: {} ({})".format(warning.category.__name__, warning.message, place))
    tell(done=True)
    os._exit(0)  # threads that an import started must not hold up the answer


main()
