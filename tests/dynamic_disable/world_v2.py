"""The overlap scheduler around EAGLEWorkerV2: the next batch is launched before the last result is processed.

Real code of the release: FutureMap, prepare_for_decode, forward_batch_generation and the resolver, each as hooked.
Written here: the loop, the requests, the draft and verify forwards. After every step the KV cache, the lengths that
the scheduler keeps, and the outputs are compared with plain greedy decoding.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
from fake_sglang import Release
from lift import has, method
from models import (
    DRAFT_TOKENS,
    GARBAGE,
    Cache,
    DraftRunner,
    TargetRunner,
    continuation,
    next_token,
    no_context,
    start_logits,
)

PROCESSOR = "srt/managers/scheduler_output_processor_mixin.py"
WORKER = "srt/speculative/eagle_worker_v2.py"
CONTEXT = 256
VOCABULARY = 900


@dataclass(eq=False)
class Request:
    prompt: list[int]
    wanted: int
    return_logprob: bool = False
    return_hidden_states: bool = False
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    req_pool_idx: int | None = None
    row: int = 0  # what req_pool_idx was, also after the request has ended
    kv_committed_len: int = 0
    kv_allocated_len: int = 0
    decode_batch_idx: int = 0
    is_retracted: bool = False
    aborted: bool = False
    spec_verify_ct: int = 0
    spec_accepted_tokens: int = 0
    spec_accepted_drafts: int = 0
    spec_num_correct_drafts: int = 0

    def finished(self) -> bool:
        return self.aborted or len(self.output_ids) >= self.wanted

    def update_spec_acceptance_histogram(self, _):
        pass

    update_spec_correct_drafts_histogram = update_spec_acceptance_histogram


class Event:
    """A device event that knows whether the lengths it announces exist, and whether the forward had begun."""

    world = None

    def __init__(self) -> None:
        self.recorded_at = None

    def record(self) -> None:
        self.recorded_at = Event.world.forwards

    def synchronize(self) -> None:
        assert self.recorded_at is not None, "the scheduler waits for an event that nobody records"


class Batch:
    """ScheduleBatch, as far as decoding needs it."""

    def __init__(self, world: World, reqs, seq_lens, spec_info) -> None:
        self.world, self.reqs, self.seq_lens, self.spec_info = world, reqs, seq_lens, spec_info
        self.device = "cpu"
        self.seq_lens_cpu = seq_lens.clone()
        self.seq_lens_sum = 0
        self.sampling_info = SimpleNamespace(penalizer_orchestrator=SimpleNamespace(is_required=False))
        self.token_to_kv_pool_allocator = SimpleNamespace(page_size=world.cache.page_size)
        self.tree_cache = self
        self.req_to_token_pool = world.pool

    @property
    def req_pool_indices(self):
        return torch.tensor([req.row for req in self.reqs], dtype=torch.int64)

    def maybe_evict_swa(self):
        pass

    def batch_size(self) -> int:
        return len(self.reqs)

    def maybe_wait_verify_done(self):
        if self.spec_info.verify_done is not None:
            self.spec_info.verify_done.synchronize()

    def keep(self, indices: list[int]) -> None:
        self.maybe_wait_verify_done()
        if len(indices) == len(self.reqs):
            return
        at = torch.tensor(indices, dtype=torch.int64)
        self.reqs = [self.reqs[i] for i in indices]
        self.seq_lens = self.seq_lens[at]
        self.seq_lens_cpu = self.seq_lens_cpu[at]
        if self.reqs:
            self.spec_info.filter_batch(new_indices=at, has_been_filtered=False)

    def merge(self, other: Batch) -> None:
        self.spec_info.merge_batch(other.spec_info)
        self.reqs = self.reqs + other.reqs
        self.seq_lens = torch.cat([self.seq_lens, other.seq_lens])
        self.seq_lens_cpu = torch.cat([self.seq_lens_cpu, other.seq_lens_cpu])

    def worker_batch(self, mode, **more):
        fields = self.world.release.batch.__dataclass_fields__
        batch = self.world.release.batch(**dict.fromkeys(fields))
        values = {
            "forward_mode": mode,
            "reqs": self.reqs[:],
            "req_pool_indices": self.req_pool_indices,
            "seq_lens": self.seq_lens,
            "seq_lens_cpu": self.seq_lens_cpu,
            "seq_lens_sum": self.seq_lens_sum,
            "spec_info": self.spec_info,
            "return_logprob": any(req.return_logprob for req in self.reqs),
            "capture_hidden_mode": self.world.release.CaptureHiddenMode.NULL,
            "is_extend_in_batch": False,
            "sampling_info": self.sampling_info,
            "input_ids": torch.empty(0, dtype=torch.int64),
        }
        batch.__dict__.update(values | more)
        return batch


class World:
    """One server: `threshold`, `sync` (lazy, step or skip), `window` places per request in the ring."""

    def __init__(
        self,
        release: Release,
        threshold: int = 3,
        sync: str = "lazy",
        window: int = 9,
        seed: int = 0,
        page_size: int = 1,
        rows: int = 12,
        switchable: bool = False,
        graphs: tuple[int, ...] = (1, 2, 4, 8),
        grammar: bool = False,
    ) -> None:
        self.release, self.sync, self.random = release, sync, random.Random(seed)
        self.cache = Cache(rows, CONTEXT, 6000, page_size)
        self.pool = SimpleNamespace(req_to_token=self.cache.req_to_token)
        self.free_rows = list(range(1, rows))
        self.grammar, self.ended = grammar, []
        self.args = release.server_args = SimpleNamespace(
            speculative_disable_batch_threshold=threshold,
            speculative_disable_draft_sync=sync,
            enable_speculative_threshold_switch=switchable,
            speculative_algorithm="EAGLE3",
            speculative_num_steps=DRAFT_TOKENS - 1,
            speculative_num_draft_tokens=DRAFT_TOKENS,
            disable_overlap_schedule=False,
            disable_cuda_graph=not graphs,
            cuda_graph_bs=list(graphs) or [1],
            enable_return_hidden_states=False,
        )
        self.forwards = 0
        Event.world = self
        self._set_window(window, rows)
        self.worker = self._worker()
        self.dynspec = self.worker.dynspec
        self.stats = self.dynspec.counters
        self.future_map = release.future_classes()["FutureMap"](
            rows, 8192, CONTEXT, "cpu", spec_algo=SimpleNamespace(is_none=lambda: False)
        )
        self.prepare = self._prepare_for_decode()
        names = ("_resolve_spec_overlap_token_ids", "_resolve_spec_overlap_tokens")
        (name,) = (n for n in names if has(release.version, PROCESSOR, f"def {n}("))
        self.resolve = method(release.version, PROCESSOR, "SchedulerOutputProcessorMixin", name, {})
        self.waiting: list[Request] = []
        self.retracted: list[Request] = []
        self.done: list[Request] = []
        self.running: Batch | None = None
        self.last_prefill: Batch | None = None
        self.queue: list[tuple[list[Request], object, bool]] = []
        self.counted = {"plain_tokens": 0, "spec_reqs": 0, "spec_tokens": 0}

    # set-up

    def _set_window(self, window: int, rows: int) -> None:
        from sglang.srt.speculative.dynspec import draft, worker_v2

        width_bytes = 3 * 8 + 8
        worker_v2.RING_BYTES = window * rows * width_bytes
        worker_v2.MIN_WINDOW = 1
        draft.EXTEND_TOKENS = 20

    def _worker(self):
        release = self.release
        target = TargetRunner(self.cache, self.args, release)
        target.on_forward = self._on_forward
        worker = SimpleNamespace(
            server_args=self.args,
            device="cpu",
            tp_rank=0,
            gpu_id=0,
            topk=1,
            speculative_num_draft_tokens=DRAFT_TOKENS,
            speculative_algorithm=SimpleNamespace(is_standalone=lambda: False),
            plan_stream=None,
            req_to_token_pool=self.pool,
            verify=self._verify,
        )
        worker.target_worker = SimpleNamespace(
            model_runner=target,
            forward_batch_generation=lambda batch=None, **kw: (
                self._target_prefill(batch) if batch is not None else target.forward(kw["forward_batch"])
            ),
        )
        worker.draft_worker = SimpleNamespace(
            draft_runner=DraftRunner(self.cache),
            draft_tp_context=no_context,
            topk=1,
            speculative_num_steps=DRAFT_TOKENS - 1,
            speculative_num_draft_tokens=DRAFT_TOKENS,
            plan_stream=None,
            plan_stream_ctx=no_context(),
            cuda_graph_runner_for_draft_extend=SimpleNamespace(
                tokens_per_request=DRAFT_TOKENS, backend="extend"
            ),
            draft_extend_attn_backend="extend",
            draft=self._draft,
            _draft_extend_for_prefill=self._draft_prefill,
            _draft_extend_for_decode=self._draft_extend,
        )
        worker._draft_worker = worker.draft_worker
        given = {
            "CaptureHiddenMode": release.CaptureHiddenMode,
            "EagleDraftInput": release.info.EagleDraftInput,
            "speculative_moe_backend_context": no_context,
            "speculative_moe_a2a_backend_context": no_context,
            "torch": torch,
        }
        step = method(release.version, WORKER, "EAGLEWorkerV2", "forward_batch_generation", given)
        worker.step = lambda batch: step(worker, batch)
        original = torch.get_device_module
        torch.get_device_module = lambda *_: SimpleNamespace(Event=Event)
        try:
            worker.dynspec = release.runtime.attach(worker, "v2")
        finally:
            torch.get_device_module = original
        return worker

    def _prepare_for_decode(self):
        def assign(rows, req_to_token, start, end, slots, count):
            at = 0
            for row, a, b in zip(rows.tolist(), start.tolist(), end.tolist(), strict=True):
                taken = slots[at : at + b - a]
                req_to_token[row, a:b] = taken.int()
                for slot in taken.tolist():
                    assert self.cache.owner.setdefault(slot, row) == row, f"slot {slot} given twice"
                at += b - a

        sys.modules["sglang.srt.speculative.spec_utils"].assign_req_to_token_pool_func = assign
        self.release.info.EagleDraftInput.ALLOC_LEN_PER_DECODE = DRAFT_TOKENS
        given = {
            "torch": torch,
            "get_alloc_len_per_decode": lambda: DRAFT_TOKENS,
            "alloc_token_slots": lambda _, n: torch.tensor(self.cache.take_unowned(n), dtype=torch.int64),
            "get_last_loc": lambda *_: None,
            "alloc_paged_token_slots_extend": self._alloc_paged,
        }
        path = "srt/speculative/eagle_info_v2.py"
        return method(self.release.version, path, "EagleDraftInputV2Mixin", "prepare_for_decode", given)

    def _alloc_paged(self, _, cur, cur_cpu, nxt, nxt_cpu, last, needed):
        rows = [req.row for req in self.running.reqs]
        slots = [
            s
            for row, a, b in zip(rows, cur.tolist(), nxt.tolist(), strict=True)
            for s in self.cache.take(row, a, b)
        ]
        assert len(slots) == needed
        return torch.tensor(slots, dtype=torch.int64)

    # forwards

    def _on_forward(self) -> None:
        self.forwards += 1

    def _target_prefill(self, batch):
        hidden, tokens = [], []
        for req in batch.reqs:
            given = req.prompt + req.output_ids
            for position, token in enumerate(given):
                slot = int(self.cache.req_to_token[req.row, position])
                self.cache.write_target(req.row, position, slot, token)
            hidden.append([self.cache.hidden(req.row, p) for p in range(len(given))])
            tokens.append(next_token(given))
        output = SimpleNamespace(hidden_states=hidden, mm_input_embeds=None, next_token_logprobs=None)
        if batch.return_logprob:
            output.next_token_logprobs = [-float(t) for t in tokens]
        return self.release.result(logits_output=output, next_token_ids=torch.tensor(tokens))

    def _draft_prefill(self, batch, hidden, token_ids, mm_input_embeds=None):
        last = []
        for req, states, token in zip(batch.reqs, hidden, token_ids.tolist(), strict=True):
            following = [*(req.prompt + req.output_ids)[1:], token]
            for position, state in enumerate(states):
                slot = int(self.cache.req_to_token[req.row, position])
                self.cache.draft[slot] = (*state, following[position])
            last.append(states[-1])
        return self._draft_input(torch.tensor(last, dtype=torch.float64), token_ids, batch.seq_lens)

    def _draft_input(self, hidden, tokens, lengths, event=None):
        probabilities = torch.softmax(start_logits(hidden), dim=-1)
        topk_p, topk_index = torch.topk(probabilities, 1, dim=-1)
        return self.release.info.EagleDraftInput(
            **{self.release.bonus: tokens},
            topk_p=topk_p,
            topk_index=topk_index,
            hidden_states=hidden,
            new_seq_lens=lengths,
            verify_done=event,
        )

    def _draft(self, batch):
        """Draft: it starts from a token of the vocabulary, and from what the sequence is now."""
        state = batch.spec_info
        for i, req in enumerate(batch.reqs):
            row, length = req.row, int(batch.seq_lens[i])
            tokens = [*self.cache.tokens_before(row, length), int(getattr(state, self.release.bonus)[i])]
            assert int(state.topk_index[i]) in range(5), "a start token that is no token"
            if self.sync == "skip" or req in self.tainted or req.req_pool_idx is None:
                continue  # what is drafted for a request that has ended is thrown away
            want = self.cache.hidden(row, length - 1)
            got = tuple(int(x) for x in state.hidden_states[i].tolist())
            assert got == want, f"stale draft state {got}, not {want}"
            assert int(state.topk_index[i]) == want[2] % 5, "stale first draft token"
            assert float(state.topk_p[i]) > 0.9
            self.cache.check_draft(row, tokens)
        return SimpleNamespace(is_verify_input=lambda: True, draft_input=state)

    tainted: frozenset[Request] = frozenset()  # requests that ran while nothing was kept for the draft

    def _verify(self, batch):
        bonus = getattr(batch.spec_info.draft_input, self.release.bonus)
        predicted, accepted, hidden = [], [], []
        for i, req in enumerate(batch.reqs):
            row, length = req.row, int(batch.seq_lens[i])
            count = self.random.randint(1, DRAFT_TOKENS)
            token = int(bonus[i])
            for j in range(DRAFT_TOKENS):
                slot = int(self.cache.req_to_token[row, length + j])
                self.cache.write_target(row, length + j, slot, token)
                hidden.append(self.cache.hidden(row, length + j))
                token = next_token(self.cache.tokens_before(row, length + j + 1)) if j < count else GARBAGE
                predicted.append(token)
            accepted.append(count)
        self.forwards += 1
        lens = torch.tensor(accepted, dtype=torch.int32)
        event = Event()
        event.record()
        last = [i * DRAFT_TOKENS + n - 1 for i, n in enumerate(accepted)]
        predict = torch.tensor(predicted)
        output = SimpleNamespace(
            hidden_states=torch.tensor(hidden, dtype=torch.float64), next_token_logprobs=None
        )
        if batch.return_logprob:
            output.next_token_logprobs = -predict.to(torch.float64).view(-1, DRAFT_TOKENS)
        more = {}
        if "speculative_num_draft_tokens" in self.release.result.__dataclass_fields__:
            more["speculative_num_draft_tokens"] = DRAFT_TOKENS
        return self.release.result(
            logits_output=output,
            next_token_ids=predict,
            next_draft_input=self.release.info.EagleDraftInput(
                **{self.release.bonus: predict[last].int()},
                new_seq_lens=batch.seq_lens + lens,
                verify_done=event,
            ),
            accept_lens=lens,
            **more,
        )

    def _draft_extend(self, batch, result):
        """The draft over the tokens of a verify (or the one of a plain step), from the lengths before it."""
        worker = self.worker.draft_worker
        count = worker.speculative_num_draft_tokens
        assert worker.speculative_num_steps == count - 1
        assert worker.cuda_graph_runner_for_draft_extend.tokens_per_request == count
        self.release.check_extend_graph(worker)
        states, tokens = result.logits_output.hidden_states, result.next_token_ids
        assert len(tokens) == len(states) == count * len(batch.reqs)
        last = []
        for i, req in enumerate(batch.reqs):
            length = int(batch.seq_lens[i])
            assert length == int(batch.seq_lens_cpu[i])
            for j in range(count):
                slot = int(self.cache.req_to_token[req.row, length + j])
                worker.draft_runner.write(slot, states[i * count + j], int(tokens[i * count + j]))
            last.append(i * count + int(result.accept_lens[i]) - 1)
        state = self._draft_input(states[last], None, None)
        following = result.next_draft_input
        following.topk_p, following.topk_index = state.topk_p, state.topk_index
        following.hidden_states = state.hidden_states

    # the scheduler

    def add(self, count: int = 1, **more) -> None:
        for _ in range(count):
            prompt = [self.random.randrange(VOCABULARY) for _ in range(self.random.randint(2, 9))]
            self.waiting.append(Request(prompt, self.random.randint(1, 70), **more))

    def step(self) -> None:
        """One turn of event_loop_overlap: launch a batch, then process the result before it.

        With a grammar in a decode batch the order is another one: requests can end between its preparation and its
        launch, and are still in it, without a slot.
        """
        batch, is_prefill = self._next_batch()
        if self.grammar and batch is not None and not is_prefill and self.queue:
            self._process(*self.queue.pop(0))
        if batch is not None:
            result = self._run(batch, is_prefill)
            self.queue.append((batch.reqs[:], result, is_prefill))
        if len(self.queue) > (1 if batch is not None else 0):
            self._process(*self.queue.pop(0))
        # What has ended is taken by nobody before the next batch, which comes after this one on the device.
        for row, allocated in self.ended:
            self.cache.give_back(row, allocated)
            self.free_rows.append(row)
        self.ended.clear()
        # Not before the void result of the step that was in flight has been processed.
        self.waiting += self.retracted
        self.retracted.clear()

    def drain(self) -> None:
        while self.running or self.last_prefill or self.waiting or self.queue or self.retracted:
            self.step()

    def _next_batch(self):
        if self.last_prefill is not None:
            self.last_prefill.keep([i for i, r in enumerate(self.last_prefill.reqs) if not r.finished()])
            if self.last_prefill.reqs:
                if self.running is None:
                    self.running = self.last_prefill
                else:
                    self.running.merge(self.last_prefill)
            self.last_prefill = None
        if self.running is not None:
            self.running.keep(
                [i for i, r in enumerate(self.running.reqs) if not (r.finished() or r.is_retracted)]
            )
            if not self.running.reqs:
                self.running = None
        if self.waiting and self.free_rows:
            return self._prefill_batch(), True
        if self.running is None:
            return None, False
        self.prepare(self.running.spec_info, self.running)
        self._check_lengths()
        return self.running, False

    def _prefill_batch(self) -> Batch:
        reqs = []
        while self.waiting and self.free_rows:
            req = self.waiting.pop(0)
            req.row = req.req_pool_idx = self.free_rows.pop(0)
            req.is_retracted = False
            length = len(req.prompt) + len(req.output_ids)
            slots = self.cache.take(req.row, 0, length)
            self.cache.req_to_token[req.row, :length] = torch.tensor(slots, dtype=torch.int32)
            req.kv_committed_len = req.kv_allocated_len = length
            reqs.append(req)
        lengths = torch.tensor([len(r.prompt) + len(r.output_ids) for r in reqs])
        self.last_prefill = Batch(self, reqs, lengths, None)
        return self.last_prefill

    def _run(self, batch: Batch, is_prefill: bool):
        mode = self.release.ForwardMode
        worker_batch = batch.worker_batch(mode.EXTEND if is_prefill else mode.DECODE)
        before = self.forwards
        futures = self.future_map.alloc_future_indices(len(batch.reqs))
        self.future_map.resolve_future(worker_batch)
        result = self.worker.step(worker_batch)
        self.future_map.store_to_map(futures, result)
        # The copy to the host: what the device does to the buffer later is not seen.
        result.next_token_ids = result.next_token_ids.clone()
        following = result.next_draft_input
        plain = getattr(result, "dynspec_plain", False)
        if plain:
            # Recorded before the forward, or the scheduler could not prepare the next batch beside it.
            assert following.verify_done.recorded_at == before, "the scheduler waits for the forward"
        wants_hidden = any(r.return_hidden_states for r in batch.reqs)
        kept = result.logits_output.hidden_states is not None
        assert kept or not wants_hidden, "hidden states withheld from a request"
        assert wants_hidden or not kept, "hidden states copied to the host for nobody"
        batch.spec_info = following
        batch.spec_info.future_indices = futures
        batch.seq_lens = following.new_seq_lens
        self._check_restored()
        return result

    def _process(self, reqs, result, is_prefill: bool) -> None:
        if is_prefill:
            tokens = [[t] for t in result.next_token_ids.tolist()]
        else:
            self._count(reqs, result)
            tokens = self.resolve(
                SimpleNamespace(
                    draft_worker=self.worker.draft_worker,
                    model_worker=SimpleNamespace(on_verify_complete_cpu=lambda _: None),
                ),
                result,
                SimpleNamespace(reqs=reqs),
            )
        for i, req in enumerate(reqs):
            if req.finished() or req.is_retracted:
                continue
            assert tokens[i], "a step gave no token"
            if req.return_logprob and result.logits_output.next_token_logprobs is not None:
                values = result.logits_output.next_token_logprobs[i]
                values = [values] if is_prefill else values.tolist()
                req.logprobs += values[: len(tokens[i])]
            req.output_ids += tokens[i]
            reference = continuation(req.prompt, len(req.output_ids))
            assert req.output_ids == reference, f"output {req.output_ids} is not {reference}"
            if req.finished():
                self._finish(req)

    def _finish(self, req: Request) -> None:
        self.ended.append((req.row, req.kv_allocated_len))
        req.req_pool_idx = None
        self.done.append(req)

    def _count(self, reqs, result) -> None:
        lengths = [
            n
            for r, n in zip(reqs, result.accept_lens.tolist(), strict=True)
            if not (r.finished() or r.is_retracted)
        ]
        if getattr(result, "dynspec_plain", False):
            assert result.accept_lens.tolist() == [1] * len(reqs), "a plain step accepts one token"
            self.counted["plain_tokens"] += len(lengths)
        else:
            self.counted["spec_reqs"] += len(lengths)
            self.counted["spec_tokens"] += sum(lengths)

    def abort(self) -> None:
        """Abort a running request: it is in flight for one more step."""
        req = self._pick()
        if req is not None:
            req.aborted = True
            self._finish(req)

    def retract(self) -> None:
        """Take a running request's KV away; its step in flight is void, and it is prefilled again later."""
        req = self._pick()
        if req is not None:
            self.cache.give_back(req.row, req.kv_allocated_len)
            self.free_rows.append(req.row)
            req.req_pool_idx, req.is_retracted = None, True
            req.kv_committed_len = req.kv_allocated_len = 0
            self.running.keep([i for i, r in enumerate(self.running.reqs) if r is not req])
            if not self.running.reqs:
                self.running = None
            self.retracted.append(req)

    def _pick(self) -> Request | None:
        alive = [
            r
            for r in (self.running.reqs if self.running else [])
            if not (r.finished() or r.is_retracted) and r.output_ids
        ]
        return self.random.choice(alive) if alive else None

    # what must hold

    def _check_lengths(self) -> None:
        """Before a step: exact lengths on the host, and slots for a verify at the device's length."""
        batch = self.running
        assert batch.seq_lens_cpu.tolist() == batch.seq_lens.tolist()
        for req, length in zip(batch.reqs, batch.seq_lens.tolist(), strict=True):
            assert req.kv_allocated_len >= length + DRAFT_TOKENS, "no slots for the coming step"
            assert req.kv_committed_len <= length + 1

    def _check_restored(self) -> None:
        worker, target = self.worker.draft_worker, self.worker.target_worker.model_runner
        sizes = worker.speculative_num_steps, worker.speculative_num_draft_tokens
        assert sizes == (3, DRAFT_TOKENS), "sizes were not put back"
        assert target.graph_runner.tokens_per_request == DRAFT_TOKENS
        assert target.graph_runner.backend is target.attn_backend

    def check_counters(self) -> None:
        for name, value in self.counted.items():
            assert self.stats[name] == value, name

    def check_nothing_leaked(self) -> None:
        assert not self.cache.owner, f"{len(self.cache.owner)} slots leaked"
