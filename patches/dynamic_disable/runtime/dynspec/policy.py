"""Which mode a decode step runs in, and what was counted: the one state machine of this package.

The decision is a function of the batch size and the threshold, nothing else: every tensor-parallel rank sees the
same batches in the same order and the same switch requests between the same two steps, so all ranks decide alike
without exchanging a word. Never decide on time, memory or acceptance, which differ between ranks.
"""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger(__name__)

SPECULATE, PLAIN = "speculate", "plain"


def new_counters(worker: str, threshold: int, draft_sync: str, switchable: bool) -> dict[str, Any]:
    """What `/server_info` shows as `dynspec_stats`: plain values, updated in place.

    worker            "v1" or "v2"
    threshold         the one in force
    mode              mode of the last decode step, "speculate" or "plain"
    draft_sync        "lazy", "step" or "skip"
    switchable        whether /set_internal_state may change the threshold
    transitions       changes of mode
    plain_steps, spec_steps    decode steps launched
    plain_tokens      tokens that plain steps gave to requests
    spec_reqs, spec_tokens     (request, verify step) pairs and the tokens they accepted, bonus token included
    accept_length     spec_tokens / spec_reqs: speculative steps only, None before the first
    plain_graph_steps plain steps that replayed a CUDA graph
    catchup_extends, catchup_tokens   draft extends run to catch up, and the positions they covered
    plain_graph_bs    captured batch sizes
    window            plain steps that a request's missing draft state is kept for (lazy)
    """
    return {
        "worker": worker,
        "threshold": threshold,
        "mode": SPECULATE,
        "draft_sync": draft_sync,
        "switchable": switchable,
        "transitions": 0,
        "plain_steps": 0,
        "spec_steps": 0,
        "plain_tokens": 0,
        "spec_reqs": 0,
        "spec_tokens": 0,
        "accept_length": None,
        "plain_graph_steps": 0,
        "catchup_extends": 0,
        "catchup_tokens": 0,
        "plain_graph_bs": [],
        "window": 0,
    }


class Switch:
    """Decides each decode step, remembers the mode, counts."""

    def __init__(self, worker: str, threshold: int, draft_sync: str, switchable: bool, rank: int) -> None:
        self.threshold = threshold
        self.switchable = switchable
        self.rank = rank
        self.counters = new_counters(worker, threshold, draft_sync, switchable)

    @property
    def can_resume(self) -> bool:
        """Whether any batch could speculate at the threshold in force."""
        return self.threshold > 0

    def decide(self, batch_size: int) -> bool:
        """True if the decode step of `batch_size` requests, which is launched next, is plain."""
        mode = PLAIN if batch_size > self.threshold else SPECULATE
        counters = self.counters
        if mode != counters["mode"]:
            counters["mode"] = mode
            counters["transitions"] += 1
            if self.rank == 0:
                word = "off" if mode == PLAIN else "on"
                logger.info("dynspec: speculation %s batch=%d threshold=%d", word, batch_size, self.threshold)
        counters["plain_steps" if mode == PLAIN else "spec_steps"] += 1
        return mode == PLAIN

    def count_plain(self, tokens: int) -> None:
        """`tokens` more tokens reached requests from plain steps."""
        self.counters["plain_tokens"] += tokens

    def count_verified(self, requests: int, tokens: int) -> None:
        """A verify step accepted `tokens` tokens, bonus tokens included, for `requests` requests."""
        counters = self.counters
        counters["spec_reqs"] += requests
        counters["spec_tokens"] += tokens
        if counters["spec_reqs"]:
            counters["accept_length"] = counters["spec_tokens"] / counters["spec_reqs"]

    def set_threshold(self, value: Any) -> str | None:
        """Take a new threshold from the next step on; the reason if it is refused."""
        if not self.switchable:
            return "the server was started without --enable-speculative-threshold-switch"
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            return f"the threshold must be a whole number of 0 or more, got {value!r}"
        self.threshold = self.counters["threshold"] = value
        return None
