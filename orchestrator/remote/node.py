"""A connected node: `Node.connect(...)`, then the typed calls of `verbs.py`, files and ports beside them."""

from __future__ import annotations

import queue
import shlex
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Self

from orchestrator.errors import DynspecError
from orchestrator.remote import bootstrap, replies
from orchestrator.remote.bootstrap import Blob, Boot
from orchestrator.remote.channel import Channel, Event
from orchestrator.remote.fetch import Fetched, FetchFile, Sink, fetch
from orchestrator.remote.replies import decode
from orchestrator.remote.transport import ConnectSettings, Transport, open_transport
from orchestrator.remote.verbs import GRACE_S, Verbs


class Node(Verbs):
    """A connected node with its agent running. Close it, or use it as a context."""

    def __init__(self, transport: Transport, channel: Channel, boot: Boot, run: Blob) -> None:
        super().__init__(channel)
        self._transport = transport
        self._boot = boot
        self._agent_path = f"{boot.home}/agent/{run.name}"
        self.events: queue.SimpleQueue[Event | DynspecError] = queue.SimpleQueue()
        """Events nobody waits for elsewhere, in order; a ConnectionLost is the last one when the channel breaks."""
        self.last_beat: replies.Beat | None = None

    @classmethod
    def connect(
        cls, target: str, *, settings: ConnectSettings, blobs: Sequence[Blob], python: str | None = None
    ) -> Self:
        """Connect, start the agent (the first of `blobs`; all are put on the node), begin the heartbeat.

        `python` is the interpreter to try first for the agent. Raises UsageError or ConnectionFailed.
        """
        transport = open_transport(target, settings)
        # A node that freezes between two answers would hold the calls below for ever; closing the transport frees them.
        watchdog = threading.Timer(settings.timeout_s + GRACE_S, transport.close)
        watchdog.daemon = True
        watchdog.start()
        try:
            return cls._start(transport, settings, blobs, python)
        except BaseException:
            transport.close()
            raise
        finally:
            watchdog.cancel()

    @classmethod
    def _start(
        cls, transport: Transport, settings: ConnectSettings, blobs: Sequence[Blob], python: str | None
    ) -> Self:
        node: Self | None = None
        early: list[Event] = []

        def on_event(event: Event) -> None:
            early.append(event) if node is None else node._dispatch(event)

        def on_lost(error: DynspecError) -> None:
            transport.close()
            if node is not None:
                node._lost(error)

        pipe = transport.execute(bootstrap.boot_command(python))
        channel = Channel(
            pipe, transport.label, on_event=on_event, on_lost=on_lost, silence_s=settings.silence_s
        )
        boot = channel.boot(settings.timeout_s, python)
        channel.launch(boot, blobs, blobs[0])
        node = cls(transport, channel, boot, blobs[0])
        for event in early:
            node._dispatch(event)
        channel.watch(settings.beat_s, node._beat)
        return node

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def label(self) -> str:
        return self._transport.label

    @property
    def restore_by_hand(self) -> str:
        """What a person with only ssh types to put the node back."""
        words = shlex.join([self._boot.executable, self._agent_path, "restore"])
        return words if self.label == "local" else f"ssh {self.label} {shlex.quote(words)}"

    def close(self) -> None:
        """End the channel and the connection. What the guardian holds goes on as goodbye, or its lease, says."""
        self._channel.close()
        self._transport.close()

    def ready(self, timeout_s: float) -> None:
        """Wait until the agent speaks. No call needs it; raises ConnectionFailed for an agent that never does."""
        self._channel.ready(timeout_s)

    # -- beside the channel

    def fetch(self, files: Sequence[FetchFile], sink: Sink) -> tuple[Fetched, ...]:
        """Bulk files over a second channel. The heartbeat of the first one ends it when the node freezes."""
        pipe = self._transport.execute(bootstrap.fetch_command(self._boot.executable, self._agent_path))
        try:
            return fetch(pipe, self.label, files, sink)
        finally:
            pipe.close()

    def forward(self, port: int) -> AbstractContextManager[int]:
        """A local port that reaches `port` on the node's loopback."""
        return self._transport.forward(port)

    def _beat(self) -> None:
        self._channel.submit("beat").add_done_callback(self._on_beat)

    def _on_beat(self, future: Future[Any]) -> None:
        if future.exception() is None:
            self.last_beat = decode(replies.Beat, future.result(), "beat")

    def _dispatch(self, event: Event) -> None:
        if event.name != "load_progress" or not self._deliver_progress(event):
            self.events.put(event)

    def _lost(self, error: DynspecError) -> None:
        self.events.put(error)
