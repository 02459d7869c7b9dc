"""Who commands the guardian: one channel at a time, taken by `attach`, given up by goodbye or by its end."""

from __future__ import annotations

import threading
import time
from typing import Optional

from .wire import Link, Message

_EXPECTED_S = (
    10.0  # how long a new guardian waits for the channel that asked for it before it counts as orphaned
)


class Attachment:
    def __init__(self, holder: str) -> None:
        self.holder = holder
        self._link: Optional[Link] = None
        self._detached = False
        self._ever_taken = False
        self._expected_until = time.monotonic() + _EXPECTED_S
        self._lock = threading.Lock()

    @property
    def state(self) -> str:
        """live: a channel is attached; detached: it said goodbye and left the server on; orphaned: it just ended."""
        with self._lock:
            if self._link is not None or time.monotonic() < self._expected_until:
                return "live"
            return "detached" if self._detached else "orphaned"

    @property
    def nobody_came(self) -> bool:
        """Who asked for this guardian was gone before it stood: it has nothing to wait for."""
        with self._lock:
            return not self._ever_taken and time.monotonic() >= self._expected_until

    def expect_nobody(self) -> None:
        with self._lock:
            self._expected_until = 0.0

    def take(self, link: Link, holder: str, force: bool) -> bool:
        """False when another living channel has it and `force` is not given. The old channel is told and closed."""
        with self._lock:
            if self._link is not None and self._link is not link and not force:
                return False
            old, self._link = self._link, link
            self._ever_taken = True
            self._detached, self._expected_until = False, 0.0
            self.holder = holder
        if old is not None and old is not link:
            old.send({"event": "note", "data": {"text": "taken over by " + holder}})
            old.close()
        return True

    def is_mine(self, link: Link) -> bool:
        with self._lock:
            return self._link is link

    def may_act(self, link: Link) -> bool:
        """The attached channel, or any of the same user while nobody is attached."""
        with self._lock:
            return self._link is link or (self._link is None and time.monotonic() >= self._expected_until)

    def give_up(self, link: Link, detached: bool = False) -> bool:
        """Whether the link was the attached one."""
        with self._lock:
            if self._link is not link:
                return False
            self._link, self._detached = None, detached
            return True

    def send_event(self, name: str, data: Message) -> None:
        with self._lock:
            link = self._link
        if link is not None:
            link.send({"event": name, "data": data})
