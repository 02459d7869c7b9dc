"""The way to a guardian: its private socket, requests by id, events as they come."""

from __future__ import annotations

import itertools
import queue
import threading
from typing import Callable, Dict, Optional

from . import lock, places
from .wire import AgentError, Link, Message, error_from_json

OnLost = Callable[["GuardianLink"], None]


class GuardianLink:
    """One connection to the guardian of a run. Several threads may ask at once."""

    def __init__(self, run_id: str, on_event: Callable[[Message], None], on_lost: OnLost) -> None:
        try:
            sock = places.connect_private(places.guardian_socket(run_id))
        except OSError as error:
            raise AgentError(
                "lost", "no guardian of run {} answers: {}".format(run_id, error.strerror)
            ) from None
        if not lock.may_command(sock):
            sock.close()
            raise AgentError("lost", "the socket of run {} belongs to another user".format(run_id))
        self.run_id = run_id
        self.lost = False
        self.expected_to_end = False  # it was asked to give the node back
        self._link = Link(sock)
        self._on_event = on_event
        self._on_lost = on_lost
        self._ids = itertools.count(1)
        self._waiting: Dict[int, "queue.Queue[Optional[Message]]"] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    def ask(self, verb: str, given: Message, timeout_s: Optional[float] = None) -> Message:
        """Raises the guardian's own AgentError, or `lost` or `timeout`."""
        box: "queue.Queue[Optional[Message]]" = queue.Queue()
        with self._lock:
            if self.lost:
                raise AgentError("lost", "the guardian of run {} is gone".format(self.run_id))
            number = next(self._ids)
            self._waiting[number] = box
        self._link.send({"id": number, "verb": verb, "args": given})
        try:
            reply = box.get(timeout=timeout_s)
        except queue.Empty:
            raise AgentError(
                "timeout", "the guardian did not answer {} within {} s".format(verb, timeout_s)
            ) from None
        finally:
            self._waiting.pop(number, None)
        if reply is None:
            raise AgentError("lost", "the guardian of run {} ended during {}".format(self.run_id, verb))
        if "error" in reply:
            raise error_from_json(reply["error"])
        ok = reply.get("ok")
        return ok if isinstance(ok, dict) else {}

    def close(self) -> None:
        self._on_lost = lambda link: None
        self._link.close()

    def _listen(self) -> None:
        try:
            for message in self._link.messages():
                if "event" in message:
                    self._on_event(message)
                else:
                    box = self._waiting.get(message.get("id", -1))
                    if box is not None:
                        box.put(message)
        except AgentError:
            pass  # not a message: as good as gone
        with self._lock:
            self.lost = True
            waiting = list(self._waiting.values())
        for box in waiting:
            box.put(None)
        self._on_lost(self)


def ask_once(run_id: str, verb: str, given: Message, timeout_s: float) -> Message:
    """One request on a connection of its own."""
    link = GuardianLink(run_id, lambda event: None, lambda link: None)
    try:
        return link.ask(verb, given, timeout_s)
    finally:
        link.close()


def server_of(held: Optional[Message]) -> Optional[Message]:
    """The ServerState of whoever holds the node, where this user may ask."""
    if held is None or held["run_id"] not in places.run_ids():
        return None
    try:
        server = ask_once(str(held["run_id"]), "status", {}, 5.0)["server"]
    except (AgentError, KeyError):
        return None
    return server if isinstance(server, dict) else None
