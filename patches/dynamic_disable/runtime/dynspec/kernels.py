"""The two fused kernels of the v2 plain step, each with a plain torch twin for devices without Triton.

A plain step has to fetch three values per request before the target forward, and to hand its results to up to three
places after it. Written as tensor expressions that is some fifteen launches on the stream that the target waits on,
one to two per cent of a decode step; fused it is two.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

from typing import Any

import torch

try:
    import triton  # type: ignore[import-not-found]
    import triton.language as tl  # type: ignore[import-not-found]
except ImportError:  # pragma: no cover - a machine without a GPU
    triton = None

_BLOCK = 1024


def gather_inputs(
    indices: Any, bonus_buffer: Any, pool_rows: Any, req_to_token: Any, seq_lens: Any
) -> tuple[Any, Any, Any]:
    """Inputs of a plain decode of `bs` requests.

    indices [bs] rows of the FutureMap buffer `bonus_buffer`; pool_rows [bs] rows of `req_to_token`; seq_lens [bs]
    tokens whose KV is written. Returns input_ids int64 [bs], out_cache_loc int64 [bs] (the slot of position
    seq_lens, which the scheduler has allocated already) and seq_lens + 1 [bs].
    """
    if not seq_lens.is_cuda:
        return (
            bonus_buffer[indices].to(torch.int64),
            req_to_token[pool_rows, seq_lens].to(torch.int64),
            seq_lens + 1,
        )
    input_ids = torch.empty(len(seq_lens), dtype=torch.int64, device=seq_lens.device)
    out_cache_loc = torch.empty_like(input_ids)
    next_lens = torch.empty_like(seq_lens)
    _gather_inputs[(len(seq_lens),)](
        indices,
        bonus_buffer,
        pool_rows,
        req_to_token,
        seq_lens,
        input_ids,
        out_cache_loc,
        next_lens,
        req_to_token.stride(0),
    )
    return input_ids, out_cache_loc, next_lens


def publish(token_ids: Any, strided: Any, stride: int) -> None:
    """Write token_ids [bs] to every `stride`-th place of `strided`."""
    strided.view(-1, stride)[: len(token_ids), 0].copy_(token_ids)


def keep(token_ids: Any, hidden: Any, pool_rows: Any, positions: Any, ring: Any) -> None:
    """Put the state that the draft misses into the ring: hidden [bs, width] and the token after it [bs].

    Row `pool_rows[i]`, place `positions[i] % window` of ring.hidden [rows, window, width] and
    ring.tokens int64 [rows, window].
    """
    if not hidden.is_cuda:
        place = positions % ring.window
        ring.hidden[pool_rows, place] = hidden
        ring.tokens[pool_rows, place] = token_ids.to(torch.int64)
        return
    width = hidden.shape[1]
    _keep[(len(token_ids), triton.cdiv(width, _BLOCK))](
        token_ids,
        hidden,
        pool_rows,
        positions,
        ring.hidden,
        ring.tokens,
        ring.window,
        hidden.stride(0),
        width,
        block_size=_BLOCK,
    )


if triton is not None:

    @triton.jit
    def _gather_inputs(
        indices,
        bonus_buffer,
        pool_rows,
        req_to_token,
        seq_lens,
        input_ids,
        out_cache_loc,
        next_lens,
        pool_stride,
    ):
        i = tl.program_id(0)
        token = tl.load(bonus_buffer + tl.load(indices + i))
        length = tl.load(seq_lens + i)
        row = tl.load(pool_rows + i).to(tl.int64)
        slot = tl.load(req_to_token + row * pool_stride + length)
        tl.store(input_ids + i, token.to(tl.int64))
        tl.store(out_cache_loc + i, slot.to(tl.int64))
        tl.store(next_lens + i, length + 1)

    @triton.jit
    def _keep(
        token_ids,
        hidden,
        pool_rows,
        positions,
        ring_hidden,
        ring_tokens,
        window,
        hidden_stride,
        width,
        block_size: tl.constexpr,
    ):
        i = tl.program_id(0)
        block = tl.program_id(1)
        row = tl.load(pool_rows + i).to(tl.int64)
        place = row * window + tl.load(positions + i) % window
        offsets = block * block_size + tl.arange(0, block_size)
        inside = offsets < width
        values = tl.load(hidden + i.to(tl.int64) * hidden_stride + offsets, mask=inside)
        tl.store(ring_hidden + place * width + offsets, values, mask=inside)
        if block == 0:
            tl.store(ring_tokens + place, tl.load(token_ids + i).to(tl.int64))
