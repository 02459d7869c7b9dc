"""Where a run keeps on the node what is fetched from there afterwards."""

from __future__ import annotations

from orchestrator.store import safe_name


def server_log(workdir: str, run_id: str, arm: str, boot: int) -> str:
    """The log of one boot."""
    return f"{workdir}/{run_id}/logs/{safe_name(arm)}-{boot}.log"


def gpu_csv(workdir: str, run_id: str, arm: str, boot: int) -> str:
    """The GPU samples of one boot, beside its log."""
    return f"{workdir}/{run_id}/logs/{safe_name(arm)}-{boot}.gpu.csv"
