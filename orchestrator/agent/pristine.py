"""Whether files of a package are as its installer or its last commit left them. Reads only; nothing is imported.

Installed: the sha256 of each file in the distribution's RECORD. A checkout: git, which also has the difference.
"""

from __future__ import annotations

import base64
import csv
import glob
import hashlib
import os
import re
import shutil
import subprocess
from typing import Dict, Iterable, List, Optional, Set, Tuple

from .wire import AgentError, Message

_GIT_TIMEOUT_S = 10.0
_MOST_LISTED = 20
_MOST_DIFF_CHARS = 16_000
# A checkout's own configuration must not make git run or write anything.
_GIT_OPTIONS = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.quotePath=false")
_GIT_ENVIRONMENT = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_PAGER": "cat", "LC_ALL": "C"}


def look(package_path: str, files: Optional[Iterable[str]]) -> Message:
    """A Pristine. `files`: package-relative, None for every file of the package. What cannot be told is a problem."""
    names = None if files is None else list(files)
    try:
        record = find_record(package_path)
        if record is not None:
            return _by_record(package_path, record, names)
        top = find_checkout(package_path)
        if top is not None:
            return _by_git(package_path, top, names)
    except (AgentError, OSError, ValueError, subprocess.SubprocessError, csv.Error) as error:
        return _told("none", 0, [], problem=str(error))
    return _told("none", 0, [], problem="it is neither installed by a wheel nor a git checkout")


def _told(
    baseline: str, checked: int, changed: List[Message], diff: str = "", problem: Optional[str] = None
) -> Message:
    if len(diff) > _MOST_DIFF_CHARS:
        diff = diff[:_MOST_DIFF_CHARS] + "\n(cut here)\n"
    return {
        "baseline": baseline,
        "checked": checked,
        "changed": changed[:_MOST_LISTED],
        "changed_count": len(changed),
        "diff": diff,
        "problem": problem,
    }


# -- installed


def find_record(package_path: str) -> Optional[str]:
    """The RECORD beside the package that lists it. Raises AgentError when two do: then neither can be believed."""
    beside, package = os.path.split(package_path.rstrip("/"))
    own = [
        path
        for path in glob.glob(os.path.join(glob.escape(beside), "*.dist-info", "RECORD"))
        if _lists(path, package)
    ]
    if len(own) > 1:
        names = ", ".join(sorted(os.path.basename(os.path.dirname(path)) for path in own))
        raise AgentError("mismatch", "{} is in the files of several distributions: {}".format(package, names))
    return own[0] if own else None


def command_to_reset(path: str) -> Optional[str]:
    """What a person types to have one file again as its distribution or its commit has it; None where nothing tells."""
    folder = os.path.dirname(path)
    while folder != os.path.dirname(folder):
        try:
            record = find_record(folder)
        except (AgentError, OSError):
            record = None
        if record is not None:
            name = os.path.basename(os.path.dirname(record))[: -len(".dist-info")]
            return "pip install --force-reinstall --no-deps {}=={}".format(*name.partition("-")[::2])
        folder = os.path.dirname(folder)
    top = find_checkout(os.path.dirname(path))
    return None if top is None else "git -C {} checkout -- {}".format(top, os.path.relpath(path, top))


def _lists(record: str, package: str) -> bool:
    """Whether the distribution brought the package's own first file, not just a plug-in into its folder."""
    wanted = os.fsencode(package) + b"/__init__.py,"
    with open(record, "rb") as stream:
        return any(line.startswith(wanted) for line in stream)


def _by_record(package_path: str, record: str, names: Optional[List[str]]) -> Message:
    package = os.path.basename(package_path.rstrip("/"))
    known = read_record(record, package + "/")
    wanted = sorted(set(known) | _sources(package_path)) if names is None else names
    changed: List[Message] = []
    for name in wanted:
        state = _state(os.path.join(package_path, name), known.get(name))
        if state is not None:
            changed.append({"path": name, "state": state})
    return _told(os.path.basename(os.path.dirname(record)) + "/RECORD", len(wanted), changed)


def read_record(record: str, prefix: str) -> Dict[str, str]:
    """Path below `prefix` -> sha256 as hex. Entries without a digest (RECORD itself, bytecode) are left out."""
    found = {}
    with open(record, encoding="utf-8", errors="surrogateescape", newline="") as stream:
        for row in csv.reader(stream):
            if len(row) >= 2 and row[0].startswith(prefix) and row[1].startswith("sha256="):
                text = row[1][len("sha256=") :]
                digest = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
                found[row[0][len(prefix) :]] = digest.hex()
    return found


def _sources(package_path: str) -> Set[str]:
    """Python files that are there, listed or not."""
    found: Set[str] = set()
    for folder, folders, names in os.walk(package_path):
        folders[:] = [name for name in folders if name != "__pycache__"]
        inside = os.path.relpath(folder, package_path)
        found.update(os.path.normpath(os.path.join(inside, name)) for name in names if name.endswith(".py"))
    return found


def _state(path: str, sha256: Optional[str]) -> Optional[str]:
    """None for a file that is as it was put there, also for one that neither was nor is."""
    try:
        with open(path, "rb") as stream:
            digest = hashlib.sha256(stream.read()).hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return None if sha256 is None else "missing"
    if sha256 is None:
        return "added"
    return None if digest == sha256 else "changed"


# -- a checkout


def find_checkout(package_path: str) -> Optional[str]:
    """The top folder of the git checkout that the package lies in."""
    folder = os.path.realpath(package_path)
    while folder != "/":
        if os.path.lexists(os.path.join(folder, ".git")):
            return folder
        folder = os.path.dirname(folder)
    return None


def _by_git(package_path: str, top: str, names: Optional[List[str]]) -> Message:
    inside = os.path.relpath(os.path.realpath(package_path), top)
    paths = [inside] if names is None else [os.path.join(inside, name) for name in names]
    commit = _git(top, "rev-parse", "HEAD").strip()
    if not re.match("[0-9a-f]{40,64}\\Z", commit):
        raise AgentError("failed", "git names no commit in {}".format(top))
    if not paths:
        return _told("git " + commit[:12], 0, [])
    # `status` compares in memory; `diff-index` does not look at the index's stamps again, which `diff` would write.
    listed = _git(
        top, "status", "--porcelain=v1", "-z", "--untracked-files=all", "--no-renames", *_literal(paths)
    )
    entries = [(path, state) for path, state in _statuses(listed) if "__pycache__" not in path.split("/")]
    tracked = [path for path, state in entries if state != "added"][:_MOST_LISTED]
    options = ("--no-ext-diff", "--no-textconv", "--no-color", "--no-renames")
    diff = _git(top, "diff-index", "-p", "HEAD", *options, *_literal(tracked)) if tracked else ""
    changed = [{"path": os.path.relpath(path, inside), "state": state} for path, state in entries]
    checked = len(paths) if names is not None else _git(top, "ls-files", "-z", *_literal(paths)).count("\0")
    return _told("git " + commit[:12], checked, changed, diff)


def _literal(paths: List[str]) -> List[str]:
    return ["--", *(":(top,literal)" + path for path in paths)]


def _statuses(listed: str) -> Iterable[Tuple[str, str]]:
    """Path and state of each entry of `git status -z`."""
    for entry in listed.split("\0"):
        if entry:
            mark, path = entry[:2], entry[3:]
            yield path, "added" if mark in ("??", "A ", "AM") else "missing" if "D" in mark else "changed"


def _git(top: str, *words: str) -> str:
    """Output of a git command that writes nothing. Raises AgentError with what git said."""
    tool = shutil.which("git")
    if tool is None:
        raise AgentError("failed", "a git checkout, and no git on PATH to look at it")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment.update(_GIT_ENVIRONMENT)
    done = subprocess.run(
        [tool, *_GIT_OPTIONS, "-C", top, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        timeout=_GIT_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().split("\n")[0]
        raise AgentError("failed", "git: {:.200}".format(said or "exit status {}".format(done.returncode)))
    return done.stdout.decode("utf-8", "surrogateescape")
