"""One channel to the agent: requests out, answers matched by id, events as they come, and silence noticed.

Three threads: a reader (never waits for anybody), a writer (so that a full pipe blocks no caller), and a watch that
sends the heartbeat and ends a channel on which nothing has come back for too long.
"""

from __future__ import annotations

import itertools
import json
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import ConnectionFailed, ConnectionLost, DoesNotFit, DynspecError, RemoteError
from orchestrator.plain_text import clean, clean_tree
from orchestrator.remote import bootstrap
from orchestrator.remote.bootstrap import Blob, Boot
from orchestrator.remote.transport import Pipe

PROTOCOL = 1
READ_BYTES = 65536
WRITE_BYTES = 32768
NOISE_KEPT_LINES = 20
EXIT_WAIT_S = 1.0
NO_PYTHON = "no_python"


@dataclass(frozen=True)
class Event:
    """Something the node said unasked, e.g. `server_exit`."""

    name: str
    data: Mapping[str, Any]


class Channel:
    """An agent that is being started or is running. `lost` is called once, when the channel ends without `close`."""

    def __init__(
        self,
        pipe: Pipe,
        label: str,
        *,
        on_event: Callable[[Event], None],
        on_lost: Callable[[DynspecError], None],
        silence_s: float = 25.0,
    ) -> None:
        self._pipe = pipe
        self._label = label
        self._on_event = on_event
        self._on_lost = on_lost
        self._silence_s = silence_s
        self._pending: dict[int, Future[Any]] = {}
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._ended: DynspecError | None = None
        self._closing = threading.Event()
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._noise: list[str] = []
        self._boot: Future[Boot] = Future()
        self._agent_speaks = False
        self._last_life = time.monotonic()
        for run in (self._read, self._write):
            threading.Thread(target=run, name=f"dynspec-channel{run.__name__}", daemon=True).start()

    def boot(self, timeout_s: float, python: str | None = None) -> Boot:
        """Wait for the node's first words. Raises ConnectionFailed with what it said instead, DoesNotFit: disk full."""
        try:
            return self._boot.result(timeout_s)
        except FutureTimeout:
            raise ConnectionFailed(
                f"{self._label}: the login shell did not start the agent within {timeout_s:g} s",
                details=self._said(),
                help="does a start file (.bashrc, .profile) wait for input or run something long?",
            ) from None
        except ConnectionLost as error:
            no_python = "" if python is None else bootstrap.no_python_perhaps(python)
            raise ConnectionFailed(
                error.message, details=error.details, help=error.help or no_python
            ) from error
        except RemoteError as error:
            told = bootstrap.missing_python(python) if error.code == NO_PYTHON else error.message
            raise ConnectionFailed(f"{self._label}: {told}", details=self._said()) from error

    def launch(self, boot: Boot, run: Blob) -> None:
        """Send the agent unless it is there; requests may follow at once, they wait in the pipe for it."""
        self._outbox.put(bootstrap.upload([] if boot.has(run) else [run], run))

    def watch(self, beat_s: float, beat: Callable[[], None]) -> None:
        """From now on call `beat` every `beat_s` seconds; end the channel when nothing comes back for `silence_s`."""
        self._last_life = time.monotonic()
        threading.Thread(
            target=self._watch, args=(beat_s, beat), name="dynspec-channel_watch", daemon=True
        ).start()

    def submit(self, verb: str, args: Mapping[str, Any] | None = None) -> Future[Any]:
        """Send a request. The future holds the answer's `ok`, or the RemoteError or ConnectionLost in its place."""
        future: Future[Any] = Future()
        with self._lock:
            if self._ended is not None:
                future.set_exception(self._ended)
                return future
            number = next(self._ids)
            self._pending[number] = future
            message = json.dumps({"id": number, "verb": verb, "args": dict(args or {})})
            self._outbox.put(message.encode("ascii") + b"\n")
        return future

    def call(self, verb: str, args: Mapping[str, Any] | None = None, timeout_s: float = 60.0) -> Any:
        """Send a request and wait for its answer. Raises RemoteError (code `timeout` when none comes in time)."""
        return self.result(self.submit(verb, args), verb, timeout_s)

    def result(self, future: Future[Any], verb: str, timeout_s: float) -> Any:
        try:
            return future.result(timeout_s)
        except FutureTimeout:
            if future.done():  # the answer itself was a time-out
                raise
            raise RemoteError(
                f"{self._label}: no answer to {verb!r} within {timeout_s:g} s", code="timeout"
            ) from None

    def close(self) -> None:
        """End the agent's stdin, and with it the agent. Pending requests end with ConnectionLost."""
        self._closing.set()
        self._outbox.put(None)
        self._fail(ConnectionLost(f"{self._label}: the channel was closed"))
        self._pipe.close()

    def _read(self) -> None:
        buffer = bytearray()
        try:
            while data := self._pipe.read(READ_BYTES):
                self._last_life = time.monotonic()
                buffer += data
                if b"\n" not in data:
                    continue
                *lines, rest = buffer.split(b"\n")
                buffer = bytearray(rest)
                for line in lines:
                    self._take(bytes(line))
        except DynspecError as error:
            self._fail(error)
            return
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            # Whoever waits must hear of it, whatever the other end sends.
            told = f"{self._label}: the agent's channel carries an answer of an unknown shape: {error!r:.200}"
            self._fail(ConnectionLost(told))
            return
        if buffer:
            self._note(bytes(buffer))
        self._fail(self._end_of_stream())

    def _take(self, line: bytes) -> None:
        if not self._agent_speaks:
            self._take_first_words(line)
        elif line:
            self._take_message(line)

    def _take_first_words(self, line: bytes) -> None:
        failed = bootstrap.marked(line, bootstrap.FAIL_MARKER)
        if isinstance(failed, dict):
            message = failed.get("message")
            if failed.get("code") == bootstrap.NO_SPACE:
                raise DoesNotFit(
                    f"{self._label}: dynspec's agent cannot be stored below ~/.dynspec: {clean(str(message))}",
                    help=bootstrap.FREE_SOME_SPACE,
                )
            raise RemoteError(clean(str(message)), code="failed" if message else NO_PYTHON)
        boot = Boot.parse(line)
        agent = bootstrap.marked(line, bootstrap.AGENT_MARKER)
        if boot is not None and not self._boot.done():
            self._boot.set_result(boot)
        elif isinstance(agent, dict) and self._boot.done():
            if agent.get("protocol") != PROTOCOL:
                raise ConnectionFailed(
                    f"{self._label}: the agent speaks protocol {agent.get('protocol')}, not {PROTOCOL}",
                    help="remove ~/.dynspec/agent there; the next connection stores the right one",
                )
            self._agent_speaks = True
        else:
            self._note(line)

    def _take_message(self, line: bytes) -> None:
        try:
            message = clean_tree(json.loads(line))
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            text = line[:200].decode("utf-8", "replace")
            raise ConnectionLost(f"{self._label}: the agent's channel carries foreign output: {text!r}")
        if "event" in message:
            self._on_event(Event(str(message["event"]), message.get("data") or {}))
            return
        with self._lock:
            future = self._pending.pop(message.get("id", 0), None)
        if future is not None:
            _settle(future, message)

    def _write(self) -> None:
        try:
            while (data := self._outbox.get()) is not None:
                for start in range(0, len(data), WRITE_BYTES):
                    self._pipe.write(data[start : start + WRITE_BYTES])
                    if len(data) > WRITE_BYTES:
                        # A long upload over a slow link is life; a heartbeat that fits into a buffer is not.
                        self._last_life = time.monotonic()
        except DynspecError as error:
            # The reader knows more of a peer that has ended (exit status, last words); it gets to say so first.
            self._closing.wait(EXIT_WAIT_S)
            self._fail(error)

    def _watch(self, beat_s: float, beat: Callable[[], None]) -> None:
        due = time.monotonic()
        step_s = min(beat_s, self._silence_s) / 4
        while not self._closing.wait(step_s):
            now = time.monotonic()
            if now - self._last_life > self._silence_s:
                self._fail(
                    ConnectionLost(
                        f"{self._label} has not answered for {self._silence_s:g} s: frozen, or the network is gone",
                        help="what runs there goes on until its lease ends; then the node restores itself",
                    )
                )
                return
            if now >= due:
                due = now + beat_s
                beat()

    def _fail(self, error: DynspecError) -> None:
        with self._lock:
            if self._ended is not None:
                return
            self._ended = error
            pending: list[Future[Any]] = [self._boot, *self._pending.values()]
            self._pending.clear()
        lost = not self._closing.is_set()
        self._closing.set()
        self._outbox.put(None)
        for future in pending:
            _fail_future(future, error)
        if lost:
            self._on_lost(error)

    def _end_of_stream(self) -> ConnectionLost:
        status = self._pipe.exit_status(EXIT_WAIT_S)
        how = "" if status is None else f" (exit status {status})"
        what = (
            "the agent's channel ended"
            if self._agent_speaks
            else "the login shell ended before the agent ran"
        )
        return ConnectionLost(f"{self._label}: {what}{how}", details=self._said())

    def _said(self) -> tuple[str, ...]:
        lines = [*self._noise, *self._pipe.stderr_tail().splitlines()]
        return tuple(f"it said: {line}" for line in lines[-NOISE_KEPT_LINES:] if line.strip())

    def _note(self, line: bytes) -> None:
        self._noise.append(clean(line.decode("utf-8", "replace")))
        del self._noise[:-NOISE_KEPT_LINES]


def _settle(future: Future[Any], message: Mapping[str, Any]) -> None:
    error = message.get("error")
    if error is None:
        future.set_result(message.get("ok"))
        return
    if not isinstance(error, dict):
        error = {"message": str(error)}
    data = error.get("details")
    fault = data.get("fault") if isinstance(data, dict) else None  # the agent's traceback, to be shown whole
    future.set_exception(
        RemoteError(
            str(error.get("message", "the node gave no reason")),
            code=str(error.get("code", "failed")),
            details=tuple(map(str, fault)) if isinstance(fault, list) else (),
            data=data if isinstance(data, dict) else None,
        )
    )


def _fail_future(future: Future[Any], error: DynspecError) -> None:
    try:
        future.set_exception(error)
    except InvalidStateError:
        pass
