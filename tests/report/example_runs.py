"""Made-up runs for the report's tests: a baseline, static speculation and a dynamic arm over one sweep."""

from __future__ import annotations

import math
import random

from orchestrator.analysis.summary import summarise
from orchestrator.model.experiment import Arm
from orchestrator.model.result import BootTrace, FailureCard, PointResult, RunInfo, Series

EAGLE3 = {"speculative-algorithm": "EAGLE3", "speculative-num-steps": 2}
ARMS = (
    Arm("baseline", {}, {}),
    Arm("eagle3", EAGLE3, {}),
    Arm("dynamic", {**EAGLE3, "speculative-disable-batch-threshold": 5}, {}, ("dynamic_disable",)),
)
SWEEP = (1, 2, 5, 10, 30, 70)


def rate(arm: str, concurrency: int) -> float:
    """Output tokens/s without noise: static speculation crosses the baseline at concurrency 10."""
    plain = 180 * concurrency**0.95
    static = plain * 1.35 * concurrency**-0.13
    if arm == "baseline":
        return plain
    if arm == "eagle3":
        return static
    return 0.99 * static if concurrency <= 5 else 0.95 * plain


def points(
    boots: int = 3, noise: float = 0.01, seed: int = 1, rates=rate, arms=ARMS, **changes
) -> list[PointResult]:
    rng = random.Random(seed)
    return [
        _point(
            arm.name,
            boot,
            index,
            concurrency,
            rates(arm.name, concurrency) * math.exp(rng.gauss(0, noise)),
            changes,
        )
        for arm in arms
        for boot in range(1, boots + 1)
        for index, concurrency in enumerate(SWEEP)
    ]


def _point(arm: str, boot: int, index: int, concurrency: int, value: float, changes: dict) -> PointResult:
    on = arm == "eagle3" or (arm == "dynamic" and concurrency <= 5)
    metrics = {
        "output_tps": value,
        "ttft_p50": 0.02 * concurrency**0.5,
        "ttft_p99": 0.09 * concurrency**0.5,
        "tpot_p50": concurrency / value,
        "accept_length": 2.5 if on else None if arm == "baseline" else 1.0,
    }
    invalid = changes.get("invalid", {}).get((arm, concurrency), ())
    return PointResult(
        arm,
        boot,
        index,
        concurrency,
        metrics,
        8 * concurrency,
        0,
        8 * concurrency,
        concurrency,
        "ab" * 32,
        not invalid,
        tuple(invalid),
    )


def order(boots: int, arms=ARMS) -> list[tuple[str, int]]:
    """A B C, C B A, ..."""
    names = [arm.name for arm in arms]
    return [(name, boot) for boot in range(1, boots + 1) for name in (names if boot % 2 else names[::-1])]


def summary(boots: int = 3, arms=ARMS, **options):
    return summarise(points(boots, arms=arms, **options), arms=arms, boot_order=order(boots, arms))


CARD = FailureCard(
    arm="eagle3",
    boot=1,
    concurrency=10,
    failure="shape_mismatch",
    title="tensor sizes differ under speculation (160 against 2)",
    cause="a plain batch met a graph captured for verify steps",
    fix="check that the patch swaps the graph runner",
    rank="TP0",
    line=1200,
    excerpt=("Traceback (most recent call last):", "RuntimeError: The size of tensor a (160) must match"),
    replay="dynspec run demo.yaml --arm eagle3 --set sweep.concurrency=[10]",
)
INFO = RunInfo(
    run_id="20260102-030405-demo-ab12",
    name="demo",
    host="blackwell-1",
    folder="results/20260102-030405-demo-ab12",
)


def traces() -> tuple[BootTrace, ...]:
    """Four minutes of a dynamic arm under load that steps around its threshold, with GPU samples."""
    times = tuple(float(t) for t in range(0, 240, 2))
    running = tuple(float(2 + 8 * ((t // 30) % 2)) for t in times)
    switches = tuple((30.0 * n, n % 2 == 0) for n in range(1, 8))
    rng = random.Random(5)
    gpu = tuple(
        Series(name, unit, times, tuple(level + rng.uniform(-spread, spread) for _ in times))
        for name, unit, level, spread in (
            ("SM clock", "MHz", 1900, 60),
            ("memory", "MiB", 70000, 10),
            ("power", "W", 620, 40),
            ("temperature", "°C", 61, 2),
        )
    )
    accept = tuple(2.5 if value < 6 else 1.0 for value in running)
    return (
        BootTrace(
            "dynamic",
            1,
            Series("running requests", "", times, running),
            Series("accept length", "tokens/step", times, accept),
            switches,
            gpu,
        ),
    )
