"""The guardian's desk: connections of the same user, each request on a thread of its own, one deed at a time."""

from __future__ import annotations

import socket
import threading
import time
from typing import Callable, Dict

from . import args, lock
from .logfile import LogFile
from .wire import AgentError, Link, Message, as_agent_error

Verb = Callable[[Link, Message], Message]


class Desk:
    def __init__(self, verbs: Dict[str, Verb], on_end: Callable[[Link], None], log: LogFile) -> None:
        self._verbs = verbs
        self._on_end = on_end
        self._log = log
        self._answering = 0
        self._lock = threading.Lock()

    def accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        if not lock.may_command(sock):
            sock.close()
            return
        threading.Thread(target=self._converse, args=(Link(sock),), daemon=True).start()

    def _converse(self, link: Link) -> None:
        try:
            for message in link.messages():
                with self._lock:
                    self._answering += 1
                threading.Thread(target=self._answer, args=(link, message), daemon=True).start()
        except AgentError as error:
            link.send({"id": None, "error": error.as_json()})
        finally:
            link.close()
            self._on_end(link)

    def _answer(self, link: Link, message: Message) -> None:
        try:
            link.send(self._reply(link, message))
        finally:
            with self._lock:
                self._answering -= 1

    def _reply(self, link: Link, message: Message) -> Message:
        number, verb, given = args.request_id(message), message.get("verb"), message.get("args", {})
        try:
            if not isinstance(verb, str) or not isinstance(given, dict):
                raise AgentError("bad_request", "a request has a verb and args")
            known = self._verbs.get(verb)
            if known is None:
                raise AgentError("unknown_verb", "the guardian knows no verb {!r:.40}".format(verb))
            return {"id": number, "ok": known(link, given)}
        except Exception as error:  # noqa: BLE001 - a request must never end the guardian
            if not isinstance(error, AgentError):
                self._log.write("{} failed: {!r}".format(verb, error))
            return {"id": number, "error": as_agent_error(error, str(verb)).as_json()}

    def wait_for_answers(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while self._answering and time.monotonic() < deadline:
            time.sleep(0.01)
