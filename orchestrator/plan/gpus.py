"""Who holds the GPUs, and what a policy may do about it. Unknown is never free, and never ours to stop."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.model.experiment import FreeRule
from orchestrator.model.facts import Facts, Gpu, ProcessFact

# Drivers and monitoring keep some hundred MiB of an idle GPU.
IDLE_MIB = 1024


@dataclass(frozen=True)
class Holders:
    """Processes on the chosen GPUs, by what the policy says of them."""

    stop: tuple[ProcessFact, ...]  # the policy allows stopping these
    foreign: tuple[ProcessFact, ...]  # it does not
    graphics: tuple[ProcessFact, ...]  # displays: left alone, and no obstacle


def gpu_name(facts: Facts, told: str | None) -> str:
    """The GPU of a holder, which is told by its UUID, by the index that people choose it with."""
    if told is None:
        return "(which one is not said)"
    return str(next((gpu.index for gpu in facts.gpus if gpu.uuid == told), told))


def chosen(facts: Facts, gpus: Iterable[int] | None) -> tuple[Gpu, ...]:
    """The GPUs of these indices (None: all)."""
    wanted = None if gpus is None else set(gpus)
    return tuple(gpu for gpu in facts.gpus if wanted is None or gpu.index in wanted)


def holders(facts: Facts, gpus: Iterable[int] | None, policy: str, rules: tuple[FreeRule, ...]) -> Holders:
    """Sort the holders of the chosen GPUs. A holder whose GPU is not said counts as being on them."""
    names = {name for gpu in chosen(facts, gpus) for name in (gpu.uuid, str(gpu.index))}
    here = [item for item in facts.holders if item.gpu is None or item.gpu in names]
    unique = list({(item.pid, item.start_time): item for item in here}.values())
    graphics = tuple(item for item in unique if item.kind == "G")
    compute = [item for item in unique if item.kind != "G"]
    stop = tuple(item for item in compute if may_stop(item, policy, rules))
    return Holders(stop, tuple(item for item in compute if item not in stop), graphics)


def may_stop(process: ProcessFact, policy: str, rules: tuple[FreeRule, ...]) -> bool:
    """Whether the policy gives consent for this process. Displays and pid 1 are never stopped."""
    if process.kind == "G" or process.pid <= 1:
        return False
    if policy == "all":
        return True
    return policy == "listed" and any(
        rule.user == process.user and rule.command in process.command for rule in rules
    )


def occupied_without_holder(facts: Facts, gpus: Iterable[int] | None) -> tuple[Gpu, ...]:
    """GPUs with memory in use that no visible process accounts for: a container, another namespace, a zombie."""
    held = {item.gpu for item in facts.holders if item.kind != "G"}
    if None in held:
        return ()  # some holder's GPU is not said; it is reported as a holder of all of them
    return tuple(
        gpu
        for gpu in chosen(facts, gpus)
        if gpu.memory_used_mib is not None
        and gpu.memory_used_mib > IDLE_MIB
        and not held & {gpu.uuid, str(gpu.index)}
    )


def describe(process: ProcessFact) -> str:
    """One line: pid, user, memory, age, command."""
    memory = f"{process.memory_mib} MiB" if process.memory_mib is not None else "memory unknown"
    command = process.command if len(process.command) <= 80 else process.command[:77] + "..."
    return f"pid {process.pid}, user {process.user}, {memory}, {age(process.age_s)} old: {command}"


def count_of(processes: tuple[ProcessFact, ...]) -> str:
    return "1 process" if len(processes) == 1 else f"{len(processes)} processes"


def age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"
