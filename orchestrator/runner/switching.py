"""The threshold of a running server: changed when nothing runs, and believed only when every rank says so.

SGLang's own handler answers true even when it refused, so the answer counts for nothing; what holds is what
`/server_info` shows afterwards.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Protocol

from orchestrator.errors import RemoteError

IDLE_LIMIT_S = 10.0
_POLL_S = 0.2
_PATH = "/set_internal_state"
_KEY = "speculative_disable_batch_threshold"
_STATS = "dynspec_stats"


class Server(Protocol):
    """What a boot offers."""

    def flush_cache(self) -> bool:
        """Refused while requests run or wait: true is the proof that none does."""

    def post(self, path: str, body: str) -> int | None: ...

    def server_info(self) -> dict[str, Any]: ...

    def is_alive(self) -> bool: ...


def switch_threshold(server: Server, threshold: int, *, idle_limit_s: float = IDLE_LIMIT_S) -> str:
    """Returns what went wrong, "" when every rank has the new threshold."""
    deadline = time.monotonic() + idle_limit_s
    while not server.flush_cache():
        if not server.is_alive():
            return "it has ended"
        if time.monotonic() >= deadline:
            return f"it was not idle within {idle_limit_s:g} s, so its threshold was not changed"
        time.sleep(_POLL_S)
    try:
        server.post(_PATH, json.dumps({"server_args": {_KEY: threshold}}))
    except RemoteError as error:
        return f"{_PATH}: {error.message}"
    return unlike(thresholds(server.server_info()), threshold)


def thresholds(info: Mapping[str, Any]) -> tuple[object, ...]:
    """The threshold in force on each rank that `/server_info` shows; None for one that does not say."""
    states = info.get("internal_states")
    found = (
        [state.get(_STATS) for state in states if isinstance(state, Mapping)]
        if isinstance(states, list)
        else []
    )
    return tuple(stats.get("threshold") if isinstance(stats, Mapping) else None for stats in found)


def unlike(seen: tuple[object, ...], wanted: int) -> str:
    """Why `seen` does not show `wanted` everywhere; "" when it does."""
    if not seen or None in seen:
        return f"{_PATH} was asked for threshold {wanted}, and the server does not show which one is in force"
    if any(value != wanted for value in seen):
        shown = ", ".join(map(str, seen))
        return f"{_PATH} was asked for threshold {wanted}, and /server_info shows {shown}"
    return ""
