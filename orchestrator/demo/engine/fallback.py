"""Speculate or not, step by step, on a tree that carries the dynamic-disable patch."""

from __future__ import annotations

import logging
from typing import Any


class Fallback:
    """More than `threshold` running requests: a plain one-token step. The switch is taken between two steps."""

    def __init__(self, threshold: int, worker: str, log: logging.Logger) -> None:
        self.threshold = threshold
        self._worker = worker
        self._log = log
        self._plain = False
        self._counts = dict.fromkeys(
            ("transitions", "plain_steps", "plain_tokens", "spec_steps", "spec_reqs", "spec_tokens"), 0
        )

    def decide(self, batch: int) -> bool:
        """True: this step speculates."""
        plain = batch > self.threshold
        if plain != self._plain:
            self._plain = plain
            self._counts["transitions"] += 1
            self._log.info(
                "dynspec: speculation %s bs=%d threshold=%d", "off" if plain else "on", batch, self.threshold
            )
        return not plain

    def count(self, batch: int, tokens: int, speculated: bool) -> None:
        if speculated:
            self._counts["spec_steps"] += 1
            self._counts["spec_reqs"] += batch
            self._counts["spec_tokens"] += tokens
        else:
            self._counts["plain_steps"] += 1
            self._counts["plain_tokens"] += tokens

    def state(self) -> dict[str, Any]:
        requests = self._counts["spec_reqs"]
        return {
            "worker": self._worker,
            "threshold": self.threshold,
            "mode": "plain" if self._plain else "spec",
            **self._counts,
            "accept_length": self._counts["spec_tokens"] / requests if requests else None,
        }
