"""`dynspec status` as lines."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.facts import ProcessFact
from orchestrator.path_lists import below
from orchestrator.remote.replies import Status


def status_lines(node: str, found: Status) -> list[str]:
    """Lock, server, journals, GPUs and who holds them, in that order."""
    return [*_lock(node, found), *_journals(found), *_gpus(found)]


def left_behind(found: Status) -> list[str]:
    """Runs whose changes nobody will take back unasked: dead, and no guardian that would do it."""
    if found.lock is not None:
        return []
    return [f"run {journal.run_id}" for journal in found.journals if journal.state == "dead"]


def _lock(node: str, found: Status) -> Iterator[str]:
    lock = found.lock
    if lock is None:
        yield f"{node}: free: nobody holds the lock"
    else:
        doing = f"{lock.state}, {lock.phase}" if lock.phase else lock.state
        yield f"{node}: run {lock.run_id} of {lock.user} ({lock.controller}) since {lock.since_utc}: {doing}"
        yield f"  guardian pid {lock.guardian_pid}, lease {lock.lease_left_s:.0f} s"
    server = found.server
    if server is not None and server.alive:
        yield f"  server pid {server.pid}, last log output {server.log_idle_s:.0f} s ago"


def _journals(found: Status) -> Iterator[str]:
    for journal in found.journals:
        changed = below(journal.files_changed, where="all with --json") or "none"
        yield f"  open journal of run {journal.run_id} ({journal.state}); files that are not as they were: {changed}"


def _gpus(found: Status) -> Iterator[str]:
    for gpu in found.gpus:
        used = "?" if gpu.memory_used_mib is None else gpu.memory_used_mib
        total = "?" if gpu.memory_total_mib is None else gpu.memory_total_mib
        yield f"  GPU {gpu.index} {gpu.name}: {used} of {total} MiB in use"
    for process in found.holders:
        yield f"    {_process(process)}"


def _process(process: ProcessFact) -> str:
    memory = "memory unknown" if process.memory_mib is None else f"{process.memory_mib} MiB"
    return f"pid {process.pid} of {process.user}, {memory}, {process.age_s / 60:.0f} min: {process.command[:100]}"
