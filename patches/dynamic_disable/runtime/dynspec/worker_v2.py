"""The plain decode step under the overlap scheduler: EAGLEWorkerV2, topk 1.

What the scheduler has done by the time a step gets here: every request has slots in req_to_token up to at least
`seq_lens + 2 * draft tokens`, so a plain step allocates nothing; `seq_lens` counts tokens whose KV is written, the
last sampled token not included; `seq_lens_cpu` is exact.

What a plain step costs beyond a server without speculation, in launches on the forward stream:
    inputs      one fused kernel (kernels.gather_inputs) where that server runs one as well
    relay       one copy of [bs] tokens into the FutureMap, as that server; none of the draft state
    draft       lazy: one fused copy into the ring; step: a draft extend; skip, or threshold 0: nothing
    strides     up to 0.5.11 the output processor reads a list with a fixed stride: one copy of [bs] tokens
and on the host: the over-allocation and the copy of `seq_lens` in EagleDraftInputV2Mixin.prepare_for_decode, which
hide behind the running forward.

In all steps, prefills and verifies too, the hidden states stay on the device unless a request asked for them. Up to
0.5.11 the v2 worker's are copied to the host each step, 24 KiB a token with an 8B EAGLE-3 target: on the stream of the
forwards, into pinned memory that is allocated while requests run (64 MiB for a prefill of 2000 tokens). From 0.5.12 on
SGLang leaves the copy out, until a request asks for hidden states: then for as long as the batch goes on.

The scheduler may prepare the next batch while this one runs: its lengths do not depend on the sampled tokens, so the
event that it waits for (`verify_done`) is recorded before the forward, not after it as by a verify step.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import torch

from . import kernels
from .draft import MIN_WINDOW, RING_BYTES, CatchUp, Ring, window_for
from .graphs import Draft
from .plain import PlainDecode

logger = logging.getLogger(__name__)


@dataclasses.dataclass
class _Relay:
    """Where the last sampled tokens of a plain step's batch are: rows `indices` [bs] of `buffer`."""

    buffer: Any
    indices: Any


def _keep_on_device(batch: Any, result: Any) -> None:
    """Take the hidden states out of a result that is about to be copied to the host, unless a request wants them."""
    if not any(getattr(req, "return_hidden_states", False) for req in batch.reqs):
        result.logits_output.hidden_states = None


def _check_plan_stream(worker: Any) -> None:
    """Raise ValueError where the plan stream of a verify does not wait for the graph before it (up to 0.5.10.post1).

    Plain and verify graphs share input buffers there: the next verify would be prepared over a plain step that runs.
    """
    if getattr(worker, "plan_stream", None) is None:
        return
    if "_draft_done_event" not in type(worker).forward_batch_generation.__code__.co_names:
        raise ValueError(
            "--speculative-disable-batch-threshold does not work with SGLANG_ENABLE_OVERLAP_PLAN_STREAM before 0.5.11"
        )


class PlainDecodeV2(PlainDecode):
    """Takes over decode steps of an EAGLEWorkerV2 while the batch is above the threshold."""

    kind = "v2"

    def __init__(self, worker: Any) -> None:
        _check_plan_stream(worker)
        super().__init__(worker, Draft(worker.draft_worker, worker.draft_worker.draft_runner, is_v2=True))
        self.req_to_token = worker.req_to_token_pool.req_to_token
        self.device_module = torch.get_device_module(worker.device)
        self.stride = worker.speculative_num_draft_tokens
        rows = self.req_to_token.shape[0]
        ring = self._new_ring(rows) if self.draft_sync == "lazy" else None
        self.catch_up = CatchUp(self.draft, self.compat, self.req_to_token, ring, self.counters)
        self._ones = torch.ones(rows, dtype=torch.int32)
        self._device_ones = self._ones.to(self.req_to_token.device)
        self._strided = torch.zeros(rows * self.stride, dtype=torch.int64, device=self.req_to_token.device)
        self._warm_up()

    # The relay between steps. The scheduler resolves a batch's futures right before it runs the batch.

    def resolve_future(self, future_map: Any, batch: Any) -> bool:
        """Decide the coming decode step. True: plain, and only the last tokens will be fetched, by the step itself."""
        draft_input = batch.spec_info
        if draft_input is None or not batch.forward_mode.is_decode():
            return False
        if not self.switch.decide(len(batch.seq_lens)):
            return False
        buffer = getattr(future_map, self.compat.bonus_buffer)
        batch.dynspec_relay = _Relay(buffer, draft_input.future_indices.indices)
        return True

    def store_future(self, future_map: Any, future_indices: Any, draft_input: Any) -> bool:
        """After a plain step that left the draft state stale: relay the sampled tokens alone."""
        if not getattr(draft_input, "dynspec_tokens_only", False):
            return False
        buffer = getattr(future_map, self.compat.bonus_buffer)
        buffer[future_indices.interval] = getattr(draft_input, self.compat.bonus)
        return True

    # The hooks in EAGLEWorkerV2.forward_batch_generation and in the output processor.

    def on_prefill(self, batch: Any) -> None:
        """A prefill, or a chunk of one, runs the draft over all its tokens."""
        self.catch_up.lag.complete(batch.reqs)

    def decode(self, batch: Any) -> Any:
        """The result of a plain step; None for a step that speculates, its draft brought up to date."""
        relay = getattr(batch, "dynspec_relay", None)
        if relay is not None:
            return self._plain_step(batch, relay)
        if batch.spec_info is not None and not batch.forward_mode.is_idle():
            self.catch_up.before_speculation(batch)
        return None

    def on_resolved(self, reqs: list[Any], result: Any, accept_lens: list[int]) -> None:
        """Count the tokens of one step for requests that were still running when they arrived."""
        counts = [
            n for req, n in zip(reqs, accept_lens, strict=True) if not (req.finished() or req.is_retracted)
        ]
        if getattr(result, "dynspec_plain", False):
            self.switch.count_plain(len(counts))
        else:
            self.switch.count_verified(len(counts), sum(counts))
        self._report()

    def on_result(self, batch: Any, result: Any) -> None:
        """A prefill or a verify is launched, and the draft has had its hidden states."""
        _keep_on_device(batch, result)

    # One plain step.

    def _plain_step(self, batch: Any, relay: _Relay) -> Any:
        positions, lens_cpu, lens_sum = batch.seq_lens, batch.seq_lens_cpu, batch.seq_lens_sum
        self._shape_for_decode(batch, relay)
        next_lens = batch.seq_lens
        launched = self.device_module.Event()
        launched.record()

        target, forward_batch = self.graphs.forward(batch)
        output = target.logits_output
        token_ids = self.target_runner.sample(output, forward_batch)
        if batch.return_logprob and output.next_token_logprobs is not None:
            # The output processor reads [request][accepted token].
            output.next_token_logprobs = output.next_token_logprobs.unsqueeze(1)

        next_input = self._next_draft_input(token_ids, next_lens, launched)
        result = self._result(target, token_ids, next_input)
        if self.feeds_draft_each_step:
            batch.seq_lens, batch.seq_lens_cpu, batch.seq_lens_sum = positions, lens_cpu, lens_sum
            self._extend_draft(batch, result)
        else:
            next_input.dynspec_tokens_only = True
            self.catch_up.after_plain(
                batch, positions, output.hidden_states, token_ids, keep=self.switch.can_resume
            )
        self._hand_over(batch, result)
        self.counters["plain_graph_steps"] += bool(target.can_run_cuda_graph)
        return result

    def _shape_for_decode(self, batch: Any, relay: _Relay) -> None:
        """Turn the batch into a DECODE of one token a request, with the sampled token counted in seq_lens."""
        from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode

        input_ids, out_cache_loc, next_lens = kernels.gather_inputs(
            relay.indices, relay.buffer, batch.req_pool_indices, self.req_to_token, batch.seq_lens
        )
        # Made on the schedule stream, read on this one: the scheduler keeps the batch, and with it these tensors,
        # until the step is over; the allocator would hand their memory out again otherwise.
        batch.dynspec_in_use = (batch.seq_lens, relay.indices)
        batch.input_ids = input_ids
        batch.out_cache_loc = out_cache_loc
        batch.seq_lens = next_lens
        batch.seq_lens_cpu = batch.seq_lens_cpu + 1
        batch.seq_lens_sum = batch.seq_lens_sum + len(next_lens)
        batch.spec_info = None
        batch.forward_mode = ForwardMode.DECODE
        batch.capture_hidden_mode = CaptureHiddenMode.FULL

    def _next_draft_input(self, token_ids: Any, next_lens: Any, launched: Any) -> Any:
        from sglang.srt.speculative.eagle_info import EagleDraftInput

        return EagleDraftInput(**{self.compat.bonus: token_ids}, new_seq_lens=next_lens, verify_done=launched)

    def _result(self, target: Any, token_ids: Any, next_input: Any) -> Any:
        from sglang.srt.managers.scheduler import GenerationBatchResult

        result = GenerationBatchResult(
            logits_output=target.logits_output,
            next_token_ids=token_ids,
            can_run_cuda_graph=target.can_run_cuda_graph,
            next_draft_input=next_input,
            accept_lens=self._device_ones[: len(token_ids)],
            **{name: getattr(target, name, None) for name in self.compat.passed_through},
        )
        result.dynspec_plain = True
        return result

    def _extend_draft(self, batch: Any, result: Any) -> None:
        """One draft extend of the sampled token, by the worker's own code; it fills result.next_draft_input."""
        with self.extend.one_token():
            self.draft.worker._draft_extend_for_decode(batch, result)
        self.catch_up.lag.complete(batch.reqs)

    def _hand_over(self, batch: Any, result: Any) -> None:
        """The shape that the output processor expects: tokens at its stride, lengths on the host already."""
        token_ids = result.next_token_ids
        result.accept_lens = self._ones[: len(token_ids)]
        _keep_on_device(batch, result)
        if self.compat.result_has_stride:
            result.speculative_num_draft_tokens = 1
            return
        # Reused each step: the copy to the host, on this stream, comes before the next step's write.
        kernels.publish(token_ids, self._strided, self.stride)
        result.next_token_ids = self._strided[: len(token_ids) * self.stride]

    # Start-up.

    def _new_ring(self, rows: int) -> Ring | None:
        """The ring for `lazy`, or None after falling back to `step`."""
        hidden = self.graphs.hidden_like
        if hidden is None:
            self._step_instead("no CUDA graph was captured for plain decode")
            return None
        window = window_for(rows, hidden.shape[-1], hidden.element_size(), RING_BYTES)
        if window < MIN_WINDOW:
            self._step_instead(
                f"{rows} request slots leave a window of {window} steps in {RING_BYTES >> 20} MiB; "
                "lower --max-running-requests"
            )
            return None
        self.counters["window"] = window
        return Ring.like(rows, window, hidden)

    def _step_instead(self, reason: str) -> None:
        logger.warning("dynspec: draft_sync=step instead of lazy: %s", reason)
        self.draft_sync = self.counters["draft_sync"] = "step"
        self.extend.capture(self.graphs.batch_sizes)

    def _warm_up(self) -> None:
        """Compile the fused kernels now, on the padding request slot, rather than in the first plain step."""
        device = self.req_to_token.device
        zeros = torch.zeros(1, dtype=torch.int64, device=device)
        for bonus in (zeros, zeros.to(torch.int32)):
            token_ids, _, positions = kernels.gather_inputs(zeros, bonus, zeros, self.req_to_token, zeros)
        ring = self.catch_up.ring
        if ring is not None:  # sampled tokens are int32 where they are not greedy
            for ids in (token_ids, token_ids.to(torch.int32)):
                kernels.keep(ids, ring.hidden[0, :1].clone(), zeros, positions, ring)
