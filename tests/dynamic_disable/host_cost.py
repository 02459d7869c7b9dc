"""Host time that the patch adds to a step that speculates, and to a prefill: microseconds by batch size.

    PYTHONPATH=. .cache/torch-env/bin/python tests/dynamic_disable/host_cost.py      # made by `make test-torch`

Times the patch's own code alone, called as the hooked SGLang files call it. Up to the threshold a step runs nothing on
the device for it, so this is all that it costs. The smallest of five rounds; a speculative step of an 8B model on one
H200 takes about 7000 us.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import SimpleNamespace

import torch
import world_v2
from fake_sglang import Release

CALLS, ROUNDS = 5000, 5


class Decode:
    """A forward mode."""

    def is_decode(self) -> bool:
        return True

    def is_idle(self) -> bool:
        return False


def microseconds(call: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        best = min(best, (time.perf_counter_ns() - began) / CALLS / 1e3)
    return best


def main() -> None:
    torch.set_num_threads(1)
    world = world_v2.World(Release("0.5.11"), threshold=64, rows=80, graphs=(64, 72))
    hooks, plain = sys.modules["sglang.srt.speculative.dynspec.hooks"], world.dynspec
    print("batch  decide  catch up  relay  count   sum   prefill")
    for size in (1, 2, 4, 8, 16, 64):
        reqs = [world_v2.Request([1], 9, req_pool_idx=i + 1) for i in range(size)]
        lens = torch.zeros(size, dtype=torch.int64)
        draft = SimpleNamespace(future_indices=SimpleNamespace(indices=None))
        batch = SimpleNamespace(spec_info=draft, forward_mode=Decode(), seq_lens=lens, reqs=reqs)
        parts = [
            microseconds(lambda batch=batch: hooks.resolve_future(None, batch)),
            microseconds(lambda batch=batch: plain.decode(batch)),
            microseconds(lambda draft=draft: hooks.store_future(None, None, draft)),
            microseconds(lambda reqs=reqs: hooks.on_resolved(reqs, None, [2] * len(reqs))),
        ]
        prefill = microseconds(lambda batch=batch: plain.on_prefill(batch))
        shown = "  ".join(f"{value:6.2f}" for value in parts)
        print(f"{size:5}  {shown}  {sum(parts):5.1f}  {prefill:7.2f}")


if __name__ == "__main__":
    main()
