"""A signal ends a command in words: what became of the node is the first question of whoever sent it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def only_reading() -> Iterator[None]:
    """Decorates a command that changes nothing on a node. SIGINT, SIGTERM and SIGHUP become `Interrupted`, once."""
    from orchestrator.runner.signals import watching_signals

    with watching_signals():
        yield
