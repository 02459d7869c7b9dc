"""A target and a draft model that notice every misplaced token, and the runners and graphs around them.

The next token is a function of all tokens before it, read back from the KV slots that the request's row of
req_to_token names: a wrong slot, a slot used twice or a length off by one changes the output or trips an assertion.
The draft model's KV remembers what it was fed, so a hole or a stale entry is seen before the next draft.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import torch

VOCAB = 997
DRAFT_TOKENS = 4
EMPTY = -1
GARBAGE = VOCAB + 1


def context_hash(tokens: list[int]) -> int:
    value = 7
    for position, token in enumerate(tokens):
        value = (value * 31 + token * (position + 1) + 3) % 1_000_003
    return value


def next_token(tokens: list[int]) -> int:
    return context_hash(tokens) % VOCAB


def continuation(prompt: list[int], count: int) -> list[int]:
    """What plain greedy decoding gives: the reference for every output."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class Cache:
    """KV slots of both models, who owns each, and what was written to it."""

    def __init__(self, rows: int, context: int, slots: int, page_size: int = 1) -> None:
        self.req_to_token = torch.zeros((rows, context), dtype=torch.int32)
        self.page_size = page_size
        self.free_pages = list(range(1, slots // page_size))
        self.owner: dict[int, int] = {}  # slot -> row of req_to_token
        self.target: dict[int, tuple[int, int]] = {}  # slot -> (position, token)
        self.draft: dict[int, tuple[int, int, int, int]] = {}  # slot -> (hidden state, token after it)

    def take(self, row: int, start: int, end: int) -> list[int]:
        """Slots for positions start..end of a row, on its last page where that has room, else on new pages."""
        slots = []
        for position in range(start, end):
            offset = position % self.page_size
            if offset:
                last = slots[-1] if slots else int(self.req_to_token[row, position - 1])
                slots.append(last + 1)
            else:
                slots.append(self.free_pages.pop(0) * self.page_size)
            assert slots[-1] not in self.owner, f"slot {slots[-1]} is owned already"
            self.owner[slots[-1]] = row
        return slots

    def take_unowned(self, count: int) -> list[int]:
        assert self.page_size == 1
        return [self.free_pages.pop(0) for _ in range(count)]

    def give_back(self, row: int, length: int) -> None:
        """Free the slots of positions 0..length of a row; each must be the row's own and freed once."""
        for slot in self.req_to_token[row, :length].tolist():
            assert self.owner.pop(slot, None) == row, f"slot {slot} is not of row {row}"
            self.target.pop(slot, None)
            self.draft.pop(slot, None)
            if slot % self.page_size == 0:
                self.free_pages.append(slot // self.page_size)
        self.req_to_token[row] = 0

    def tokens_before(self, row: int, length: int) -> list[int]:
        """The tokens of positions 0..length as the target's KV has them."""
        slots = self.req_to_token[row, :length].tolist()
        assert len(set(slots)) == length, f"row {row} names a slot twice"
        tokens = []
        for position, slot in enumerate(slots):
            found = self.target.get(slot)
            assert found is not None, f"row {row}: no target KV at position {position}"
            assert found[0] == position, f"row {row}: target KV of position {found[0]} at {position}"
            tokens.append(found[1])
        return tokens

    def write_target(self, row: int, position: int, slot: int, token: int) -> None:
        expected = int(self.req_to_token[row, position])
        assert slot == expected, (
            f"row {row} position {position}: slot {slot}, but req_to_token says {expected}"
        )
        assert self.owner.get(slot) == row, f"slot {slot} is not of row {row}"
        self.target[slot] = (position, token)

    def hidden(self, row: int, position: int) -> tuple[int, int, int]:
        tokens = self.tokens_before(row, position + 1)
        return position, tokens[-1], context_hash(tokens)

    def check_draft(self, row: int, tokens: list[int]) -> None:
        """The draft's KV of all positions before the last token is what those positions and tokens say."""
        for position in range(len(tokens) - 1):
            want = (
                position,
                tokens[position],
                context_hash(tokens[: position + 1]),
                tokens[position + 1],
            )
            got = self.draft.get(int(self.req_to_token[row, position]))
            assert got == want, f"row {row}: draft KV at position {position} is {got}, not {want}"


class Algorithm:
    """SpeculativeAlgorithm, as far as CudaGraphRunner asks."""

    def __init__(self, speculative: bool) -> None:
        self.speculative = speculative

    def is_none(self) -> bool:
        return not self.speculative


Algorithm.NONE = Algorithm(False)
Algorithm.EAGLE3 = Algorithm(True)


class GraphRunner:
    """CudaGraphRunner: what it was captured for, and that `can_run` never looks at the forward mode."""

    def __init__(self, runner, *, attn_backend=None) -> None:
        args = runner.server_args
        self.runner = runner
        self.backend = attn_backend or runner.attn_backend
        assert not self.backend.captured, "two graph runners share one attention backend"
        self.backend.captured = True
        self.tokens_per_request = DRAFT_TOKENS if runner.spec_algorithm.speculative else 1
        self.full_hidden = runner.spec_algorithm.speculative or args.enable_return_hidden_states
        self.capture_bs = sorted(args.cuda_graph_bs)
        hidden = torch.zeros((self.capture_bs[-1], 3), dtype=torch.float64)
        self.output_buffers = {size: SimpleNamespace(hidden_states=hidden[:size]) for size in self.capture_bs}

    def can_run(self, forward_batch) -> bool:
        return len(forward_batch.seq_lens) <= self.capture_bs[-1]

    def replay(self, forward_batch) -> None:
        size = len(forward_batch.seq_lens) * self.tokens_per_request
        given = forward_batch.input_ids.numel()
        if size != given:
            raise RuntimeError(f"The size of tensor a ({size}) must match the size of tensor b ({given})")
        assert self.full_hidden, "the graph has no hidden states for the draft"
        assert self.runner.attn_backend is self.backend, "the graph replays with another backend's metadata"


class TargetRunner:
    """The target's ModelRunner: plain decode, verify, prefill, all through the KV cache."""

    def __init__(self, cache: Cache, server_args, modes) -> None:
        self.cache, self.server_args, self.modes = cache, server_args, modes
        self.spec_algorithm = Algorithm.EAGLE3
        self.model_config = SimpleNamespace(is_encoder_decoder=False)
        self.attn_backend = self._get_attention_backend()
        self.graph_runner = GraphRunner(self)
        self.on_forward = lambda: None

    def _get_attention_backend(self, init_new_workspace: bool = False):
        return SimpleNamespace(captured=False)

    def forward(self, forward_batch):
        graph = self.graph_runner is not None and self.graph_runner.can_run(forward_batch)
        if graph:
            self.graph_runner.replay(forward_batch)
        if forward_batch.forward_mode.is_decode():
            output = self._decode(forward_batch)
        else:
            raise AssertionError(f"unexpected forward mode {forward_batch.forward_mode}")
        return SimpleNamespace(logits_output=output, can_run_cuda_graph=graph)

    def _decode(self, batch):
        assert batch.spec_info is None, "a DECODE with spec_info is a draft decode to attention backends"
        assert batch.capture_hidden_mode.is_full(), "no hidden states for the draft"
        assert batch.seq_lens_cpu.tolist() == batch.seq_lens.tolist(), "lengths differ on host and device"
        assert batch.seq_lens_sum == int(batch.seq_lens.sum())
        assert len(batch.input_ids) == len(batch.seq_lens) == len(batch.out_cache_loc)
        self.on_forward()
        hidden, tokens = [], []
        for row, length, slot, token in zip(
            batch.req_pool_indices.tolist(),
            batch.seq_lens.tolist(),
            batch.out_cache_loc.tolist(),
            batch.input_ids.tolist(),
            strict=True,
        ):
            self.cache.write_target(row, length - 1, slot, token)
            hidden.append(self.cache.hidden(row, length - 1))
            tokens.append(next_token(self.cache.tokens_before(row, length)))
        return SimpleNamespace(
            hidden_states=torch.tensor(hidden, dtype=torch.float64),
            next_token_logits=torch.tensor(tokens),
            next_token_logprobs=None,
        )

    def sample(self, output, forward_batch):
        if forward_batch.return_logprob:
            output.next_token_logprobs = -output.next_token_logits.to(torch.float64)
        return output.next_token_logits.clone()


class DraftRunner:
    """The draft's ModelRunner, as far as a catch-up extend goes."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.tp_group = None
        self.server_args = None
        self.extends: list[list[int]] = []

    def forward(self, batch):
        assert batch.forward_mode.name == "EXTEND"
        lengths, prefixes = batch.extend_seq_lens, batch.extend_prefix_lens
        assert batch.extend_num_tokens == sum(lengths) == len(batch.input_ids) == len(batch.out_cache_loc)
        assert [p + n for p, n in zip(prefixes, lengths, strict=True)] == batch.seq_lens.tolist()
        assert batch.seq_lens_cpu.tolist() == batch.seq_lens.tolist()
        assert batch.seq_lens_sum == sum(batch.seq_lens.tolist())
        assert [req.req_pool_idx for req in batch.reqs] == batch.req_pool_indices.tolist()
        self.extends.append(list(lengths))
        at, last = 0, []
        for row, prefix, length in zip(batch.req_pool_indices.tolist(), prefixes, lengths, strict=True):
            for position in range(prefix, prefix + length):
                slot = int(batch.out_cache_loc[at])
                assert slot == int(self.cache.req_to_token[row, position]), "draft KV into another slot"
                self.write(slot, batch.spec_info.hidden_states[at], int(batch.input_ids[at]))
                at += 1
            last.append(at - 1)
        hidden = batch.spec_info.hidden_states[last]
        return SimpleNamespace(
            logits_output=SimpleNamespace(next_token_logits=start_logits(hidden), hidden_states=hidden)
        )

    def write(self, slot: int, hidden, token: int) -> None:
        position, at, value = (int(x) for x in hidden.tolist())
        self.cache.draft[slot] = (position, at, value, token)


def start_logits(hidden):
    """Draft logits [n, 5] that single out one of five tokens by the hidden state."""
    logits = torch.zeros((len(hidden), 5), dtype=torch.float64)
    logits[torch.arange(len(hidden)), hidden[:, 2].long() % 5] = 50.0
    return logits


def fast_topk(values, topk, dim):
    return torch.topk(values, topk, dim=dim)


def no_context(*_):
    return contextlib.nullcontext()
