"""The guardian: one detached process from the lock to the unlock. It holds the node's lock, the lease, the journal and
the server as its child, and does every unwind. The controller only asks."""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
import traceback
from typing import Callable, Dict, Optional

from . import args, lock, logfile, places, procs
from .attachment import Attachment
from .deeds import Deeds
from .desk import Desk, Verb
from .journal import Journal
from .lease import Lease
from .logfile import LogFile
from .signals import SignalWatch
from .wire import AgentError, Link, Message, as_agent_error

_WAKE_S = 0.25
_DEED_GRACE_S = 2.0  # how long an unwind waits, over its limit, for a deed to notice that it should give up
_ANSWER_S = 2.0


class Config:
    """What `guard` asks for. All times in seconds."""

    def __init__(self, given: Message) -> None:
        self.run_id = args.path_name(given, "run_id")
        self.holder = args.text(given, "holder", "unknown") or "unknown"
        self.workdir = places.expand(args.text(given, "workdir"))
        self.lease_s = args.seconds(given, "lease_s", 120.0)
        self.stop_s = args.seconds(given, "stop_s", 30.0)
        self.gpu_free_s = args.seconds(given, "gpu_free_s", 60.0)


class Guardian:
    def __init__(self, config: Config, lock_socket: socket.socket, journal: Journal, log: LogFile) -> None:
        self.journal = journal
        self.log = log
        self._config = config
        self._lock_socket = lock_socket
        self._deeds = Deeds(journal, log, config.gpu_free_s)
        self._lease = Lease(config.lease_s)
        self._attachment = Attachment(config.holder)
        self._desk = Desk(self._verbs(), self._channel_ended, log)
        self._signals = SignalWatch()
        self._since = logfile.utc_now()
        self._deed = threading.Lock()  # one deed at a time; an unwind is one
        self._phase = ""
        self._begin = threading.Lock()
        self._unwinding: Optional[threading.Thread] = None
        self._outcome: Optional[Message] = None
        self._unwound = threading.Event()
        self._run_socket = places.listen_private(places.guardian_socket(config.run_id))
        for listener in (lock_socket, self._run_socket):
            listener.setblocking(False)  # who left again before being accepted must not hold up the loop

    # -- main loop

    def run(self) -> None:
        """Until the node was given back. A fault in here must not leave it as it is either."""
        try:
            self._loop()
        except Exception:
            self.log.write(traceback.format_exc())
            self._begin_unwind("the guardian failed", self._config.stop_s)
            self._unwound.wait()
            raise

    def _loop(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self._signals.descriptor, selectors.EVENT_READ, self._signals.drain)
        selector.register(self._lock_socket, selectors.EVENT_READ, self._tell_holder)
        selector.register(self._run_socket, selectors.EVENT_READ, lambda: self._desk.accept(self._run_socket))
        last_look = float("-inf")
        while not self._unwound.is_set():
            for key, _ in selector.select(_WAKE_S):
                key.data()
                if key.fileobj == self._signals.descriptor:  # most often a child ended
                    self._deeds.something_ended = True
            self._watch()
            if time.monotonic() - last_look >= self._deeds.look_interval_s:
                last_look = time.monotonic()
                self._look()
        self._desk.wait_for_answers(_ANSWER_S)

    def _watch(self) -> None:
        """Server exit, lease and signals; cheap, after every wake-up."""
        server = self._deeds.server
        if server is not None and not server.exit_reported and server.poll() is not None:
            server.exit_reported = True
            event = server.exit_event()
            self.log.write("server ended: exit code {exit_code}, signal {signal}".format(**event))
            self._attachment.send_event("server_exit", event)
        if self._unwinding is None:
            reason = self._reason_to_unwind()
            if reason is not None:
                self._tell_controller(reason)
                self._begin_unwind(reason, self._config.stop_s)

    def _reason_to_unwind(self) -> Optional[str]:
        if self._signals.asked_to_end:
            return "signal"
        if self._attachment.nobody_came:
            return "nobody came for it"
        return "lease over" if self._lease.over else None

    def expect_nobody(self) -> None:
        """The channel that asked for this guardian is gone already."""
        self._attachment.expect_nobody()

    def _look(self) -> None:
        try:
            self._deeds.tick()
        except (AgentError, OSError) as error:
            # a full disk must not end the guardian: the way back still works.
            self.log.write("cannot note processes: {}".format(error))

    def _tell_holder(self) -> None:
        try:
            lock.answer(self._lock_socket, self.fact())
        except OSError:
            pass

    def fact(self) -> Message:
        """The LockFact."""
        return {
            "run_id": self._config.run_id,
            "user": procs.user_name(os.geteuid()),
            "controller": self._attachment.holder,
            "guardian_pid": os.getpid(),
            "since_utc": self._since,
            "state": "unwinding" if self._unwinding is not None else self._attachment.state,
            "lease_left_s": round(max(0.0, self._lease.left_s()), 1),
            "phase": self._phase,
        }

    # -- verbs

    def _verbs(self) -> Dict[str, Verb]:
        deeds = self._deeds
        acting: Dict[str, Callable[[Message], Message]] = {
            "apply": deeds.apply,
            "lay": deeds.lay,
            "free": deeds.free,
            "put": deeds.put,
            "start": deeds.start,
            "stop": deeds.stop,
            "sample": deeds.sample,
            "restore": deeds.restore,
        }
        verbs: Dict[str, Verb] = {
            "attach": self._attach,
            "beat": self._beat,
            "goodbye": self._goodbye,
            "unwind": self._unwind_verb,
            "status": lambda link, given: self._status(),
            "server": lambda link, given: deeds.server_state(),
            "verify": lambda link, given: deeds.verify(),
            "origins": lambda link, given: deeds.origins(),
        }
        verbs.update({verb: self._acting(verb, deed) for verb, deed in acting.items()})
        return verbs

    def _acting(self, verb: str, deed: Callable[[Message], Message]) -> Verb:
        def act(link: Link, given: Message) -> Message:
            self._check_may_act(link, given)
            if self._unwinding is not None:
                raise AgentError("lost", "the guardian is giving the node back")
            if not self._deed.acquire(blocking=False):
                raise AgentError(
                    "busy", "the guardian is busy with {}; one deed at a time".format(self._phase or verb)
                )
            try:
                self._phase = verb
                self._lease.renew()
                return deed(given)
            finally:
                self._phase = ""
                self._deed.release()

        return act

    def _check_may_act(self, link: Link, given: Message) -> None:
        if not self._attachment.may_act(link) and not args.flag(given, "force"):
            raise lock.busy_error(self.fact())

    def _attach(self, link: Link, given: Message) -> Message:
        holder = args.text(given, "holder", "unknown")
        force = args.flag(given, "force")
        if (self._unwinding is not None and not force) or not self._attachment.take(link, holder, force):
            raise lock.busy_error(self.fact())
        self._lease.renew()
        self.log.write("attached: {}".format(holder))
        story = self.journal.story
        return {
            "run_id": self._config.run_id,
            "journal": self.journal.path,
            "workdir": self._config.workdir,
            "state": self.fact()["state"],
            "set": story.set_name,
            "files_changed": sorted(story.backups),
            "server": self._status()["server"],
        }

    def _beat(self, link: Link, given: Message) -> Message:
        if self._attachment.is_mine(link):
            self._lease.renew()
        return self._status()

    def _status(self) -> Message:
        server = self._deeds.server
        return {
            "lease_left_s": round(max(0.0, self._lease.left_s()), 1),
            "server": server.state() if server is not None else None,
            "lock": self.fact(),
        }

    def _goodbye(self, link: Link, given: Message) -> Message:
        detach = args.flag(given, "detach")
        if self._attachment.give_up(link, detached=detach):
            self.log.write("goodbye, {}".format("detached" if detach else "giving the node back"))
            if not detach:
                self._begin_unwind("goodbye", self._config.stop_s)
        return {}

    def _channel_ended(self, link: Link) -> None:
        if self._attachment.give_up(link):
            self.log.write(
                "the channel ended without goodbye: orphaned, lease {:.0f} s".format(self._lease.left_s())
            )

    # -- the way back

    def _unwind_verb(self, link: Link, given: Message) -> Message:
        if self._unwinding is None:  # anybody may wait for one that runs
            self._check_may_act(link, given)
        stop_s = args.seconds(given, "stop_s", self._config.stop_s)
        reason = args.text(given, "reason", "asked")
        if not self._attachment.is_mine(link):
            self._tell_controller(reason, args.text(given, "by", ""))
        self._begin_unwind(reason, stop_s).join()
        outcome = self._outcome or {}
        if "ok" in outcome:
            return dict(outcome["ok"])
        raise AgentError("dirty", outcome["error"]["message"], **outcome["error"]["details"])

    def _tell_controller(self, reason: str, by: str = "") -> None:
        """The one that is attached did not ask for this. `by`: the command of a person who did."""
        self._attachment.send_event("note", {"text": "the node is being given back: " + reason, "by": by})

    def _begin_unwind(self, reason: str, stop_s: float) -> threading.Thread:
        """Starts the unwind, once; later callers join the one that runs."""
        with self._begin:
            if self._unwinding is None:
                self.log.write("unwinding: {}".format(reason))
                self._deeds.ending.set()
                self._unwinding = threading.Thread(target=self._unwind, args=(stop_s,), name="unwind")
                self._unwinding.start()
            return self._unwinding

    def _unwind(self, stop_s: float) -> None:
        try:
            if not self._deed.acquire(timeout=stop_s + _DEED_GRACE_S):
                raise AgentError("dirty", "{} does not end".format(self._phase or "a deed"))
            self._outcome = {"ok": self._deeds.unwind(stop_s)}
            self.log.write("unwound: clean")
        except Exception as error:  # noqa: BLE001 - the lock must be given up whatever happened
            self._note_dirty(as_agent_error(error, "unwind", "dirty"))
        self._unlock()

    def _note_dirty(self, error: AgentError) -> None:
        self._outcome = {"error": error.as_json()}
        self.log.write("unwound: dirty: {}".format(error.message))

    def _unlock(self) -> None:
        """Before anybody is told that the node is free."""
        self.journal.close_file()
        try:
            os.unlink(places.guardian_socket(self._config.run_id))
        except OSError:
            pass
        self._lock_socket.close()
        self._unwound.set()
