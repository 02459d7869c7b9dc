"""Running a probe program in the interpreter, environment and folder that will serve."""

from __future__ import annotations

import json
import os
import pkgutil
import signal
import subprocess
from typing import Dict, List, Mapping, NamedTuple, Optional

from . import server
from .wire import AgentError, Message

MARK = "DYNSPEC-PROBE "


class Place(NamedTuple):
    """Where the server would run."""

    python: str
    cwd: str
    env: Mapping[str, Optional[str]]


class Answer(NamedTuple):
    """`lines` are the probe's marked messages; what else was printed is noise of start files, kept for errors."""

    lines: List[Message]
    noise: List[str]
    returncode: int
    timed_out: bool


def source(module: str) -> str:
    data = pkgutil.get_data(__package__, module + ".py")
    assert data is not None
    return data.decode("utf-8")


def run(
    place: Place, module: str, request: Message, timeout_s: float, extra: Optional[Dict[str, str]] = None
) -> Answer:
    """Runs a probe module as `python -c`, so that the folder is searched first, as under `python -m`.

    Raises AgentError `not_found` when interpreter or folder is missing.
    """
    if not os.path.isdir(place.cwd):
        raise AgentError(
            "not_found", "the folder to serve from does not exist: {}".format(place.cwd), path=place.cwd
        )
    environment = server.environment(place.env, "DYNSPEC_PROBE=1")
    environment.update(extra or {})
    try:
        process = subprocess.Popen(
            [place.python, "-c", source(module)],
            cwd=place.cwd,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise AgentError(
            "not_found",
            "cannot run the interpreter {}: {}".format(place.python, error.strerror),
            path=place.python,
        ) from None
    return _finish(process, json.dumps(request).encode("ascii"), timeout_s)


def _finish(process: "subprocess.Popen[bytes]", request: bytes, timeout_s: float) -> Answer:
    timed_out = False
    try:
        output, _ = process.communicate(request, timeout=timeout_s)
    except subprocess.TimeoutExpired as expired:
        timed_out = True
        output = expired.output or b""
    finally:
        _end_group(process)
    lines: List[Message] = []
    noise: List[str] = []
    for line in output.decode("utf-8", "replace").splitlines():
        if line.startswith(MARK):
            lines.append(json.loads(line[len(MARK) :]))
        elif line.strip():
            noise.append(line)
    return Answer(lines, noise, process.returncode, timed_out)


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    """The probe and whatever it started; the leader is still unreaped or just was, so the group is still its own."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
