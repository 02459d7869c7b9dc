"""The normal scheduler around EAGLEWorker (topk 4, 2 steps, 16 draft tokens): one batch at a time.

Real code of the release: forward_batch_generation as hooked, and the draft input classes with their filters. Written
here: the loop, and a draft, verify and draft extend that do to requests, KV and lengths what the real ones do.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
from fake_sglang import Release
from lift import method
from models import Cache, DraftRunner, TargetRunner, continuation, next_token, no_context, start_logits

WORKER = "srt/speculative/eagle_worker.py"
STEPS, TREE_TOKENS, TOPK = 2, 16, 4


class Grammar:
    """Counts the tokens that it was given: each sampled token, once, in order."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def accept_token(self, token: int) -> None:
        self.seen.append(token)


@dataclass(eq=False)
class Request:
    prompt: list[int]
    wanted: int
    stop_token: int | None = None
    grammar: Grammar | None = None
    return_logprob: bool = False
    top_logprobs_num: int = 0
    token_ids_logprob: list[int] | None = None
    output_ids: list[int] = field(default_factory=list)
    output_token_logprobs_val: list[float] = field(default_factory=list)
    output_token_logprobs_idx: list[int] = field(default_factory=list)
    req_pool_idx: int | None = None
    kv_committed_len: int = 0
    kv_allocated_len: int = 0
    decode_batch_idx: int = 0
    done: bool = False
    aborted: bool = False

    def finished(self) -> bool:
        return self.done

    def check_finished(self) -> None:
        last = self.output_ids[-1]
        self.done = self.aborted or len(self.output_ids) >= self.wanted or last == self.stop_token


class Penalties:
    """Counts the tokens it was told of; required as soon as one request has penalties."""

    def __init__(self) -> None:
        self.is_required = True
        self.told: list[list[int]] = []

    def cumulate_output_tokens(self, tokens) -> None:
        assert tokens.dtype == torch.int64
        self.told.append(tokens.tolist())


class Batch:
    """ScheduleBatch, as far as the v1 worker touches it."""

    def __init__(self, world: World, reqs: list[Request]) -> None:
        self.world, self.reqs = world, reqs
        mode = world.release.ForwardMode
        self.forward_mode = mode.EXTEND
        self.is_extend_in_batch = False
        self.seq_lens = torch.tensor([len(r.prompt) for r in reqs])
        self.seq_lens_cpu = self.seq_lens.clone()
        self.req_pool_indices = torch.tensor([r.req_pool_idx for r in reqs])
        self.model_config = SimpleNamespace(think_end_id=None)
        self.sampling_info = SimpleNamespace(penalizer_orchestrator=Penalties(), vocab_mask="left over")
        self.return_hidden_states = False
        self.spec_info = None
        self.out_cache_loc = self.input_ids = self.extend_lens = None

    @property
    def return_logprob(self) -> bool:
        return any(r.return_logprob for r in self.reqs)

    def batch_size(self) -> int:
        return len(self.reqs)

    def get_model_worker_batch(self):
        fields = self.world.release.batch.__dataclass_fields__
        batch = self.world.release.batch(**dict.fromkeys(fields))
        names = "forward_mode input_ids req_pool_indices seq_lens seq_lens_cpu seq_lens_sum out_cache_loc spec_info"
        for name in names.split():
            setattr(batch, name, getattr(self, name))
        batch.reqs, batch.return_logprob = self.reqs, self.return_logprob
        batch.sampling_info = self.sampling_info
        return batch

    def drop_finished(self) -> None:
        """filter_batch(v1_spec_info_filtered=True): the worker has filtered the draft input already."""
        keep = [i for i, r in enumerate(self.reqs) if not r.finished()]
        if len(keep) < len(self.reqs):
            at = torch.tensor(keep, dtype=torch.int64)
            self.reqs = [self.reqs[i] for i in keep]
            self.seq_lens, self.seq_lens_cpu = self.seq_lens[at], self.seq_lens_cpu[at]
            self.req_pool_indices = self.req_pool_indices[at]
            if keep:
                self.spec_info.filter_batch(new_indices=at, has_been_filtered=True)
        for value in (self.spec_info.topk_p, self.spec_info.topk_index, self.spec_info.hidden_states):
            assert len(value) == len(self.reqs), "the draft input is not of the unfinished requests"

    def merge(self, other: Batch) -> None:
        self.spec_info.merge_batch(other.spec_info)
        self.reqs = self.reqs + other.reqs
        for name in ("seq_lens", "seq_lens_cpu", "req_pool_indices"):
            setattr(self, name, torch.cat([getattr(self, name), getattr(other, name)]))


class World:
    """One server with the v1 worker."""

    def __init__(self, release: Release, threshold=3, sync="step", seed=0, page_size=1, rows=12) -> None:
        self.release, self.sync, self.random = release, sync, random.Random(seed)
        self.cache = Cache(rows, 256, 6000, page_size)
        self.free_rows = list(range(1, rows))
        self.args = release.server_args = SimpleNamespace(
            speculative_disable_batch_threshold=threshold,
            speculative_disable_draft_sync=sync,
            enable_speculative_threshold_switch=False,
            speculative_algorithm="EAGLE3",
            speculative_num_steps=STEPS,
            speculative_num_draft_tokens=TREE_TOKENS,
            disable_overlap_schedule=True,
            disable_cuda_graph=False,
            cuda_graph_bs=[1, 2, 4, 8, 16],
            enable_return_hidden_states=False,
            enable_dp_attention=False,
        )
        release.alloc = self._alloc_for_decode
        self.worker = self._worker()
        self.stats = self.worker.dynspec.counters
        self.waiting: list[Request] = []
        self.finished: list[Request] = []
        self.running: Batch | None = None
        self.counted = {"plain_tokens": 0, "spec_reqs": 0, "spec_tokens": 0}

    def _worker(self):
        release = self.release
        target = TargetRunner(self.cache, self.args, release)
        target.graph_runner.tokens_per_request = TREE_TOKENS
        worker = SimpleNamespace(
            server_args=self.args,
            device="cpu",
            tp_rank=0,
            gpu_id=0,
            topk=TOPK,
            speculative_num_steps=STEPS,
            speculative_num_draft_tokens=TREE_TOKENS,
            speculative_algorithm=SimpleNamespace(is_standalone=lambda: False),
            adaptive_controller=None,
            model_runner=DraftRunner(self.cache),
            draft_model_runner=SimpleNamespace(tp_group=None),
            model_config=SimpleNamespace(hidden_size=3, spec_hidden_size=3, dtype=torch.float64),
            draft_tp_context=no_context,
            cuda_graph_runner_for_draft_extend=SimpleNamespace(
                tokens_per_request=STEPS + 1, backend="extend"
            ),
            draft_extend_attn_backend="extend",
            draft=self._draft,
            verify=self._verify,
            forward_draft_extend_after_decode=self._draft_extend,
            _draft_preprocess_idle=self._leave_idle,
        )
        worker.model_runner.model_config = worker.model_config
        worker.target_worker = SimpleNamespace(
            model_runner=target, forward_batch_generation=lambda **kw: target.forward(kw["forward_batch"])
        )
        given = {
            "GenerationBatchResult": release.result,
            "speculative_moe_backend_context": no_context,
            "speculative_moe_a2a_backend_context": no_context,
            "set_time_batch": lambda *_, **__: None,
            "get_global_tracing_enabled": lambda: False,
        }
        step = method(release.version, WORKER, "EAGLEWorker", "forward_batch_generation", given)
        worker.step = lambda batch: step(worker, batch)
        worker.dynspec = release.runtime.attach(worker, "v1")
        return worker

    # forwards

    def _alloc_for_decode(self, batch):
        """One slot per request at position seq_lens, in req_to_token; a tensor, never a tuple."""
        slots = []
        for row, length in zip(batch.req_pool_indices.tolist(), batch.seq_lens.tolist(), strict=True):
            assert length == int(batch.seq_lens_cpu[len(slots)])
            slots += self.cache.take(row, length, length + 1)
            self.cache.req_to_token[row, length] = slots[-1]
        return torch.tensor(slots, dtype=torch.int64)

    def _draft(self, batch):
        state = batch.spec_info
        bonus = getattr(state, self.release.bonus)
        assert len(bonus) == len(batch.reqs)
        for i, req in enumerate(batch.reqs):
            row, length = req.req_pool_idx, int(batch.seq_lens[i])
            assert state.topk_p[i].shape == state.topk_index[i].shape == (TOPK,)
            if self.sync == "skip":
                continue
            want = self.cache.hidden(row, length - 1)
            got = tuple(int(x) for x in state.hidden_states[i].tolist())
            assert got == want, f"stale draft state {got}, not {want}"
            self.cache.check_draft(row, [*self.cache.tokens_before(row, length), int(bonus[i])])
        return SimpleNamespace(bonus=bonus)

    def _verify(self, batch, verify_input=None):
        verify_input = verify_input or batch.spec_info
        hidden, tokens, counts, unfinished = [], [], [], []
        for i, req in enumerate(batch.reqs):
            row, start = req.req_pool_idx, int(batch.seq_lens[i])
            token, wanted, count = int(verify_input.bonus[i]), self.random.randint(1, STEPS + 1), 0
            rows = []
            while count < wanted and not req.finished():
                slot = self.cache.take(row, start + count, start + count + 1)[0]
                self.cache.req_to_token[row, start + count] = slot
                self.cache.write_target(row, start + count, slot, token)
                rows.append(self.cache.hidden(row, start + count))
                count += 1
                token = next_token(self.cache.tokens_before(row, start + count))
                req.output_ids.append(token)
                if req.grammar is not None:
                    req.grammar.accept_token(token)
                req.check_finished()
                tokens.append(token)
            req.kv_committed_len += count
            req.kv_allocated_len = req.kv_committed_len
            counts.append(count)
            if not req.finished():
                unfinished.append((i, rows, req.output_ids[-count:]))
        lens = torch.tensor(counts)
        batch.seq_lens, batch.seq_lens_cpu = batch.seq_lens + lens, batch.seq_lens_cpu + lens
        self.counted["spec_reqs"] += len(counts)
        self.counted["spec_tokens"] += sum(counts)
        rows = [r for _, rs, _ in unfinished for r in rs]
        hidden = torch.tensor(rows, dtype=torch.float64).view(-1, 3)
        kept = [i for i, _, _ in unfinished]
        following = [t for _, _, ts in unfinished for t in ts]
        extend = self._extend_input(batch, hidden, following, kept, [counts[i] for i in kept])
        per_request = [n - 1 for n in counts]
        fields = self.release.info.EagleVerifyOutput.__dataclass_fields__
        output = SimpleNamespace(**dict.fromkeys(fields))
        for name in fields:
            if name.endswith("per_req_cpu"):
                setattr(output, name, per_request)
        output.verified_id = output.accept_tokens = torch.tensor(tokens)
        logits = SimpleNamespace(hidden_states=hidden)
        if "draft_extend_input" in fields:
            output.draft_extend_input = extend
            return logits, output, False
        batch.spec_info = extend
        return logits, output, None, False

    def _extend_input(self, batch, hidden, tokens, kept, counts):
        info, at = self.release.info, torch.tensor(kept, dtype=torch.int64)
        n = torch.tensor(counts, dtype=torch.int32)
        common = (batch.seq_lens[at], batch.seq_lens_cpu[at], batch.req_pool_indices[at])
        tokens = torch.tensor(tokens, dtype=torch.int32)
        if hasattr(info, "EagleDraftExtendInput"):
            return info.EagleDraftExtendInput(
                hidden_states=hidden,
                num_correct_drafts=n - 1,
                num_accept_tokens=n,
                num_accept_tokens_cpu=counts,
                input_ids=tokens,
                seq_lens=common[0],
                seq_lens_cpu=common[1],
                req_pool_indices=common[2],
            )
        state = info.EagleDraftInput(
            **{self.release.bonus: tokens},
            hidden_states=hidden,
            seq_lens_for_draft_extend=common[0],
            seq_lens_for_draft_extend_cpu=common[1],
            req_pool_indices_for_draft_extend=common[2],
        )
        names = {
            "accept_length": n - 1,
            "accept_length_cpu": [c - 1 for c in counts],
            "num_accepted_drafts": n - 1,
            "num_accepted_tokens": n,
            "num_accepted_drafts_cpu": [c - 1 for c in counts],
            "num_accepted_tokens_cpu": counts,
        }
        for name, value in names.items():
            if name in info.EagleDraftInput.__dataclass_fields__:
                setattr(state, name, value)
        if not kept:
            self._leave_idle(batch)
            return batch.spec_info
        return state

    def _draft_extend(self, batch):
        """The draft over the accepted tokens of the unfinished requests; leaves or returns the next draft input."""
        state, worker = batch.spec_info, self.worker
        own_class = hasattr(self.release.info, "EagleDraftExtendInput")
        if own_class:
            tokens, lengths, rows = state.input_ids, state.seq_lens, state.req_pool_indices
            lengths_cpu, counts = state.seq_lens_cpu, state.num_accept_tokens_cpu
            assert (state.num_accept_tokens == state.num_correct_drafts + 1).all()
        else:
            tokens, lengths = getattr(state, self.release.bonus), state.seq_lens_for_draft_extend
            rows, lengths_cpu = (
                state.req_pool_indices_for_draft_extend,
                state.seq_lens_for_draft_extend_cpu,
            )
            drafts = getattr(state, "num_accepted_drafts_cpu", None)
            drafts = state.accept_length_cpu if drafts is None else drafts
            counts = [n + 1 for n in drafts]
        assert lengths_cpu.tolist() == lengths.tolist()
        assert (
            worker.cuda_graph_runner_for_draft_extend.tokens_per_request == worker.speculative_num_steps + 1
        )
        self.release.check_extend_graph(worker)
        assert max(counts) <= worker.speculative_num_steps + 1
        assert len(tokens) == len(state.hidden_states) == sum(counts)
        at, last = 0, []
        for row, length, count in zip(rows.tolist(), lengths.tolist(), counts, strict=True):
            for position in range(length - count, length):
                slot = int(self.cache.req_to_token[row, position])
                worker.model_runner.write(slot, state.hidden_states[at], int(tokens[at]))
                at += 1
            last.append(at - 1)
        hidden = state.hidden_states[last]
        following = self._draft_input(hidden, tokens[last])
        if own_class:
            return following
        batch.spec_info = following
        return None

    def _draft_input(self, hidden, tokens):
        topk_p, topk_index = torch.topk(torch.softmax(start_logits(hidden), dim=-1), TOPK, dim=-1)
        return self.release.info.EagleDraftInput(
            **{self.release.bonus: tokens}, topk_p=topk_p, topk_index=topk_index, hidden_states=hidden
        )

    def _leave_idle(self, batch) -> None:
        batch.spec_info = self.release.info.EagleDraftInput.create_idle_input(
            device="cpu",
            hidden_size=3,
            dtype=torch.float64,
            topk=TOPK,
            capture_hidden_mode=self.release.CaptureHiddenMode.LAST,
        )

    # the scheduler

    def add(self, count: int = 1, **more) -> None:
        for _ in range(count):
            prompt = [self.random.randrange(900) for _ in range(self.random.randint(2, 9))]
            self.waiting.append(Request(prompt, self.random.randint(1, 60), grammar=Grammar(), **more))

    def step(self) -> None:
        if self.waiting and self.free_rows:
            self._prefill()
        if self.running is None:
            return
        batch = self.running
        batch.forward_mode = self.release.ForwardMode.DECODE
        before = {id(r): len(r.output_ids) for r in batch.reqs}
        batch_reqs, plain_steps = batch.reqs, self.stats["plain_steps"]
        result = self.worker.step(batch)
        if self.stats["plain_steps"] > plain_steps:
            self._check_plain(batch, result, before)
        for req in batch_reqs:
            assert req.output_ids == continuation(req.prompt, len(req.output_ids))
            fed = req.output_ids[1:-1] if req.finished() else req.output_ids[1:]
            assert req.grammar.seen[: len(fed)] == fed, "a grammar missed a token"
            assert len(req.output_ids) > before[id(req)]
            if req.finished():
                self.cache.give_back(req.req_pool_idx, req.kv_allocated_len)
                self.free_rows.append(req.req_pool_idx)
                self.finished.append(req)
        batch.drop_finished()
        assert batch.seq_lens.tolist() == [len(r.prompt) + len(r.output_ids) - 1 for r in batch.reqs]
        assert batch.seq_lens_cpu.tolist() == batch.seq_lens.tolist()
        committed = [r.kv_committed_len for r in batch.reqs]
        assert committed == batch.seq_lens.tolist(), "a slot is not accounted for"
        assert self.worker.speculative_num_steps == STEPS
        assert self.worker.cuda_graph_runner_for_draft_extend.tokens_per_request == STEPS + 1
        if not batch.reqs:
            self.running = None

    def _check_plain(self, batch, result, before) -> None:
        self.counted["plain_tokens"] += len(before)
        assert batch.sampling_info.vocab_mask is None, "the mask would be applied to the next verify"
        assert batch.sampling_info.penalizer_orchestrator.told, "penalties were not told of the last token"
        assert batch.forward_mode.is_decode()
        assert len(result.next_token_ids) == len(before)

    def _prefill(self) -> None:
        reqs = []
        while self.waiting and self.free_rows:
            req = self.waiting.pop(0)
            req.req_pool_idx = row = self.free_rows.pop(0)
            length = len(req.prompt)
            self.cache.req_to_token[row, :length] = torch.tensor(self.cache.take(row, 0, length))
            for position, token in enumerate(req.prompt):
                slot = int(self.cache.req_to_token[row, position])
                self.cache.write_target(row, position, slot, token)
                following = [*req.prompt, next_token(req.prompt)][position + 1]
                self.cache.draft[slot] = (*self.cache.hidden(row, position), following)
            req.kv_committed_len = req.kv_allocated_len = length
            req.output_ids.append(next_token(req.prompt))
            req.check_finished()
            if req.finished():
                self.cache.give_back(row, length)
                self.free_rows.append(row)
                self.finished.append(req)
            else:
                reqs.append(req)
        if not reqs:
            return
        batch = Batch(self, reqs)
        hidden = torch.tensor(
            [self.cache.hidden(r.req_pool_idx, len(r.prompt) - 1) for r in reqs], dtype=torch.float64
        )
        batch.spec_info = self._draft_input(hidden, torch.tensor([r.output_ids[-1] for r in reqs]))
        if self.running is None:
            self.running = batch
        else:
            self.running.merge(batch)

    def drain(self) -> None:
        while self.running is not None or self.waiting:
            self.step()
