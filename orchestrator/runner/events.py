"""What a run tells: every event goes to the run folder (once there is one) and to listeners (screen, JSON lines)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.redact import Redactor
from orchestrator.store import RunStore, plain, utc_now

Listener = Callable[[Mapping[str, Any]], None]  # one event: {"t", "event", ...}


class Events:
    """Fan-out of events. Until `attach` they are kept, so that events.jsonl starts with the connection."""

    def __init__(
        self, listeners: tuple[Listener, ...], redact: Redactor, watchers: tuple[Listener, ...] = ()
    ) -> None:
        """`watchers` get what passes and is never stored; see `pulse`."""
        self._listeners = listeners
        self._watchers = watchers
        self._redact = redact
        self._early: list[dict[str, Any]] = []
        self._store: RunStore | None = None
        self._forgiving = False

    def attach(self, store: RunStore) -> None:
        self._store = store
        for record in self._early:
            store.event(record.pop("event"), record)
        self._early.clear()

    def forgive(self) -> None:
        """From now on a full disk or a closed screen costs the event, and nothing else: the node is given back."""
        self._forgiving = True

    def emit(self, event: str, **data: Any) -> None:
        """Raises OSError when the run folder or a listener cannot take it, until `forgive`."""
        record: dict[str, Any] = {"t": utc_now(), "event": event, **plain(data)}
        safe = self._redact.tree(record)
        assert isinstance(safe, dict)
        self._deliver(lambda: self._keep(event, data, record))
        for listener in self._listeners:
            self._deliver(lambda listener=listener: listener(safe))  # type: ignore[misc]

    def phase(self, name: str, text: str) -> None:
        self.emit("phase", phase=name, text=text)

    def note(self, text: str) -> None:
        self.emit("note", text=text)

    @property
    def watched(self) -> bool:
        return bool(self._watchers)

    def pulse(self, **data: Any) -> None:
        """How things stand right now, for screens that draw. May come from any thread."""
        safe = self._redact.tree({"t": utc_now(), "event": "pulse", **plain(data)})
        assert isinstance(safe, dict)
        for watcher in self._watchers:
            watcher(safe)

    def _keep(self, event: str, data: Mapping[str, Any], record: dict[str, Any]) -> None:
        if self._store is None:
            self._early.append(dict(record))
        else:
            self._store.event(event, data)

    def _deliver(self, deed: Callable[[], None]) -> None:
        try:
            deed()
        except OSError:
            if not self._forgiving:
                raise
