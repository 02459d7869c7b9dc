"""The node's lock: an abstract unix socket that one guardian listens on. The kernel drops it with the process, and
whoever connects is told who holds it; so a lock is never stale and never trusted by a number in a file."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
import struct
import threading
import time
from typing import Any, Dict, Iterator, Optional, Tuple

from . import places, procs
from .wire import AgentError, Message, encode

NO_ANSWER = "does not answer"
_ANSWER_TIMEOUT_S = 2.0
_TELL_S = 0.1
_TRIES, _TRY_AGAIN_S = 10, 0.05
_CREDENTIALS = struct.Struct("3i")


def name() -> str:
    return os.environ.get(places.LOCK_VARIABLE) or "dynspec-node"


def address() -> str:
    return "\0" + name()


def peer_of(sock: socket.socket) -> Tuple[int, int]:
    """(pid, uid) of the other end, as the kernel says."""
    pid, uid, _ = _CREDENTIALS.unpack(
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return pid, uid


def may_command(sock: socket.socket) -> bool:
    return peer_of(sock)[1] in (os.geteuid(), 0)


def acquire() -> socket.socket:
    """The bound, listening, close-on-exec socket. Raises AgentError `busy` with the holder's LockFact."""
    for _ in range(_TRIES):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(address())
            sock.listen(16)
            return sock
        except OSError as error:
            sock.close()
            if error.errno != errno.EADDRINUSE:
                raise AgentError("failed", "cannot take the node's lock: {}".format(error.strerror)) from None
        fact = holder()
        if fact is not None:
            raise busy_error(fact)
        time.sleep(_TRY_AGAIN_S)  # bound and not listening yet, or just gone: one of us is in between
    raise busy_error(_unknown_holder(0, -1))


def holder() -> Optional[Message]:
    """The LockFact of who holds the node, None when it is free. Pid and user are the kernel's word."""
    for _ in range(_TRIES):
        fact, hung_up = _ask()
        if not hung_up:
            return fact
        time.sleep(_TRY_AGAIN_S)  # a guardian that is just ending closes one socket after the other
    return fact


def _ask() -> Tuple[Optional[Message], bool]:
    """The answer, and whether the other end closed without one."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(_ANSWER_TIMEOUT_S)
    with contextlib.closing(sock):
        try:
            sock.connect(address())
        except ConnectionRefusedError:
            return None, False
        except OSError:
            return _unknown_holder(0, -1), False
        pid, uid = peer_of(sock)
        fact = _unknown_holder(pid, uid)
        try:
            with sock.makefile("rb") as stream:
                line = stream.readline(65536)
            answer = json.loads(line.decode("utf-8"))
        except socket.timeout:
            return fact, False
        except (OSError, ValueError):
            return fact, True
    if isinstance(answer, dict):
        fact.update({key: answer[key] for key in fact if type(answer.get(key)) in _types(key)})
    fact.update(guardian_pid=pid, user=procs.user_name(uid))
    return fact, False


def _types(key: str) -> Tuple[type, ...]:
    return {"lease_left_s": (int, float), "guardian_pid": (int,)}.get(key, (str,))


def _unknown_holder(pid: int, uid: int) -> Dict[str, Any]:
    """What can be said of a holder that does not answer: frozen, or not one of ours."""
    return {
        "run_id": "unknown",
        "user": procs.user_name(uid) if uid >= 0 else "unknown",
        "controller": "unknown",
        "guardian_pid": pid,
        "since_utc": "unknown",
        "state": "live",
        "lease_left_s": 0.0,
        "phase": NO_ANSWER,
    }


def busy_error(fact: Message) -> AgentError:
    text = "the node is held by run {run_id} of {user} ({controller}), {state} since {since_utc}".format(
        **fact
    )
    return AgentError("busy", text, **fact)


def answer(sock: socket.socket, fact: Message) -> None:
    """Tells one who asks. The message fits the socket's buffer, so this cannot block."""
    connection, _ = sock.accept()
    with contextlib.closing(connection):
        connection.settimeout(0.5)
        try:
            connection.sendall(encode(fact))
        except OSError:
            pass


@contextlib.contextmanager
def answering(
    sock: socket.socket, run_id: str, holder_name: str, since_utc: str, phase: str
) -> Iterator[None]:
    """Tells who asks, from a thread, while this process is busy cleaning up with the lock held."""
    fact = dict(
        _unknown_holder(os.getpid(), os.geteuid()),
        run_id=run_id,
        controller=holder_name,
        since_utc=since_utc,
        state="unwinding",
        phase=phase,
    )
    done = threading.Event()

    def tell() -> None:
        while not done.is_set():
            if select.select([sock], [], [], _TELL_S)[0]:
                answer(sock, fact)

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextlib.contextmanager
def held(run_id: str, holder_name: str, since_utc: str) -> Iterator[None]:
    """Holds the node for a short deed in this process."""
    sock = acquire()
    try:
        with answering(sock, run_id, holder_name, since_utc, "by hand"):
            yield
    finally:
        sock.close()
