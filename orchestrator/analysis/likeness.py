"""Were the arms of a run measured alike? What differs beyond the intended makes points invalid or is noted. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.analysis.validity import Finding, Limits, judged
from orchestrator.model.experiment import Arm
from orchestrator.model.result import PointResult
from orchestrator.model.speculation import SPELLINGS

# Values that a server derives anew at each start or that say nothing on speed.
NOISE_ARGS = frozenset(
    {
        "port",
        "nccl_port",
        "dist_init_addr",
        "random_seed",
        "log_level",
        "host",
        "served_model_name",
        "api_key",
    }
)
# What a server tells beside its arguments.
STATE_KEYS = frozenset(
    {
        "internal_states",
        "status",
        "max_total_num_tokens",
        "max_req_input_len",
        "last_gen_throughput",
        "memory_usage",
        "simulated",
    }
)
# What turning speculation on changes in every release, with the intent.
SPECULATION_ARGS = frozenset(
    {
        "disable_overlap_schedule",
        "enable_mixed_chunk",
        "cuda_graph_bs",
        "cuda_graph_max_bs",
        "disable_cuda_graph_padding",
        "mem_fraction_static",  # where it is not set, memory for the draft is set aside
    }
)
VALUE_CHARS = 28


def asked_keys(arm: Arm, against: Arm) -> tuple[str, ...]:
    """Flags that the experiment sets differently for the two arms, in every spelling that the server may use."""
    keys = {key for key in {**arm.args, **against.args} if arm.args.get(key) != against.args.get(key)}
    same = [spellings for spellings in SPELLINGS.values() if keys & set(spellings)]
    return tuple(sorted(keys.union(*same)))


def unintended(
    arm: Mapping[str, object], against: Mapping[str, object], intended: Sequence[str]
) -> dict[str, tuple[object, object]]:
    """Resolved server arguments that differ between two arms although nobody asked: key -> (arm's, other's).

    Keys as the server tells them (underscores); `intended` as in the experiment (dashes or underscores).
    """
    asked = {key.replace("-", "_") for key in intended}
    keys = sorted((set(arm) | set(against)) - NOISE_ARGS - asked)
    differing = {key: (arm.get(key), against.get(key)) for key in keys if arm.get(key) != against.get(key)}
    return {key: pair for key, pair in differing.items() if not key.startswith("speculative_")}


def server_arguments(info: Mapping[str, object], other: Mapping[str, object]) -> dict[str, object]:
    """Those entries of `/server_info` that are arguments which both servers know: a patch may add some of its own."""
    return {key: value for key, value in info.items() if key in other and key not in STATE_KEYS}


def argument_findings(differing: Mapping[str, tuple[object, object]], against: str) -> tuple[Finding, ...]:
    """Fatal, but for those arguments that speculation itself sets."""
    return tuple(
        Finding("args_differ", _told(key, *pair, against), fatal=key not in SPECULATION_ARGS)
        for key, pair in differing.items()
    )


def _told(key: str, mine: object, theirs: object, against: str) -> str:
    both = f"{key} is {_short(mine)} here and {_short(theirs)} in {against}"
    if key in SPECULATION_ARGS:
        return f"{both}: SGLang chose so itself, as it does under speculation; to rule it out, set it in server.args"
    return f"{both}, and the experiment sets it for neither: the arms were not set up alike; set it in server.args"


def _short(value: object) -> str:
    """Long lists by their ends and their length."""
    text = repr(value)
    if len(text) <= VALUE_CHARS:
        return text
    if isinstance(value, list | tuple):
        return f"a list of {len(value)} ({value[0]!r} to {value[-1]!r})"[: 2 * VALUE_CHARS]
    return f"{text[: VALUE_CHARS - 1]}…"


def across_arms(
    points: Sequence[PointResult], baseline: str | None, limits: Limits | None = None
) -> list[PointResult]:
    """Check that all arms and boots sent the same bodies in the same order, from the same state of the cache.

    Compared per position of the sweep with `baseline`, or with the first arm there.
    """
    used = limits or Limits()
    references = _references(points, baseline)
    return [judged(point, _unlike(point, references[point.index], used)) for point in points]


def _references(points: Sequence[PointResult], baseline: str | None) -> dict[int, PointResult]:
    found: dict[int, PointResult] = {}
    for point in points:
        if point.index not in found or (point.arm == baseline and found[point.index].arm != baseline):
            found[point.index] = point
    return found


def _unlike(point: PointResult, reference: PointResult, limits: Limits) -> list[Finding]:
    findings = []
    if point.bodies_sha256 != reference.bodies_sha256:
        text = f"request bodies differ from those of {reference.arm} boot {reference.boot}"
        findings.append(Finding("bodies_differ", text))
    mine, theirs = point.metrics.get("cached_share"), reference.metrics.get("cached_share")
    if mine is not None and theirs is not None and abs(mine - theirs) > limits.cached_gap:
        text = f"{mine:.1%} of the prompt tokens were cached, {theirs:.1%} in {reference.arm} boot {reference.boot}"
        findings.append(Finding("cache_differs", text))
    mine, theirs = point.metrics.get("output_tokens"), reference.metrics.get("output_tokens")
    if mine and theirs and point.ok == reference.ok and abs(mine / theirs - 1) > limits.output_gap:
        text = (
            f"{mine:.0f} output tokens, {theirs:.0f} in {reference.arm} boot {reference.boot}: unequal work"
        )
        findings.append(Finding("output_gap", text, fatal=False))
    return findings
