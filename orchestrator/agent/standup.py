"""Becoming a guardian: detach, take the lock, clean up after the dead, open a journal, then say that it stands."""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, Tuple

from . import lock, logfile, places, procs, recovery, tidy
from .guardian import Config, Guardian
from .journal import Journal
from .logfile import LogFile
from .wire import Message, as_agent_error, decode, encode


def main() -> int:
    """Reads the arguments of `guard` on stdin, answers one line on stdout when it stands or cannot, and stays."""
    _detach()
    try:
        config = Config(decode(sys.stdin.buffer.readline()))
        guardian, before = _stand_up(config)
    except Exception as error:  # noqa: BLE001 - the parent waits for one line
        _answer_parent({"error": as_agent_error(error, "guard").as_json()})
        return 1
    stands = {"guardian_pid": os.getpid(), "journal": guardian.journal.path, **before}
    if not _answer_parent({"ok": stands}):
        guardian.expect_nobody()
    _quiet(guardian.log)
    guardian.run()
    return 0


def _detach() -> None:
    """A session of its own and no parent: the channel's end and its process group cannot reach it."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)


def _stand_up(config: Config) -> Tuple[Guardian, Message]:
    """The guardian, and what was done before: runs `recovered`, old folders `cleared`."""
    lock_socket = lock.acquire()
    with lock.answering(
        lock_socket, config.run_id, config.holder, logfile.utc_now(), "recovering a dead run"
    ):
        before = {"recovered": recovery.recover_all(), "cleared": tidy.clear(config.run_id)}
    for folder in (places.home(), places.runs_folder(), places.run_folder(config.run_id)):
        places.private_folder(folder)
    places.private_folder(places.work_folder(config.workdir, config.run_id))
    log = LogFile(places.guardian_log(config.run_id))
    journal = Journal.create(config.run_id, **_opening(config))
    procs.become_subreaper()
    log.write("guardian pid {} holds the node for {}".format(os.getpid(), config.holder))
    return Guardian(config, lock_socket, journal, log), before


def _opening(config: Config) -> Dict[str, Any]:
    identity = procs.identity_of(os.getpid())
    assert identity is not None
    return {
        "boot_id": procs.boot_id(),
        "machine_id": procs.machine_id(),
        "pid_namespace": procs.pid_namespace(),
        "guardian": {"pid": identity[0], "start_time": identity[1]},
        "holder": config.holder,
        "workdir": config.workdir,
        "stop_s": config.stop_s,
        "marker": "DYNSPEC_RUN={}.{}".format(config.run_id, os.urandom(8).hex()),
    }


def _answer_parent(message: Message) -> bool:
    """False when nobody reads any more."""
    try:
        os.write(1, encode(message))
    except OSError:
        return False
    return True


def _quiet(log: LogFile) -> None:
    """Lets go of the channel: nothing of it stays open here."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(log.descriptor, 1)
    os.dup2(log.descriptor, 2)
    os.close(null)
    os.chdir("/")
