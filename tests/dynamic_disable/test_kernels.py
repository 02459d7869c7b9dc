"""The fused kernels, run by Triton's interpreter, against their torch twins."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="torch is not installed: `make test-torch` runs these")
pytest.importorskip("triton", reason="triton is not installed: `make test-torch` runs these")

import torch
from lift import load_runtime

pytestmark = pytest.mark.torch
ROWS, CONTEXT, WINDOW = 7, 40, 5


@pytest.fixture
def kernels(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    load_runtime()
    from sglang.srt.speculative.dynspec import kernels

    return kernels


@pytest.mark.parametrize("bonus_type", [torch.int32, torch.int64])
@pytest.mark.parametrize("requests", [1, 6])
def test_the_inputs_of_a_plain_decode(kernels, bonus_type, requests):
    generator = torch.Generator().manual_seed(3)
    req_to_token = torch.randint(1, 9999, (ROWS, CONTEXT), generator=generator, dtype=torch.int32)
    bonus = torch.randint(0, 50_000, (20,), generator=generator, dtype=bonus_type)
    indices = torch.randperm(20, generator=generator)[:requests]
    rows = torch.randperm(ROWS, generator=generator)[:requests]
    lens = torch.randint(0, CONTEXT - 1, (requests,), generator=generator)
    expected = kernels.gather_inputs(indices, bonus, rows, req_to_token, lens)
    got = [torch.empty(requests, dtype=torch.int64) for _ in range(3)]
    kernels._gather_inputs[(requests,)](
        indices, bonus, rows, req_to_token, lens, *got, req_to_token.stride(0)
    )
    for left, right in zip(got, expected, strict=True):
        assert left.dtype == right.dtype == torch.int64
        assert left.tolist() == right.tolist()


@pytest.mark.parametrize("width", [3, 1024, 1500])
def test_what_the_draft_misses_goes_into_the_ring(kernels, width):
    generator = torch.Generator().manual_seed(5)

    def ring():
        return SimpleNamespace(
            hidden=torch.zeros(ROWS, WINDOW, width, dtype=torch.bfloat16),
            tokens=torch.zeros(ROWS, WINDOW, dtype=torch.int64),
            window=WINDOW,
        )

    twin, fused = ring(), ring()
    for _ in range(4):
        rows = torch.randperm(ROWS, generator=generator)[:4]
        hidden = torch.randn(6, width, generator=generator).to(torch.bfloat16)[:4]
        tokens = torch.randint(0, 50_000, (4,), generator=generator)
        positions = torch.randint(0, 100, (4,), generator=generator)
        kernels.keep(tokens, hidden, rows, positions, twin)
        kernels._keep[(4, -(-width // kernels._BLOCK))](
            tokens,
            hidden,
            rows,
            positions,
            fused.hidden,
            fused.tokens,
            WINDOW,
            hidden.stride(0),
            width,
            block_size=kernels._BLOCK,
        )
    assert torch.equal(twin.hidden, fused.hidden)
    assert torch.equal(twin.tokens, fused.tokens)
    assert twin.tokens.any()


def test_tokens_stand_at_every_stride(kernels):
    strided = torch.full((12,), -1)
    kernels.publish(torch.tensor([7, 8]), strided, 4)
    assert strided.tolist() == [7, -1, -1, -1, 8, -1, -1, -1, -1, -1, -1, -1]
