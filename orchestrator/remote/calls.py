"""What all typed calls share: a request over the channel, its answer decoded, progress of loads handed to who waits."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from orchestrator.errors import RemoteError
from orchestrator.remote import replies
from orchestrator.remote.channel import Channel, Event
from orchestrator.remote.decoding import decode, packed

T = TypeVar("T")
Args = Mapping[str, Any]
GpuChoice = str | Sequence[int]  # "all" or indices

# Added to a limit that the node itself keeps, so that its answer arrives before we give up on it.
GRACE_S = 10.0
QUICK_S = 30.0


class Calls:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._progress: queue.SimpleQueue[Event | None] | None = None  # of the load that is waited for

    def load(
        self,
        spec: Args,
        name: str,
        timeout_s: float,
        on_progress: Callable[[Args], None] = lambda data: None,
        *,
        loadgen: str | None = None,
    ) -> replies.LoadReply:
        """Run the load generator (`loadgen`: its file's name, None: the newest there), one at a time.

        `on_progress` gets each `load_progress`, in the calling thread. RemoteError codes: `timeout`, `failed`.
        """
        args = {"spec": dict(spec), "name": name, "timeout_s": timeout_s, "loadgen": loadgen}
        progress: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._progress = progress
        try:
            future = self._channel.submit("load", args)
            future.add_done_callback(lambda _: progress.put(None))
            self._follow(progress, timeout_s + GRACE_S, on_progress)
            return decode(replies.LoadReply, future.result(), "load")
        finally:
            self._progress = None

    def decoded(self, cls: type[T], future: Future[Any], verb: str, timeout_s: float) -> T:
        """The answer to a request that was submitted earlier."""
        return decode(cls, self._channel.result(future, verb, timeout_s), verb)

    def _call(self, cls: type[T], verb: str, args: Args, timeout_s: float) -> T:
        return decode(cls, self._channel.call(verb, args, timeout_s), verb)

    def _follow(
        self, progress: queue.SimpleQueue[Event | None], limit_s: float, on_progress: Callable[[Args], None]
    ) -> None:
        """Until the answer is there. The node ends a load that runs too long; `limit_s` is for a node that does not."""
        deadline = time.monotonic() + limit_s
        try:
            while (event := progress.get(timeout=max(0.0, deadline - time.monotonic()))) is not None:
                on_progress(event.data)
        except queue.Empty:
            raise RemoteError(f"no end of the load within {limit_s:g} s", code="timeout") from None

    def _deliver_progress(self, event: Event) -> bool:
        """Whether a waiting `load` took the event."""
        waiting = self._progress
        if waiting is not None:
            waiting.put(event)
        return waiting is not None


def gpu_args(choice: GpuChoice) -> str | list[int]:
    return choice if isinstance(choice, str) else list(choice)


def content(data: bytes | None) -> dict[str, str | None]:
    return {"z": None} if data is None else {**packed(data)}
