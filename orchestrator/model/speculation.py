"""What an arm's server arguments say about speculation, in SGLang's own terms. Pure readings of `Arm.args`."""

from __future__ import annotations

from orchestrator.model.experiment import ArgValue, Arm

# Releases 0.5.6 to 0.5.23 quietly set --max-running-requests to this (in total) once an algorithm is given.
SPECULATIVE_RUNNING_LIMIT = 48
THRESHOLD_FLAG = "speculative-disable-batch-threshold"
SWITCH_FLAG = "enable-speculative-threshold-switch"  # the running server takes another threshold
SKIP_DRAFT_EXTEND = "SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND"  # 0.5.14: zero-step slots do not feed the draft
DRAFT_SYNC_FLAG = "speculative-disable-draft-sync"  # how the draft follows plain steps
DYNAMIC_PATCH = "dynamic_disable"  # adds these three flags

# Servers that are given less end while they start: a count, or the patch's own `check_server_args`.
LEAST: dict[str, int] = {
    "tp-size": 1,
    "pp-size": 1,
    "dp-size": 1,
    "speculative-eagle-topk": 1,
    "speculative-num-draft-tokens": 1,
    "max-running-requests": 1,
    THRESHOLD_FLAG: 0,
}

BASE_GPU_FLAG = "base-gpu-id"

# Flags that dynspec interprets, with the other spellings that SGLang's parser knows for them.
SPELLINGS: dict[str, tuple[str, ...]] = {
    "model-path": ("model-path", "model"),
    "tp-size": ("tp-size", "tensor-parallel-size", "tp"),
    "pp-size": ("pp-size", "pipeline-parallel-size", "pp"),
    "dp-size": ("dp-size", "data-parallel-size", "dp"),
    "enable-dp-attention": ("enable-dp-attention",),
    BASE_GPU_FLAG: (BASE_GPU_FLAG,),
    "speculative-algorithm": ("speculative-algorithm",),
    "speculative-draft-model-path": ("speculative-draft-model-path", "speculative-draft-model"),
    "speculative-num-steps": ("speculative-num-steps",),
    "speculative-eagle-topk": ("speculative-eagle-topk",),
    "speculative-num-draft-tokens": ("speculative-num-draft-tokens",),
    THRESHOLD_FLAG: (THRESHOLD_FLAG,),
    "max-running-requests": ("max-running-requests",),
    "disable-overlap-schedule": ("disable-overlap-schedule",),
    "enable-multi-layer-eagle": ("enable-multi-layer-eagle",),
    "skip-tokenizer-init": ("skip-tokenizer-init",),
}


def setting(arm: Arm, flag: str) -> ArgValue | None:
    """The value of a flag whatever its spelling; argparse keeps the last one given, and so does this."""
    found: ArgValue | None = None
    for key, value in arm.args.items():
        if key in SPELLINGS[flag]:
            found = value
    return found


def whole(arm: Arm, flag: str) -> int | None:
    """The value of a flag as an integer; None where it is absent or no integer."""
    value = setting(arm, flag)
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        return int(value)
    except ValueError:
        return None


def algorithm(arm: Arm) -> str | None:
    """Upper case, as SGLang reads it from 0.5.12 on; None for a server that does not speculate."""
    value = setting(arm, "speculative-algorithm")
    return None if value is None else str(value).upper()


def threshold(arm: Arm) -> int | None:
    """N of the fallback: batches above it decode plainly. None: no fallback."""
    return whole(arm, THRESHOLD_FLAG)


def running_limit(arm: Arm) -> int | None:
    """Requests that the server runs at once, as far as its arguments tell. None: the server decides by memory."""
    written = whole(arm, "max-running-requests")
    if written is None and algorithm(arm) is not None:
        return SPECULATIVE_RUNNING_LIMIT
    return written


def gpus_needed(arm: Arm) -> int:
    """GPUs of one server: tensor parallel size x pipeline stages x replicas (DP attention shares the GPUs)."""
    replicas = 1 if setting(arm, "enable-dp-attention") else whole(arm, "dp-size") or 1
    return (whole(arm, "tp-size") or 1) * (whole(arm, "pp-size") or 1) * replicas


def first_gpu(arm: Arm) -> int:
    """The server's first GPU, counted among those that it may see (CUDA_VISIBLE_DEVICES makes indices relative)."""
    return max(whole(arm, BASE_GPU_FLAG) or 0, 0)
