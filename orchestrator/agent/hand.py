"""By hand, with only ssh: `agent.pyz status|stop|restore`. Verb `recover` does the same for `dynspec stop/restore`."""

from __future__ import annotations

import os
import platform
import sys
from typing import List, Optional

from . import ending, facts, guardlink, lock, logfile, places, procs, recovery, taking, tidy
from .journal import Journal
from .wire import AgentError, Message, as_agent_error

CLEAN, REFUSED, DIRTY = 0, 1, 70
_STOP_S = 30.0


def recover(what: str, force: bool, keep_foreign: bool, by: str) -> Message:
    """`stop` ends what was started; `restore` also puts files back and gives the node back. `by`: who asks, in words.

    Returns {recovered: [{run_id, restored, stopped, kept, patched}], cleared: [run ids]}. Raises AgentError `busy` for
    a live holder without `force`, `dirty` for what could not be cleaned.
    """
    done: List[Message] = []
    cleared: List[str] = []
    held = lock.holder()
    if held is not None:
        done.append(_ask_holder(held, what, force, by))
    if held is None or what == "restore" or held["phase"] == lock.NO_ANSWER:
        with lock.held(
            "recovery", "{}@{}".format(procs.user_name(os.geteuid()), platform.node()), logfile.utc_now()
        ):
            done += recovery.recover_all(keep_foreign) if what == "restore" else _stop_dead()
            if what == "restore":
                cleared = tidy.clear()
    return {"recovered": done, "cleared": cleared}


def _ask_holder(held: Message, what: str, force: bool, by: str) -> Message:
    run_id = str(held["run_id"])
    mine = held["user"] == procs.user_name(os.geteuid()) and run_id in places.run_ids()
    if force and held["phase"] == lock.NO_ANSWER and held["user"] == procs.user_name(os.geteuid()):
        return _end_frozen(held)
    if not mine or (held["state"] == "live" and not force):
        raise lock.busy_error(held)
    if what == "restore":
        return taking.take_over(held, "restored by hand", force, by)
    stopped = guardlink.ask_once(run_id, "stop", {"timeout_s": _STOP_S, "force": force}, 3 * _STOP_S)
    return {"run_id": run_id, "restored": [], "stopped": stopped.get("stopped", []), "kept": []}


def _end_frozen(held: Message) -> Message:
    """A guardian that does not answer is ended, so that its run can be recovered like that of a dead one."""
    identity = procs.identity_of(int(held["guardian_pid"]))
    if identity is not None:
        ending.kill(identity)
        ended = ending.end(
            lambda: {identity} if procs.is_alive(identity) else set(), _STOP_S, lambda alive: None
        )
        if ended.survivors:
            raise AgentError("busy", "the guardian (pid {}) neither answers nor ends".format(identity[0]))
    return {"run_id": "(a guardian that did not answer)", "restored": [], "stopped": [], "kept": []}


def _stop_dead() -> List[Message]:
    done = []
    for entry in recovery.unfinished():
        if entry.problem is not None:
            raise entry.problem
        if entry.elsewhere:
            continue
        recovery.wait_for_death(entry)
        opened = Journal.reopen(entry.path)
        try:
            stopped, survivors = recovery.stop_processes(opened)
        finally:
            opened.close_file()
        if survivors is not None:
            raise survivors
        done.append({"run_id": entry.run_id, "restored": [], "stopped": stopped, "kept": []})
    return done


# -- the command line


def main(command: str, words: List[str]) -> int:
    """Prints what it did. 0: clean; 1: refused or failed with nothing changed for the worse; 70: still dirty."""
    known = {"stop": {"--force"}, "restore": {"--force", "--keep-foreign"}, "status": set()}[command]
    odd = [word for word in words if word not in known]
    if odd:
        _say("{}: unknown option {}; known: {}".format(command, odd[0], " ".join(sorted(known)) or "none"))
        return REFUSED
    try:
        if command == "status":
            return _status()
        by = "`{}` on the node itself".format(command)
        done = recover(command, "--force" in words, "--keep-foreign" in words, by)
    except (AgentError, OSError) as caught:
        error = as_agent_error(caught, command)
        if error.details.get("recovered"):
            _report(error.details["recovered"])
        _say("{}: {}".format(error.code, error.message))
        for problem in error.details.get("files", []):
            if isinstance(problem, dict):  # the message has named each file
                _say_ways_out(problem)
        return DIRTY if error.code == "dirty" else REFUSED
    _report(done["recovered"])
    return CLEAN


def _report(recovered: List[Message]) -> None:
    if not recovered:
        _say("nothing to do: no open journal, no guardian")
    for item in recovered:
        _say("run {run_id}: stopped {0} processes, restored {1} files".format(
            len(item["stopped"]), len(item["restored"]), **item))  # fmt: skip
        for path in item["restored"]:
            _say("  restored " + path)
        for path in item["kept"]:
            _say("  left as somebody else changed it: " + path)
        for path in item.get("patched", []):
            _say("  it still holds a patch of dynspec: " + path)


def _say_ways_out(problem: Message) -> None:
    if problem.get("kind") == "foreign":
        _say("  to keep {path} as it is: restore --keep-foreign".format(**problem))
        if problem.get("original"):
            _say("  to have the original back: cp {original} {path}, then restore".format(**problem))


def _status() -> int:
    held = lock.holder()
    told = facts.status(guardlink.server_of(held))
    if held is None:
        _say("lock: free")
    else:
        _say(
            "lock: run {run_id} of {user} ({controller}), {state} since {since_utc}, lease {lease_left_s} s".format(
                **held
            )
        )
    for item in told["journals"]:
        _say("open journal: {path} ({state}, {0} files)".format(len(item["files_changed"]), **item))
    server: Optional[Message] = told["server"]
    if server is not None:
        _say("server: pid {pid}, alive {alive}, exit code {exit_code}, signal {signal}".format(**server))
    if told["gpu_problem"]:
        _say("GPUs: " + told["gpu_problem"])
    for holder in told["holders"]:
        _say("GPU process: pid {pid} of {user}, {memory_mib} MiB, {age_s} s: {command}".format(**holder))
    return CLEAN


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
