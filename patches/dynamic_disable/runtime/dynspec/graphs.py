"""CUDA graphs of their own for plain steps.

SGLang captures only verify graphs for a speculative target, and its CudaGraphRunner.can_run never looks at the
forward mode: a plain decode batch given to it is replayed as a verify of `draft_tokens` tokens a request and fails
on the sizes. So a plain forward swaps in a runner that was captured for DECODE, one token a request, with an
attention backend of its own: capturing re-creates buffers that the verify graphs hold pointers to.

Cost: a graph per batch size that can be plain (all sizes when the threshold may be switched), the memory of one more
set of backend buffers, and the capture time, about 0.1 s a size for an 8B model. Graph memory comes from the pool
that the verify graphs use.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Iterator
from typing import Any

logger = logging.getLogger(__name__)

_MISSING = object()


@dataclasses.dataclass(frozen=True)
class Draft:
    """The object that owns the draft model: a worker of its own in v2, the EAGLE worker itself in v1."""

    worker: Any
    runner: Any
    is_v2: bool

    @contextlib.contextmanager
    def context(self) -> Iterator[None]:
        """The contexts in which SGLang's workers run every draft forward."""
        from sglang.srt.layers.moe.utils import (
            speculative_moe_a2a_backend_context,
            speculative_moe_backend_context,
        )

        with (
            self.worker.draft_tp_context(self.runner.tp_group),
            speculative_moe_backend_context(),
            speculative_moe_a2a_backend_context(),
        ):
            yield


@contextlib.contextmanager
def swapped(owner: Any, **values: Any) -> Iterator[None]:
    """Set attributes of `owner` for the duration, then put back what its own dict held."""
    before = {name: owner.__dict__.get(name, _MISSING) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


class PlainGraphs:
    """Runs plain target decodes: in a captured graph where one fits, eagerly otherwise."""

    def __init__(self, target_worker: Any, server_args: Any, takes_backend: bool) -> None:
        self.target_worker = target_worker
        self.runner = target_worker.model_runner
        self.server_args = server_args
        self.takes_backend = takes_backend
        self.graph_runner: Any = None
        self.backend = self.runner.attn_backend

    @property
    def batch_sizes(self) -> list[int]:
        """The captured batch sizes, ascending."""
        return [] if self.graph_runner is None else sorted(self.graph_runner.capture_bs)

    @property
    def hidden_like(self) -> Any:
        """A hidden-states output [bs, width] of a captured graph, for its width and type; None without graphs."""
        outputs = () if self.graph_runner is None else self.graph_runner.output_buffers.values()
        return next((output.hidden_states for output in outputs), None)

    def capture(self, lowest: int) -> None:
        """Capture DECODE graphs for the configured batch sizes from `lowest` on."""
        sizes = [size for size in self.server_args.cuda_graph_bs or () if size >= lowest]
        if not sizes:
            logger.warning(
                "dynspec: no CUDA graph batch size reaches %d (--cuda-graph-max-bs): plain decode runs without graphs",
                lowest,
            )
            return
        from sglang.srt.model_executor.cuda_graph_runner import CudaGraphRunner
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

        began = time.perf_counter()
        backend = self._new_backend()
        # Algorithm NONE: captured as DECODE with one token a request and no spec_info. Returning hidden states:
        # captured with the states (EAGLE-3 auxiliary ones included) that feed the draft.
        with (
            swapped(self.runner, spec_algorithm=SpeculativeAlgorithm.NONE),
            swapped(self.server_args, cuda_graph_bs=sizes, enable_return_hidden_states=True),
        ):
            if self.takes_backend:
                self.graph_runner = CudaGraphRunner(self.runner, attn_backend=backend)
            else:
                with swapped(self.runner, attn_backend=backend):
                    self.graph_runner = CudaGraphRunner(self.runner)
        self.backend = backend
        logger.info(
            "dynspec: plain decode graphs %s in %.1f s", self.batch_sizes, time.perf_counter() - began
        )

    def forward(self, batch: Any) -> tuple[Any, Any]:
        """One DECODE forward of a ModelWorkerBatch that is shaped for it: (result, forward batch), not sampled."""
        from sglang.srt.model_executor.forward_batch_info import ForwardBatch

        with swapped(self.runner, graph_runner=self.graph_runner, attn_backend=self.backend):
            forward_batch = ForwardBatch.init_new(batch, self.runner)
            result = self.target_worker.forward_batch_generation(
                model_worker_batch=None, forward_batch=forward_batch, is_verify=True
            )
        return result, forward_batch

    def _new_backend(self) -> Any:
        workspace = self.runner.__dict__.get("init_new_workspace", _MISSING)
        try:
            return self.runner._get_attention_backend(init_new_workspace=True)
        finally:
            if workspace is not _MISSING:
                self.runner.init_new_workspace = workspace


class OneTokenExtend:
    """Draft extends of one token a request, for draft sync `step`.

    The worker's own draft-extend graphs hold `steps + 1` tokens a request. These are captured as if the worker
    drafted zero steps, and only where SGLang captures draft-extend graphs for this backend at all.
    """

    def __init__(self, draft: Draft, server_args: Any) -> None:
        self.draft = draft
        self.server_args = server_args
        self.graph_runner: Any = None
        self.backend: Any = None

    def capture(self, sizes: list[int]) -> None:
        """Capture graphs for the batch sizes `sizes`."""
        worker = self.draft.worker
        if not sizes or worker.cuda_graph_runner_for_draft_extend is None:
            return
        from sglang.srt.speculative.draft_utils import DraftBackendFactory
        from sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner import (
            EAGLEDraftExtendCudaGraphRunner,
        )

        one = {"speculative_num_steps": 0, "speculative_num_draft_tokens": 1}
        with (
            self.draft.context(),
            swapped(worker, **one),
            swapped(self.server_args, cuda_graph_bs=list(sizes), **one),
        ):
            self.backend = DraftBackendFactory(
                self.server_args, self.draft.runner, worker.topk, 0
            ).create_draft_extend_backend()
            with swapped(worker, draft_extend_attn_backend=self.backend):
                self.graph_runner = EAGLEDraftExtendCudaGraphRunner(worker)

    @contextlib.contextmanager
    def one_token(self) -> Iterator[None]:
        """While active, the worker's own draft-extend code runs one token a request, in these graphs."""
        values = {"speculative_num_steps": 0, "cuda_graph_runner_for_draft_extend": self.graph_runner}
        if self.draft.is_v2:
            values |= {"speculative_num_draft_tokens": 1, "plan_stream": None}
            values["plan_stream_ctx"] = contextlib.nullcontext()
        if self.backend is not None:  # up to 0.5.10.post1 a replay prepares the backend that the worker names
            values["draft_extend_attn_backend"] = self.backend
        with self.draft.context(), swapped(self.draft.worker, **values):
            yield
