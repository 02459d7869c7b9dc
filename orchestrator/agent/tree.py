"""The package that will serve: which one the interpreter loads, and its files as they are."""

from __future__ import annotations

import os
import re
import stat
from typing import List, NamedTuple, Optional

from . import files, interpreter, procs
from .interpreter import Place
from .wire import AgentError, Message

_PROBE_TIMEOUT_S = 60.0
SIMULATED_ENGINE = "dynspec_simulated_engine"  # lies beside a package that it serves in place of


class Found(NamedTuple):
    """A Tree as JSON without files, or why there is none."""

    tree: Optional[Message]
    problem: Optional[str]


def find(place: Place, package: str) -> Found:
    try:
        answer = interpreter.run(place, "probe_tree", {"package": package}, _PROBE_TIMEOUT_S)
    except AgentError as error:
        return Found(None, error.message)
    if not answer.lines:
        why = (
            "no answer within {:g} s".format(_PROBE_TIMEOUT_S)
            if answer.timed_out
            else "; ".join(answer.noise[-3:])
        )
        return Found(None, "{} cannot say which {} it loads: {}".format(place.python, package, why))
    told = answer.lines[-1]
    if "problem" in told:
        return Found(None, str(told["problem"]))
    keys = ("path", "version", "editable", "python", "python_version", "bytecode_prefix")
    simulated = os.path.isdir(
        os.path.join(os.path.dirname(os.path.realpath(str(told["path"]))), SIMULATED_ENGINE)
    )
    return Found(dict({key: told[key] for key in keys}, package=package, simulated=simulated, files=[]), None)


def file_facts(package_path: str, names: List[str]) -> List[Message]:
    return [file_fact(package_path, name) for name in names]


def file_fact(package_path: str, name: str) -> Message:
    """A FileFact. Raises AgentError `bad_request` for a name that leaves the package."""
    path = os.path.normpath(os.path.join(package_path, name))
    if os.path.isabs(name) or not path.startswith(package_path.rstrip("/") + "/"):
        raise AgentError("bad_request", "not a path inside the package: {!r}".format(name))
    real = os.path.realpath(path)
    found = files.look(real)
    return {
        "path": name,
        "absolute": real,
        "sha256": files.digest(found),
        "size": len(found.data) if found else 0,
        "mode": found.mode if found else 0,
        "uid": found.uid if found else 0,
        "gid": found.gid if found else 0,
        "nlink": found.nlink if found else 1,
        "symlink": _link_target(path),
        "writable": files.why_not_writable(real, found) is None,
    }


def _link_target(path: str) -> Optional[str]:
    try:
        return os.readlink(path) if stat.S_ISLNK(os.lstat(path).st_mode) else None
    except OSError:
        return None


def serving_processes(tree: Message, ours: "set[int]") -> List[Message]:
    """Processes, not ours, that serve from this tree: they run its interpreter, name the package, and belong to its
    environment. Other users' processes cannot be looked into without root; for them the command line decides."""
    skip = procs.protected() | ours
    return [procs.fact(pid) for pid in sorted(procs.snapshot()) if pid not in skip and _serves(pid, tree)]


def _serves(pid: int, tree: Message) -> bool:
    path, python, package = (str(tree[name]) for name in ("path", "python", "package"))
    command = procs.command_line(pid)
    if not re.search(r"(?<!\w){}(?!\w)".format(re.escape(package)), command):
        return False
    by_name = command.startswith(python + " ")
    try:
        if not os.path.samefile("/proc/{}/exe".format(pid), python):
            return False
        from_here = os.path.samefile("/proc/{}/cwd".format(pid), os.path.dirname(path))
    except OSError:
        return by_name
    if from_here:
        return True
    chosen = _on_its_path(pid, package)
    if chosen is not None:
        return _is_same(chosen, path)
    return _is_same(_as_it_sees(pid, path), path) and (by_name or _maps(pid, os.path.dirname(path)))


def _as_it_sees(pid: int, path: str) -> str:
    """A container, or a mount of its own, may have another file at the same path."""
    return "/proc/{}/root{}".format(pid, path)


def _is_same(path: str, other: str) -> bool:
    """Whether both are one folder; also when that cannot be told."""
    try:
        return os.path.samefile(path, other)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def _on_its_path(pid: int, package: str) -> Optional[str]:
    """The package as the process finds it first on its PYTHONPATH, if that names one."""
    for entry in procs.variable(pid, "PYTHONPATH").split(":"):
        if os.path.isabs(entry):
            found = _as_it_sees(pid, os.path.join(entry, package))
            if os.path.isdir(found):
                return found
    return None


def _maps(pid: int, folder: str) -> bool:
    """Whether extension modules beside the package are loaded: a server that renamed itself is known by them."""
    try:
        with open("/proc/{}/maps".format(pid), "rb") as stream:
            return os.fsencode(folder) + b"/" in stream.read()
    except OSError:
        return False
