"""Evidence on one point from what a run stores of it: metrics, server info, the load generator's summary. Pure.

`/server_info` of SGLang 0.5.6 to 0.5.23: the resolved server arguments at the top, `internal_states` a list with one
entry a data-parallel rank. The dynamic-disable patch adds `dynspec_stats` to each entry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.analysis.acceptance import States, counted, stat
from orchestrator.analysis.roles import THRESHOLD
from orchestrator.analysis.validity import Evidence, Expected, Finding, GpuWindow
from orchestrator.metrics import PointMetrics
from orchestrator.model.experiment import Arm

SIMULATED_ACCEPTANCE = "SGLANG_SIMULATE_ACC_LEN"
ADAPTIVE = "speculative-adaptive"


DAMAGED_RECORDS = Finding(
    "records_damaged", "the records on disk are not those that were stored: cut or edited after the run"
)


def evidence_of(
    measured: PointMetrics,
    *,
    arm: Arm,
    concurrency: int | None,
    load: str,
    server: Mapping[str, Any],
    before: States,
    after: States,
    client: Mapping[str, Any],
    warmup_requests: int,
    expected_worker: str | None = None,
    gpu: GpuWindow | None = None,
) -> Evidence:
    """Gather what `validity.judge` looks at.

    `server` is `server_info.json`; `before` and `after` its `internal_states` around the load; `client` the load
    generator's summary; `expected_worker` the plan's word for this arm.
    """
    steps = step_counts(before, after)
    return Evidence(
        concurrency=concurrency,
        metrics=measured.metrics,
        attempted=measured.attempted,
        ok=measured.ok,
        failed=measured.failed,
        load=load,
        warmup_requests=warmup_requests + measured.warmup_requests,
        warmup_failed=measured.warmup_failed,
        short_outputs=measured.short_outputs,
        tokens_unknown=measured.tokens_unknown,
        window_reason=measured.window_reason,
        errors=measured.errors,
        client_cpu_share=_cpu_share(client),
        admission_limit=admission_limit(server, after),
        speculates=arm.speculates,
        max_accept_length=_longest(server, arm),
        simulated_acceptance=simulates_acceptance(arm),
        expected_worker=expected_worker,
        actual_worker=_worker(after) or _said(server, "worker"),
        worker_problem=_said(server, "problem"),
        adaptive_requested=arm.args.get(ADAPTIVE) is True,
        adaptive_active=_flag(server, ADAPTIVE),
        expected=expected_mode(arm, concurrency, load),
        plain_steps=steps[0] if steps else None,
        spec_steps=steps[1] if steps else None,
        gpu=gpu,
    )


def health_finding(looks: object) -> Finding | None:
    """`looks`: {asked, unwell}, how often `/health` was asked while requests ran and was not 200."""
    if not isinstance(looks, Mapping) or not looks.get("unwell"):
        return None
    text = f"/health was not 200 in {looks['unwell']} of {looks.get('asked')} looks while requests ran"
    return Finding("health_unsteady", text, fatal=False)


def step_counts(before: States, after: States) -> tuple[int, int] | None:
    """(plain, speculative) decode steps of all ranks between two looks; None where the server does not count them."""
    counts = counted(before, after, ("plain_steps", "spec_steps"))
    return None if counts is None else (counts[0], counts[1])


def over_boot(evidences: Sequence[Evidence]) -> tuple[Finding, ...]:
    """What only all points of a boot show: a threshold that the sweep crosses, and a patch that never switched.

    The findings hold for every point: the server is not what the arm says, not even where it looks right.
    """
    wanted = {item.expected for item in evidences}
    if not {"plain", "speculate"} <= wanted:
        return ()
    plain = [item.plain_steps for item in evidences if item.plain_steps is not None]
    speculative = [item.spec_steps for item in evidences if item.spec_steps is not None]
    missing = [word for word, steps in (("plain", plain), ("speculative", speculative)) if sum(steps) == 0]
    if not missing or not plain:
        return ()  # without counters each point says so itself
    text = f"the sweep crosses the threshold, and no step of this boot was {' or '.join(missing)}"
    return (Finding("patch_never_acted", text),)


def unmoved(arm: Arm, looks: Sequence[tuple[int, tuple[int, int] | None]]) -> tuple[str, ...]:
    """What the canary shows against the arm's threshold. `looks`: concurrency and its (plain, speculative) steps.

    Both sides are judged as a whole: a few short requests need not all run at once.
    """
    found = []
    for mode, place, word in (("plain", 0, "plain"), ("speculate", 1, "speculative")):
        side = [(at, steps) for at, steps in looks if steps and expected_mode(arm, at, "closed") == mode]
        if side and not sum(steps[place] for _, steps in side):
            levels = ", ".join(str(at) for at, _ in side)
            found.append(f"at concurrency {levels} no step was {word}, as the threshold asks")
    return tuple(found)


def expected_mode(arm: Arm, concurrency: int | None, load: str) -> Expected | None:
    """What the dynamic-disable patch must do; None without threshold or where both may happen."""
    threshold = arm.args.get(THRESHOLD)
    if (
        not isinstance(threshold, int)
        or isinstance(threshold, bool)
        or load != "closed"
        or concurrency is None
    ):
        return None
    return "plain" if concurrency > threshold else "speculate"


def admission_limit(server: Mapping[str, Any], states: States) -> int | None:
    """Running requests that the server admits, all data-parallel ranks together."""
    limits = [state.get("effective_max_running_requests_per_dp") for state in states]
    known = [limit for limit in limits if isinstance(limit, int) and limit > 0]
    ranks = server.get("dp_size")
    if known and isinstance(ranks, int) and len(known) < ranks:
        return min(known) * ranks
    if known:
        return sum(known)
    limit = server.get("max_running_requests")
    return limit if isinstance(limit, int) and limit > 0 else None


def _said(server: Mapping[str, Any], key: str) -> str | None:
    """What the start-up log told of the worker in use; see `worker_words`."""
    told = (server.get("worker_seen") or {}).get(key)
    return told if isinstance(told, str) and told else None


def _worker(states: States) -> str | None:
    named = {name for state in states if isinstance(name := stat(state, "worker"), str)}
    return named.pop() if len(named) == 1 else None


def _cpu_share(client: Mapping[str, Any]) -> float | None:
    share = (client.get("client") or {}).get("cpu_share")
    return float(share) if isinstance(share, int | float) else None


def _flag(server: Mapping[str, Any], name: str) -> bool | None:
    value = server.get(name.replace("-", "_"))
    return value if isinstance(value, bool) else None


def _longest(server: Mapping[str, Any], arm: Arm) -> float | None:
    """Draft steps and the bonus token; unknown where steps adapt."""
    steps = server.get("speculative_num_steps", arm.args.get("speculative-num-steps"))
    if arm.args.get(ADAPTIVE) is True or not isinstance(steps, int) or isinstance(steps, bool):
        return None
    return float(steps + 1)


def simulates_acceptance(arm: Arm) -> bool:
    """The server was told to make its accept length up (SGLANG_SIMULATE_ACC_LEN)."""
    value = arm.env.get(SIMULATED_ACCEPTANCE)
    try:
        return isinstance(value, str) and float(value) > 0
    except ValueError:
        return False
