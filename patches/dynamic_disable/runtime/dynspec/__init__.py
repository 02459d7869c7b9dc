"""Fall back from EAGLE/EAGLE-3 speculation to plain decode while a batch is large.

`--speculative-disable-batch-threshold N`: a decode batch of more than N requests runs one plain target decode, a
batch of N or fewer speculates exactly as SGLang does without this package.

    policy     the state machine: which mode, since when, the counters
    worker_v2  the plain step under the overlap scheduler (EAGLEWorkerV2, topk 1)
    worker_v1  the plain step of EAGLEWorker (any topk, no overlap)
    draft      what the draft model misses while steps are plain, and how it catches up
    graphs     CUDA graphs of their own for plain decode and for one-token draft extends
    kernels    the two fused kernels of the v2 plain step
    compat     names that differ between SGLang 0.5.8 and 0.5.12.post1, looked up once
    arguments  command line and the combinations that are refused
    hooks      what the hooked SGLang files call
    metrics    the counters on /metrics

Seen from outside: one line per rank at start-up
    dynspec: ready rank=0 worker=v2 threshold=6 draft_sync=lazy window=126 switch=off graphs=[8, 16, 32]
one line per change of mode on rank 0
    dynspec: speculation off batch=7 threshold=6
the counters under `dynspec_stats` in `/server_info` internal_states (keys: `policy.new_counters`), and on `/metrics`.
"""

from __future__ import annotations

from typing import Any


def attach(worker: Any, kind: str) -> Any:
    """Called at the end of a worker's __init__: its plain-decode half, or None when no threshold is given.

    `kind` is "v1" (EAGLEWorker) or "v2" (EAGLEWorkerV2).
    """
    if worker.server_args.speculative_disable_batch_threshold is None:
        return None
    from . import hooks
    from .worker_v1 import PlainDecodeV1
    from .worker_v2 import PlainDecodeV2

    plain = {"v1": PlainDecodeV1, "v2": PlainDecodeV2}[kind](worker)
    hooks.register(plain)
    plain.announce()
    return plain
