"""A connected node: `Node.connect(...)`, then the calls of `reading.py` and `acting.py`; files and ports beside."""

from __future__ import annotations

import os
import queue
import shlex
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Self

from orchestrator.errors import DynspecError
from orchestrator.model.target import Target
from orchestrator.remote import bootstrap, replies
from orchestrator.remote.acting import ActingVerbs
from orchestrator.remote.bootstrap import Blob, Boot
from orchestrator.remote.calls import GRACE_S, Args
from orchestrator.remote.channel import Channel, Event
from orchestrator.remote.decoding import decode
from orchestrator.remote.fetch import Fetched, FetchFile, Sink, fetch
from orchestrator.remote.reading import ReadingVerbs
from orchestrator.remote.transport import ConnectSettings, Pipe, Transport, open_transport
from orchestrator.remote.upload import put

CLOSE_LIMIT_S = 2.0


class Node(ReadingVerbs, ActingVerbs):
    """A connected node with its agent running. Close it, or use it as a context."""

    def __init__(self, transport: Transport, pipe: Pipe, silence_s: float) -> None:
        """Use `connect`. `pipe` runs the boot command."""
        self.events: queue.SimpleQueue[Event | DynspecError] = queue.SimpleQueue()
        """Events nobody waits for elsewhere, in order; a ConnectionLost is the last one when the channel breaks."""
        self._transport = transport
        super().__init__(
            Channel(pipe, transport.label, on_event=self._dispatch, on_lost=self._lost, silence_s=silence_s)
        )
        self._boot: Boot | None = None
        self._agent_path = ""
        self._ssh: tuple[str, ...] = ()
        self._loadgen: str | None = None
        self._pending_blobs: list[Blob] = []
        self._put_lock = threading.Lock()
        self.last_beat: replies.Beat | None = None

    @classmethod
    def connect(
        cls, target: str, *, settings: ConnectSettings, blobs: Sequence[Blob], python: str | None = None
    ) -> Self:
        """Connect, start the agent (the first of `blobs`), begin the heartbeat; does not wait for the agent to speak.

        The other blobs go up when they are first needed. `python` is the interpreter to try first for the agent.
        Raises UsageError or ConnectionFailed.
        """
        transport = open_transport(target, settings)
        # A node that freezes between two answers would hold the calls below for ever; closing the transport frees them.
        watchdog = threading.Timer(settings.timeout_s + GRACE_S, transport.close)
        watchdog.daemon = True
        watchdog.start()
        try:
            node = cls(transport, transport.execute(bootstrap.boot_command(python)), settings.silence_s)
            node._ssh = ssh_words(Target.parse(target), settings.ssh_config)
            node._launch(settings, blobs, python)
            return node
        except BaseException:
            transport.close()
            raise
        finally:
            watchdog.cancel()

    def _launch(self, settings: ConnectSettings, blobs: Sequence[Blob], python: str | None) -> None:
        boot = self._channel.boot(settings.timeout_s, python)
        self._channel.launch(boot, blobs[0])
        self._boot = boot
        self._agent_path = f"{boot.home}/agent/{blobs[0].name}"
        self._loadgen = next((blob.name for blob in blobs if blob.name.startswith("loadgen-")), None)
        self._pending_blobs = [blob for blob in blobs[1:] if not boot.has(blob)]
        self._channel.watch(settings.beat_s, self._beat)

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
        there = shlex.join([self._python, self._agent_path, "restore"])
        return shlex.join([*self._ssh, there]) if self._ssh else there

    def close(self) -> None:
        """End the channel and the connection. What the guardian holds goes on as goodbye, or its lease, says."""
        # A polite end needs a peer that takes data; one that does not is dropped.
        rescue = threading.Timer(CLOSE_LIMIT_S, self._transport.close)
        rescue.daemon = True
        rescue.start()
        try:
            self._channel.close()
        finally:
            rescue.cancel()
            self._transport.close()

    # -- beside the channel

    def put_blobs(self) -> None:
        """Send the blobs that the node lacks, over a second channel; at the latest a `load` does so."""
        with self._put_lock:
            if not self._pending_blobs:
                return
            pipe = self._transport.execute(bootstrap.boot_command(self._python))
            try:
                put(pipe, self.label, self._pending_blobs)
            finally:
                pipe.close()
            self._pending_blobs = []

    def load(
        self,
        spec: Args,
        name: str,
        timeout_s: float,
        on_progress: Callable[[Args], None] = lambda data: None,
        *,
        loadgen: str | None = None,
    ) -> replies.LoadReply:
        self.put_blobs()
        return super().load(spec, name, timeout_s, on_progress, loadgen=loadgen or self._loadgen)

    def fetch(self, files: Sequence[FetchFile], sink: Sink) -> tuple[Fetched, ...]:
        """Bulk files over a second channel. The heartbeat of the first one ends it when the node freezes."""
        pipe = self._transport.execute(bootstrap.fetch_command(self._python, self._agent_path))
        try:
            return fetch(pipe, self.label, files, sink)
        finally:
            pipe.close()

    def forward(self, port: int) -> AbstractContextManager[int]:
        """A local port that reaches `port` on the node's loopback."""
        return self._transport.forward(port)

    @property
    def _python(self) -> str:
        assert self._boot
        return self._boot.executable

    def _beat(self) -> None:
        self._channel.submit("beat").add_done_callback(self._on_beat)

    def _on_beat(self, future: Future[Any]) -> None:
        try:
            self.last_beat = decode(replies.Beat, future.result(), "beat")
        except DynspecError:
            return  # a lost channel says so by itself; a guardian that is going does not answer

    def _dispatch(self, event: Event) -> None:
        if event.name != "load_progress" or not self._deliver_progress(event):
            self.events.put(event)

    def _lost(self, error: DynspecError) -> None:
        self._transport.close()
        self.events.put(error)


def ssh_words(target: Target, ssh_config: str | None) -> tuple[str, ...]:
    """How the OpenSSH client is called for a node, its command left out; no words for `local`."""
    if target.is_local:
        return ()
    config = () if ssh_config is None else ("-F", os.path.expanduser(ssh_config))
    # As user@host:port it would be a part of the host's name.
    port = () if target.port is None else ("-p", str(target.port))
    return ("ssh", *config, *port, f"{target.user}@{target.host}" if target.user else target.host)
