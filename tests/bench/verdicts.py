"""How often verdicts are wrong, on simulated experiments of which the truth is known.

    python tests/bench/verdicts.py [--experiments 2000] [--seed 1]

An experiment is two arms, 5 boots each in the order A B B A ..., 7 points a boot. A point has 2 % log-normal noise,
half of whose variance is shared by all points of the boot. Exit 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from dataclasses import dataclass

from orchestrator.analysis.verdict import Comparison, Side, compare

POINTS = 7


@dataclass(frozen=True)
class World:
    """`drift`: ratio by which everything changes from the first boot to the last."""

    name: str
    boots: int = 5
    noise: float = 0.02
    shared: float = 0.5
    effect: float = 1.0
    drift: float = 1.0
    noise_ratio: float = 1.0  # of the second arm's noise to the first's


@dataclass
class Tally:
    headline: int = 0
    any_point: int = 0
    covered: int = 0
    detrended: int = 0


def experiment(world: World, rng: random.Random) -> Comparison:
    order = [("A", "B", "B", "A")[place % 4] for place in range(2 * world.boots)]
    sides = [_side(world, name, order, rng) for name in ("B", "A")]
    return compare("output_tps", *sides)


def _side(world: World, name: str, order: list[str], rng: random.Random) -> Side:
    noise = world.noise * (world.noise_ratio if name == "B" else 1.0)
    effect = math.log(world.effect) if name == "B" else 0.0
    places = [place for place, owner in enumerate(order) if owner == name]
    values = {}
    for boot, place in enumerate(places, 1):
        trend = math.log(world.drift) * place / (len(order) - 1)
        base = effect + trend + rng.gauss(0, noise * math.sqrt(world.shared))
        own = noise * math.sqrt(1 - world.shared)
        values[boot] = {index: 100 * 2**index * math.exp(base + rng.gauss(0, own)) for index in range(POINTS)}
    return Side(name, values, {boot: float(place) for boot, place in enumerate(places, 1)})


def run(world: World, experiments: int, rng: random.Random) -> Tally:
    tally = Tally()
    for _ in range(experiments):
        result = experiment(world, rng)
        assert result.headline is not None
        tally.headline += result.call != "inconclusive"
        tally.any_point += any(point.call != "inconclusive" for point in result.points)
        tally.covered += (result.headline.low or 0) <= world.effect <= (result.headline.high or math.inf)
        tally.detrended += result.method == "detrended"
    return tally


def most(share: float, experiments: int) -> float:
    """Upper end of what a true share shows in this many experiments (97.5 %)."""
    return share + 1.96 * math.sqrt(share * (1 - share) / experiments)


NULL = World("A/A")
TRUE_5 = World("true 5 %", effect=1.05)
OTHERS = (
    World("A/A, 2 boots", boots=2),
    World("A/A, 3 boots", boots=3),
    World("A/A, B thrice as noisy", noise_ratio=3.0),
    World("A/A, all noise shared", shared=1.0),
    World("A/A, 6 % drift", drift=1.06),
    World("true 5 %, 3 boots", boots=3, effect=1.05),
    World("true 3 %", effect=1.03),
)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--experiments", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    rng = random.Random(options.seed)
    n, limit, missed = options.experiments, most(0.05, options.experiments), False
    print(f"{'world':<26}{'headline':>10}{'any point':>11}{'interval covers':>17}{'detrended':>11}")
    for world in (NULL, TRUE_5, *OTHERS):
        tally = run(world, n, rng)
        if world is NULL:
            missed |= tally.headline / n > limit or tally.any_point / n > limit
        if world is TRUE_5:
            missed |= tally.headline / n < 0.90
        shares = [count / n for count in (tally.headline, tally.any_point, tally.covered, tally.detrended)]
        print(f"{world.name:<26}{shares[0]:>10.2%}{shares[1]:>11.2%}{shares[2]:>17.2%}{shares[3]:>11.2%}")
    print(f"bars: A/A headline and any point <= 5 % (up to {limit:.2%} by chance); true 5 % headline >= 90 %")
    print("MISSED" if missed else "met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
