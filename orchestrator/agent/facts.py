"""What the node is, as JSON with the field names of the controller's Facts. Slow looks run side by side."""

from __future__ import annotations

import os
import platform
import sys
import threading
from typing import Any, Callable, Dict, List, Optional

from . import args, holders, lock, places, ports, pristine, procs, recovery, tree
from .interpreter import Place
from .wire import AgentError, Message


def place_of(given: Message) -> Place:
    """Interpreter, folder and environment of a request."""
    python = args.text(given, "python")
    if "/" in python or python.startswith("~"):
        python = places.expand(python)
    return Place(python, places.expand(args.text(given, "cwd", "~")), args.environment(given, "env"))


def read(given: Message) -> Message:
    wanted_gpus = args.gpu_indices(given)
    port = args.port(given)
    workdir = places.expand(args.text(given, "workdir"))
    wanted_paths = args.words(given, "paths")
    looks: Dict[str, Callable[[], Any]] = {
        "gpu": lambda: holders.read(wanted_gpus),
        "tree": lambda: _tree(given),
        "rest": lambda: _node(port, workdir),
        "absent": lambda: [path for path in wanted_paths if _is_absent(path)],
    }
    done = side_by_side(looks)
    holding, found = done["gpu"], done["tree"]
    node = dict(done["rest"])
    running = recovery.running_pids()
    node.update(
        gpus=holding.picture.gpus_json(),
        gpu_problem=holding.picture.problem,
        holders=holding.holders,
        absent=done["absent"],
        tree=found.tree,
        tree_problem=found.problem,
        tree_processes=tree.serving_processes(found.tree, running) if found.tree else [],
    )
    return node


def _tree(given: Message) -> tree.Found:
    found = tree.find(place_of(given), args.text(given, "package"))
    if found.tree is not None:
        try:
            path, names = str(found.tree["path"]), args.words(given, "files")
            found.tree["files"] = tree.file_facts(path, names)
            found.tree["pristine"] = pristine.look(path, None if args.flag(given, "whole_package") else names)
        except AgentError as error:
            if error.code == "bad_request":
                raise
            return tree.Found(None, error.message)
    return found


def _node(port: int, workdir: str) -> Message:
    return {
        "host": platform.node(),
        "user": procs.user_name(os.geteuid()),
        "uid": os.geteuid(),
        "home": os.path.expanduser("~"),
        "kernel": platform.release(),
        "boot_id": procs.boot_id(),
        "agent_python": "{}.{}.{}".format(*sys.version_info[:3]),
        "cpu_count": len(os.sched_getaffinity(0)),
        "memory_mib": _memory_mib(),
        "disk_free_mib": _disk_free_mib(workdir),
        "port": ports.fact(port),
        "lock": lock.holder(),
        "journals": recovery.facts(),
        "problems": _problems(workdir),
    }


def _memory_mib() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (1024 * 1024)


def _existing(path: str) -> str:
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def _disk_free_mib(workdir: str) -> int:
    info = os.statvfs(_existing(workdir))
    return int(info.f_frsize * info.f_bavail // (1024 * 1024))


def _problems(workdir: str) -> List[str]:
    problems = [why for why in (_why_unwritable(workdir), _why_unwritable(places.home())) if why is not None]
    for entry in recovery.unfinished():
        if entry.problem is not None:
            problems.append(entry.problem.message)
        elif entry.elsewhere:
            problems.append("run {} left an open journal on another machine".format(entry.run_id))
    return problems


def _is_absent(path: str) -> bool:
    """False where it cannot be told: what lies in a closed folder may be open to the server."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass
    return False


def _why_unwritable(folder: str) -> Optional[str]:
    """Why `folder` could not be made or written in."""
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder):
        return "{} is in the way: not a folder".format(folder)
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        return "{} is on a read-only file system".format(folder)
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        return "{} is not writable for {}".format(folder, procs.user_name(os.geteuid()))
    return None


def side_by_side(looks: Dict[str, Callable[[], Any]]) -> Dict[str, Any]:
    """Runs all at once; the first error is raised when all are done."""
    done: Dict[str, Any] = {}
    errors: List[Exception] = []

    def run(name: str, look: Callable[[], Any]) -> None:
        try:
            done[name] = look()
        except Exception as error:  # noqa: BLE001 - carried to the asking thread and raised there
            errors.append(error)

    threads = [threading.Thread(target=run, args=item) for item in looks.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return done


def status(server: Optional[Message]) -> Message:
    holding = holders.read()
    return {
        "lock": lock.holder(),
        "journals": recovery.facts(),
        "server": server,
        "holders": holding.holders,
        "gpus": holding.picture.gpus_json(),
        "gpu_problem": holding.picture.problem,
    }
