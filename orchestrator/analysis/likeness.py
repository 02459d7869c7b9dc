"""Were the arms of a run measured alike? What differs beyond the intended makes points invalid or is noted. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.analysis.validity import Finding, Limits, judged
from orchestrator.model.result import PointResult

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
# What turning speculation on changes in every release, with the intent.
SPECULATION_ARGS = frozenset(
    {"disable_overlap_schedule", "enable_mixed_chunk", "cuda_graph_bs", "disable_cuda_graph_padding"}
)


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


def argument_findings(differing: Mapping[str, tuple[object, object]], against: str) -> tuple[Finding, ...]:
    """Fatal, but for those arguments that speculation itself sets."""
    return tuple(
        Finding(
            "args_differ",
            f"{key} is {mine!r} here and {theirs!r} in {against}, which the experiment does not ask for",
            fatal=key not in SPECULATION_ARGS,
        )
        for key, (mine, theirs) in differing.items()
    )


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
