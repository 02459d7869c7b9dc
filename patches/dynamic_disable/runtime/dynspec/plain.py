"""What both workers' plain halves share: set-up, the start-up line, the counters' way out."""

from __future__ import annotations

import logging
from typing import Any

from .arguments import check_model, check_server_args, draft_sync_of
from .compat import probe
from .graphs import Draft, OneTokenExtend, PlainGraphs
from .metrics import metrics_for
from .policy import Switch

logger = logging.getLogger(__name__)


class PlainDecode:
    """The plain-decode half of one EAGLE worker."""

    kind = ""

    def __init__(self, worker: Any, draft: Draft) -> None:
        args = worker.server_args
        check_server_args(args)
        self.worker = worker
        self.server_args = args
        self.target_worker = worker.target_worker
        self.target_runner = worker.target_worker.model_runner
        check_model(self.target_runner)
        self.compat = probe()
        self.draft = draft
        self.draft_sync = draft_sync_of(args, self.target_runner)
        self.switch = Switch(
            self.kind,
            args.speculative_disable_batch_threshold,
            self.draft_sync,
            args.enable_speculative_threshold_switch,
            worker.tp_rank,
        )
        self.counters = self.switch.counters
        self.graphs = PlainGraphs(self.target_worker, args, self.compat.graph_takes_backend)
        self.extend = OneTokenExtend(draft, args)
        if not args.disable_cuda_graph:
            self._capture()
        self.metrics = metrics_for(args, worker.tp_rank)

    @property
    def feeds_draft_each_step(self) -> bool:
        """Whether the draft runs after each plain step; pointless while no batch can ever speculate."""
        return self.draft_sync == "step" and self.switch.can_resume

    def announce(self) -> None:
        """Show the counters in /server_info, and log the start-up line of this rank."""
        from sglang.srt.server_args import get_global_server_args

        # get_internal_state answers with vars() of the server arguments.
        get_global_server_args().dynspec_stats = self.counters
        self._report()
        logger.info(
            "dynspec: ready rank=%d worker=%s threshold=%d draft_sync=%s window=%d switch=%s graphs=%s",
            self.switch.rank,
            self.kind,
            self.switch.threshold,
            self.draft_sync,
            self.counters["window"],
            "on" if self.switch.switchable else "off",
            self.graphs.batch_sizes,
        )

    def resolve_future(self, future_map: Any, batch: Any) -> bool:
        """Only the overlap scheduler relays futures; see PlainDecodeV2."""
        return False

    def store_future(self, future_map: Any, future_indices: Any, draft_input: Any) -> bool:
        """Only the overlap scheduler relays futures; see PlainDecodeV2."""
        return False

    def on_resolved(self, reqs: list[Any], result: Any, accept_lens: list[int]) -> None:
        """Only the overlap scheduler resolves results later; see PlainDecodeV2."""

    def _capture(self) -> None:
        lowest = 1 if self.switch.switchable else self.switch.threshold + 1
        self.graphs.capture(lowest)
        self.counters["plain_graph_bs"] = self.graphs.batch_sizes
        if self.draft_sync == "step":
            self.extend.capture(self.graphs.batch_sizes)

    def _report(self) -> None:
        if self.metrics is not None:
            self.metrics.update(self.counters)
