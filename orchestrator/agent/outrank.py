"""Whether an overlay is what the serving interpreter loads: PYTHONPATH, the folder it is started in, import hooks."""

from __future__ import annotations

import os
from typing import List, Mapping, Optional

from . import args, facts, interpreter, overlay, places, tree_copy
from .interpreter import Place
from .wire import AgentError, Message

VARIABLE = "PYTHONPATH"
_TIMEOUT_S = 60.0

Environment = Mapping[str, Optional[str]]


def with_root(env: Environment, root: str) -> "dict[str, Optional[str]]":
    """The launch environment with `root` before what PYTHONPATH has, there or in the login environment."""
    before = env[VARIABLE] if VARIABLE in env else os.environ.get(VARIABLE)
    return dict(env, **{VARIABLE: root + os.pathsep + before if before else root})


def check(given: Message) -> Message:
    """Before anything is laid, with nothing written: {root, files, size_bytes, problem}; `problem` None: it fits."""
    place = facts.place_of(given)
    package = args.path_name(given, "package")
    source = places.expand(args.text(given, "package_path"))
    workdir = args.text(given, "workdir")
    root = overlay.root_in(workdir, args.path_name(given, "run_id"))
    measured = tree_copy.measure(source)
    reply: Message = {
        "root": root,
        "files": measured.files,
        "size_bytes": measured.size_bytes,
        "problem": None,
    }
    try:
        overlay.check_space(workdir, measured.size_bytes)
        prove(place, package, root, args.words(given, "absent"), laid=False)
    except AgentError as error:
        if error.code not in ("mismatch", "no_space"):
            raise
        reply["problem"] = error.message
    return reply


def prove(place: Place, package: str, root: str, absent: List[str], laid: bool) -> None:
    """Raises AgentError `mismatch` with what would be loaded instead of the overlay, or why that is not known.

    `absent`: modules that the patch set removes. `laid`: the overlay is there, so the interpreter is asked for itself.
    """
    if os.pathsep in root:
        raise AgentError(
            "mismatch",
            "{} cannot stand in PYTHONPATH: it has a {!r} in it".format(root, os.pathsep),
            path=root,
        )
    placed = place._replace(env=with_root(place.env, root))
    request = {"package": package, "root": root, "absent": absent, "laid": laid}
    quiet = {"PYTHONDONTWRITEBYTECODE": "1"}
    answer = interpreter.run(placed, "probe_overlay", request, _TIMEOUT_S, quiet)
    if not answer.lines:
        why = "no answer in time" if answer.timed_out else "; ".join(answer.noise[-3:]) or "nothing said"
        problem: Optional[str] = "it cannot be asked: {}".format(why)
    else:
        problem = answer.lines[-1]["problem"]
    if problem is not None:
        text = "{} in {} would not load {} from an overlay: {}"
        raise AgentError("mismatch", text.format(place.python, place.cwd, package, problem), path=root)
