"""What the draft model misses while steps are plain, and how it catches up (draft sync `lazy`).

Draft position p is made of the target's hidden state at p and the token at p + 1. Plain steps keep both in a ring of
`window` places per request slot, one fused copy a step and no draft forward. When speculation resumes, one draft
extend of varying length per request writes the missing draft KV, and its last output is the state that drafting
starts from: running requests lose nothing, and requests that finish during plain steps never pay for the draft at all.
A request that stays plain for longer than the window is caught up when its ring is full, all but the newest place.
What a finished request leaves in the radix cache has no draft KV for its newest positions: a later request that hits
them drafts from a hole there. Its output is the same, fewer drafts are accepted; `step` leaves no hole.

Memory: rows * window * (hidden width + 8 B), the window chosen to fit `RING_BYTES`. EAGLE-3 on an 8B model keeps
3 * 4096 * 2 B a place: 65 slots have a window of 126 steps. Extends are cut to `EXTEND_TOKENS` so that their
activations stay below those of a prefill chunk.

With the threshold at 0 no batch can ever resume, so nothing is kept; a request that is running when the threshold is
raised from 0 goes on with a hole in its draft KV: fewer drafts are accepted, the output is the same.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from . import kernels
from .compat import Compat
from .graphs import Draft

RING_BYTES = 192 << 20
MIN_WINDOW = 8
EXTEND_TOKENS = 2048

_COMPLETE, _STALE = -1, 0


class Lag:
    """Per request slot: how many of the newest draft positions are missing and in the ring. Host side only.

    -1: the draft state is complete. 0: it is stale and nothing is kept. n: the newest n positions are in the ring.
    Only slots that are behind have an entry, so that without a plain step no step costs anything here; the entry of
    a request that ended behind stays until its slot is filled again. With a grammar in the batch the scheduler
    processes a result between the preparation of a step and its launch: a request that ended there is still in the
    batch, and has no slot any more. Nothing is known of it, so it counts as stale.
    """

    def __init__(self) -> None:
        self._kept: dict[int, int] = {}

    def complete(self, reqs: list[Any]) -> None:
        """The draft just saw everything of these requests (prefill, draft extend)."""
        if self._kept:
            for req in reqs:
                self._kept.pop(req.req_pool_idx, None)

    def one_more(self, reqs: list[Any], in_ring: bool) -> int:
        """One plain step more; the largest number of kept places among `reqs`."""
        kept = self._kept
        slots = [slot for req in reqs if (slot := req.req_pool_idx) is not None]
        if not in_ring:
            kept.update(dict.fromkeys(slots, _STALE))
            return 0
        most = 0
        for slot in slots:
            count = kept[slot] = kept.get(slot, 0) + 1
            if count > most:
                most = count
        return most

    def behind(self, reqs: list[Any]) -> list[int]:
        """The indices of the requests whose draft state is not complete."""
        return [i for i, req in enumerate(reqs) if self.kept(req) != _COMPLETE] if self._kept else []

    def kept(self, req: Any) -> int:
        """-1, 0 or n, as above."""
        slot = req.req_pool_idx
        return _STALE if slot is None else self._kept.get(slot, _COMPLETE)

    def leave(self, req: Any, count: int) -> None:
        """Only the newest `count` places are still missing."""
        self._kept[req.req_pool_idx] = count


@dataclasses.dataclass
class Ring:
    """hidden [rows, window, width] and tokens int64 [rows, window] on the device."""

    hidden: Any
    tokens: Any
    window: int

    @classmethod
    def like(cls, rows: int, window: int, hidden: Any) -> Ring:
        return cls(
            torch.zeros((rows, window, hidden.shape[-1]), dtype=hidden.dtype, device=hidden.device),
            torch.zeros((rows, window), dtype=torch.int64, device=hidden.device),
            window,
        )


def window_for(rows: int, width: int, item_bytes: int, budget: int) -> int:
    """Plain steps that `budget` bytes keep for each of `rows` slots; below MIN_WINDOW lazy is not worth it."""
    return budget // (rows * (width * item_bytes + 8))


@dataclasses.dataclass
class Gap:
    """Positions [start, end) that the draft of request `index` of a batch misses, all of them in the ring."""

    index: int
    start: int
    end: int


class CatchUp:
    """Keeps what the draft misses, and runs the extends that bring it up to date."""

    def __init__(
        self, draft: Draft, compat: Compat, req_to_token: Any, ring: Ring | None, counters: dict[str, Any]
    ) -> None:
        self.draft = draft
        self.compat = compat
        self.req_to_token = req_to_token
        self.ring = ring
        self.counters = counters
        self.lag = Lag()

    def after_plain(self, batch: Any, positions: Any, hidden: Any, token_ids: Any, keep: bool) -> None:
        """Keep the state of one plain step: hidden [bs, width] at `positions` [bs] and the tokens sampled there.

        `batch.seq_lens_cpu` counts the step already.
        """
        if self.ring is None or not keep:
            self.lag.one_more(batch.reqs, in_ring=False)
            return
        kernels.keep(token_ids, hidden, batch.req_pool_indices, positions, self.ring)
        if self.lag.one_more(batch.reqs, in_ring=True) >= self.ring.window:
            full = [i for i, req in enumerate(batch.reqs) if self.lag.kept(req) >= self.ring.window]
            self._close(batch, full, leave=1, state=None)

    def before_speculation(self, batch: Any) -> None:
        """Close every gap, and put the state that drafting starts from into `batch.spec_info`."""
        stale = self.lag.behind(batch.reqs)
        if not stale:
            return
        state = batch.spec_info
        cold = [i for i in stale if self.lag.kept(batch.reqs[i]) == _STALE]
        self._start_cold(state, cold)
        self._close(batch, [i for i in stale if self.lag.kept(batch.reqs[i]) > 0], leave=0, state=state)
        self.lag.complete(batch.reqs)

    def _start_cold(self, state: Any, indices: list[int]) -> None:
        """A state that drafts nonsense safely: its relayed values are stale or were never written."""
        if not indices:
            return
        rows = _to_device(indices, state.topk_p.device)
        state.topk_p.index_fill_(0, rows, 1.0)
        state.topk_index.index_fill_(0, rows, 0)
        state.hidden_states.index_fill_(0, rows, 0)

    def _close(self, batch: Any, indices: list[int], leave: int, state: Any) -> None:
        lengths = batch.seq_lens_cpu.tolist()
        gaps = []
        for i in indices:
            req, end = batch.reqs[i], lengths[i] - leave
            gaps.append(Gap(i, lengths[i] - self.lag.kept(req), end))
            self.lag.leave(req, leave)
        for part in _parts(gaps):
            self._extend(batch, part, state)

    def _extend(self, batch: Any, gaps: list[Gap], state: Any) -> None:
        """One draft extend over `gaps`; its outputs become rows of `state` unless that is None."""
        from sglang.srt.model_executor.forward_batch_info import ForwardBatch
        from sglang.srt.speculative.spec_utils import fast_topk

        with self.draft.context():
            forward_batch = ForwardBatch.init_new(self._extend_batch(batch, gaps), self.draft.runner)
            forward_batch.return_logprob = False
            output = self.draft.runner.forward(forward_batch).logits_output
        self.counters["catchup_extends"] += 1
        self.counters["catchup_tokens"] += sum(gap.end - gap.start for gap in gaps)
        if state is None:
            return
        probabilities = torch.softmax(output.next_token_logits, dim=-1)
        topk_p, topk_index = fast_topk(probabilities, self.draft.worker.topk, dim=-1)
        rows = _to_device([gap.index for gap in gaps], topk_p.device)
        for name, value in (
            ("topk_p", topk_p),
            ("topk_index", topk_index),
            ("hidden_states", output.hidden_states),
        ):
            into = getattr(state, name)
            into.index_copy_(0, rows, value.to(into.dtype))

    def _extend_batch(self, batch: Any, gaps: list[Gap]) -> Any:
        """`batch` cut down to the requests of `gaps` and turned into an EXTEND over their missing positions."""
        from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode
        from sglang.srt.speculative.eagle_info import EagleDraftInput

        assert self.ring is not None
        device = self.ring.tokens.device
        reqs = [batch.reqs[gap.index] for gap in gaps]
        lengths = [gap.end - gap.start for gap in gaps]
        slots = [slot for req, n in zip(reqs, lengths, strict=True) for slot in [req.req_pool_idx] * n]
        positions = [p for gap in gaps for p in range(gap.start, gap.end)]
        slot, position = _to_device([slots, positions], device)
        ends, pool_rows = _to_device([[gap.end for gap in gaps], [r.req_pool_idx for r in reqs]], device)
        place = position % self.ring.window
        info = EagleDraftInput(
            hidden_states=self.ring.hidden[slot, place],
            new_seq_lens=ends,
            **{self.compat.bonus: self.ring.tokens[pool_rows, (ends - 1) % self.ring.window]},
            **dict.fromkeys(self.compat.tokens_per_request, 1),
        )
        return dataclasses.replace(
            batch,
            forward_mode=ForwardMode.EXTEND,
            input_ids=self.ring.tokens[slot, place],
            req_pool_indices=pool_rows,
            seq_lens=ends,
            orig_seq_lens=ends.to(torch.int32),
            seq_lens_cpu=torch.tensor([gap.end for gap in gaps], dtype=torch.int64),
            seq_lens_sum=sum(gap.end for gap in gaps),
            out_cache_loc=self.req_to_token[slot, position].to(torch.int64),
            extend_num_tokens=len(positions),
            extend_seq_lens=lengths,
            extend_prefix_lens=[gap.start for gap in gaps],
            extend_logprob_start_lens=[0] * len(gaps),
            return_logprob=False,
            top_logprobs_nums=None,
            token_ids_logprobs=None,
            multimodal_inputs=None,
            lora_ids=[None] * len(gaps),
            reqs=reqs,
            spec_info=info,
            capture_hidden_mode=CaptureHiddenMode.LAST,
            **dict.fromkeys(self.compat.of_prefills, None),
        )


def _parts(gaps: list[Gap]) -> list[list[Gap]]:
    """`gaps` in groups of at most EXTEND_TOKENS positions, at least one gap each."""
    parts: list[list[Gap]] = []
    room = 0
    for gap in gaps:
        size = gap.end - gap.start
        if not parts or size > room:
            parts.append([])
            room = EXTEND_TOKENS
        parts[-1].append(gap)
        room -= size
    return parts


def _to_device(values: Any, device: Any) -> Any:
    """Whole numbers as an int64 tensor on `device`, copied from pinned memory so that the host does not wait."""
    pinned = torch.device(device).type == "cuda"
    return torch.tensor(values, dtype=torch.int64, pin_memory=pinned).to(device, non_blocking=True)
