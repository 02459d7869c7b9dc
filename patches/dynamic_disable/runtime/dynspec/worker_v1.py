"""The plain decode step of EAGLEWorker: any topk, no overlap scheduler.

Nothing is allocated for a v1 decode before the worker runs, and the worker itself does what the output processor does
elsewhere: it appends tokens, checks stops, feeds grammars and attaches log probabilities, and it leaves a draft input
for the unfinished requests only. A plain step keeps all of that with one token a request; the tree (topk, steps,
draft tokens) never enters. `lazy` needs the overlap scheduler's per-request slots over time; here the draft follows
each step or not at all.
"""

from __future__ import annotations

from typing import Any

import torch

from .graphs import Draft
from .logprobs import append_logprobs
from .plain import PlainDecode


class PlainDecodeV1(PlainDecode):
    """Takes over decode steps of an EAGLEWorker while the batch is above the threshold."""

    kind = "v1"

    def __init__(self, worker: Any) -> None:
        super().__init__(worker, Draft(worker, worker.model_runner, is_v2=False))

    def decode(self, batch: Any) -> Any:
        """The result of a plain step; None for a step that speculates."""
        if batch.forward_mode.is_idle() or batch.spec_info is None:
            return None
        return self._plain_step(batch) if self.switch.decide(batch.batch_size()) else None

    def on_verified(self, verify_output: Any) -> None:
        """Count what a speculative step accepted."""
        drafts = getattr(verify_output, self.compat.verified_drafts)
        self.switch.count_verified(len(drafts), sum(drafts) + len(drafts))
        self._report()

    def _plain_step(self, batch: Any) -> Any:
        draft_input, wants_hidden = batch.spec_info, batch.return_hidden_states
        slots = self._shape_for_decode(batch, getattr(draft_input, self.compat.bonus))
        target, token_ids = self._run_target(batch)
        unfinished = self._give_tokens(batch, token_ids.tolist())
        if batch.return_logprob:
            append_logprobs(batch.reqs, target.logits_output, token_ids)
        self.switch.count_plain(len(batch.reqs))
        self.counters["plain_graph_steps"] += bool(target.can_run_cuda_graph)

        rows = None if len(unfinished) == len(batch.reqs) else _rows(unfinished, token_ids.device)
        self._leave_draft_input(batch, draft_input, target, token_ids, slots, unfinished, rows)
        batch.return_hidden_states = wants_hidden
        self._report()
        return self._result(target, token_ids)

    def _shape_for_decode(self, batch: Any, bonus: Any) -> Any:
        """Turn the batch into a DECODE of one token a request; the slots that it got."""
        from sglang.srt.mem_cache.common import alloc_for_decode
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        for req in batch.reqs:
            req.decode_batch_idx += 1
        penalties = batch.sampling_info.penalizer_orchestrator
        if penalties.is_required:
            penalties.cumulate_output_tokens(bonus.to(torch.int64))
        slots = alloc_for_decode(batch, token_per_req=1)
        for req in batch.reqs:
            req.kv_committed_len += 1
            req.kv_allocated_len = req.kv_committed_len
        batch.input_ids = bonus.to(torch.int64)
        batch.out_cache_loc = slots
        batch.seq_lens = batch.seq_lens + 1
        batch.seq_lens_cpu = batch.seq_lens_cpu + 1
        batch.seq_lens_sum = int(batch.seq_lens_cpu.sum())
        batch.forward_mode = ForwardMode.DECODE
        # Attention backends take a DECODE with spec_info for a decode of the draft model.
        batch.spec_info = None
        batch.return_hidden_states = False
        return slots

    def _run_target(self, batch: Any) -> tuple[Any, Any]:
        from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode

        worker_batch = batch.get_model_worker_batch()
        worker_batch.capture_hidden_mode = CaptureHiddenMode.FULL
        target, forward_batch = self.graphs.forward(worker_batch)
        token_ids = self.target_runner.sample(target.logits_output, forward_batch)
        # Else the mask of this step would be applied to the next verify.
        batch.sampling_info.vocab_mask = None
        return target, token_ids

    def _give_tokens(self, batch: Any, tokens: list[int]) -> list[int]:
        """Append each token, feed grammars, check stops; the indices of the requests that go on."""
        think_end = batch.model_config.think_end_id
        unfinished = []
        for i, (req, token) in enumerate(zip(batch.reqs, tokens, strict=True)):
            req.output_ids.append(token)
            if getattr(req, "require_reasoning", False) and think_end is not None:
                req.update_reasoning_tokens(token, think_end)
            req.check_finished()
            if not req.finished() and req.grammar is not None:
                req.grammar.accept_token(token)
                req.check_finished()
            if not req.finished():
                unfinished.append(i)
        return unfinished

    def _leave_draft_input(
        self,
        batch: Any,
        draft_input: Any,
        target: Any,
        token_ids: Any,
        slots: Any,
        unfinished: list[int],
        rows: Any,
    ) -> None:
        """Set batch.spec_info for the next step of the unfinished requests (`rows`; None for all)."""

        def pick(values: Any) -> Any:
            return values if rows is None else values[rows]

        tokens = pick(token_ids).to(torch.int32)
        if not unfinished:
            batch.spec_info = self._idle_draft_input()
        elif not self.feeds_draft_each_step:
            batch.spec_info = type(draft_input)(
                **{self.compat.bonus: tokens},
                topk_p=pick(draft_input.topk_p),
                topk_index=pick(draft_input.topk_index),
                hidden_states=pick(draft_input.hidden_states),
            )
        else:
            lens_cpu = batch.seq_lens_cpu if rows is None else batch.seq_lens_cpu[unfinished]
            batch.out_cache_loc = pick(slots)
            batch.spec_info = self._extend_input(
                pick(target.logits_output.hidden_states),
                tokens,
                pick(batch.seq_lens),
                lens_cpu,
                pick(batch.req_pool_indices),
            )
            with self.extend.one_token():
                following = self.worker.forward_draft_extend_after_decode(batch)
            if following is not None:  # where draft extends have an input class of their own
                batch.spec_info = following
        self._back_to_decode(batch)

    def _extend_input(self, hidden: Any, tokens: Any, lens: Any, lens_cpu: Any, pool_rows: Any) -> Any:
        """What a verify of one accepted token a request would hand to the draft extend."""
        zeros = torch.zeros_like(tokens)
        n = len(tokens)
        if self.compat.extend_input is not None:
            return self.compat.extend_input(
                hidden_states=hidden,
                num_correct_drafts=zeros,
                num_accept_tokens=zeros + 1,
                num_accept_tokens_cpu=[1] * n,
                input_ids=tokens,
                seq_lens=lens,
                seq_lens_cpu=lens_cpu,
                req_pool_indices=pool_rows,
            )
        from sglang.srt.speculative.eagle_info import EagleDraftInput

        counts = {
            "num_accepted_drafts": zeros,
            "num_accepted_tokens": zeros + 1,
            "num_accepted_drafts_cpu": [0] * n,
            "num_accepted_tokens_cpu": [1] * n,
            "accept_length": zeros,
            "accept_length_cpu": [0] * n,
        }
        return EagleDraftInput(
            **{self.compat.bonus: tokens},
            hidden_states=hidden,
            seq_lens_for_draft_extend=lens,
            seq_lens_for_draft_extend_cpu=lens_cpu,
            req_pool_indices_for_draft_extend=pool_rows,
            **{name: counts[name] for name in self.compat.accept_counts},
        )

    def _idle_draft_input(self) -> Any:
        from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
        from sglang.srt.speculative.eagle_info import EagleDraftInput

        width = getattr(EagleDraftInput, "hidden_size_for", None)
        config = self.worker.model_config
        return EagleDraftInput.create_idle_input(
            device=self.worker.device,
            hidden_size=width(self.worker)
            if width
            else getattr(config, "spec_hidden_size", config.hidden_size),
            dtype=EagleDraftInput.dtype_for(self.worker) if width else config.dtype,
            topk=self.worker.topk,
            capture_hidden_mode=CaptureHiddenMode.LAST,
        )

    def _back_to_decode(self, batch: Any) -> None:
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        batch.forward_mode = ForwardMode.DECODE

    def _result(self, target: Any, token_ids: Any) -> Any:
        from sglang.srt.managers.scheduler import GenerationBatchResult

        return GenerationBatchResult(
            logits_output=target.logits_output,
            next_token_ids=token_ids,
            can_run_cuda_graph=target.can_run_cuda_graph,
        )


def _rows(indices: list[int], device: Any) -> Any:
    return torch.tensor(indices, dtype=torch.int64, device=device)
