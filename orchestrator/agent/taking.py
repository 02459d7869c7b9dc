"""Taking the node: a guardian of our own, after waiting, taking over or being told that it is busy."""

from __future__ import annotations

import json
import os
import subprocess
import time
from typing import Callable, List, Optional

from . import args, guardlink, lock, places, procs
from .wire import AgentError, Message, encode, error_from_json

_POLL_S = 0.25
_STAND_UP_S = 60.0  # covers the recovery of a dead run
_UNWIND_MARGIN_S = 90.0


def take(given: Message, gave_up: Callable[[], bool]) -> Message:
    """Spawns a guardian that holds the node. Raises AgentError `busy` with the LockFact, or `dirty`."""
    deadline = time.monotonic() + args.seconds(given, "lock_wait_s", 0.0)
    force = args.flag(given, "force")
    taken_over: List[Message] = []
    while True:
        held = lock.holder()
        if held is None:
            try:
                result = spawn(given)
            except AgentError as error:
                if error.code != "busy":
                    raise
                held = error.details
            else:
                result["recovered"] = taken_over + result["recovered"]
                return result
        if may_take_over(held, force):
            taken_over.append(take_over(held, "taken over by {}".format(given.get("holder", "?")), force))
            continue
        if time.monotonic() >= deadline or gave_up():
            raise lock.busy_error(held)
        time.sleep(_POLL_S)


def may_take_over(held: Message, force: bool) -> bool:
    """Only a guardian of this user; one that is abandoned or leaving at once, a live one only by force."""
    ours = held.get("user") == procs.user_name(os.geteuid())
    return (
        ours
        and held.get("run_id") in places.run_ids()
        and (held.get("state") in ("orphaned", "unwinding") or force)
    )


def take_over(held: Message, reason: str, force: bool, by: str = "") -> Message:
    """Asks the other guardian to give the node back. Raises AgentError `dirty` when it could not.

    `by`: the person's command that ends the run, for its controller.
    """
    run_id = str(held["run_id"])
    try:
        done = guardlink.ask_once(
            run_id, "unwind", {"reason": reason, "force": force, "by": by}, _UNWIND_MARGIN_S
        )
    except AgentError as error:
        if error.code != "lost":
            raise
        done = {}  # it went by itself meanwhile
    return {
        "run_id": run_id,
        "restored": done.get("restored", []),
        "stopped": done.get("stopped", []),
        "kept": [],
    }


def spawn(given: Message) -> Message:
    """Starts `agent.pyz guardian` and waits until it stands or says why not."""
    process = subprocess.Popen(
        [*places.own_python(), places.agent_file(), "guardian"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if name not in places.CI_VARIABLES},
    )
    line = _exchange(process, encode(given))
    if not line:
        raise AgentError("failed", "the guardian ended without a word; see guardian.log of the run")
    answer = json.loads(line.decode("utf-8"))
    if "error" in answer:
        raise error_from_json(answer["error"])
    ok = answer["ok"]
    return ok if isinstance(ok, dict) else {}


def _exchange(process: "subprocess.Popen[bytes]", request: bytes) -> Optional[bytes]:
    """The guardian detaches and closes its end of the pipe, so this returns while it lives on."""
    try:
        output, _ = process.communicate(request, timeout=_STAND_UP_S)
    except subprocess.TimeoutExpired:
        raise AgentError("timeout", "the guardian does not stand after {:g} s".format(_STAND_UP_S)) from None
    return output
