"""Numbers with a unit: durations, rates and shares, as the file and the command line spell them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from orchestrator.config.kinds import BAD, Bad, Json, plain, wrong
from orchestrator.config.scalars import describe, kind_of, shorten
from orchestrator.config.tree import Problems, ScalarNode, TreeNode


@dataclass(frozen=True)
class Measure:
    """A number with a unit: `30s`, `8/s`, `3%`. `units` gives the factor to the stored unit."""

    what: str
    example: str
    units: dict[str, float]
    low: float = 0.0
    high: float = float("inf")

    @property
    def pattern(self) -> str:
        return rf"(0|[1-9][0-9]{{0,8}})(\.[0-9]{{1,6}})?({'|'.join(map(re.escape, self.units))})"

    def amount(self, text: str) -> float | None:
        """In the stored unit, whatever the limits; None for text of another form."""
        match = re.fullmatch(self.pattern, text)
        return None if match is None else float(match[1] + (match[2] or "")) * self.units[match[3]]

    def read(self, node: TreeNode, path: str, problems: Problems) -> float | Bad:
        wanted = f"{self.what} such as {self.example}"
        if isinstance(node, ScalarNode) and kind_of(node) in ("int", "float"):
            as_read = describe(node)
            problems.add(node.where, path, f"`{shorten(node.text)}` is read as {as_read}; write {wanted}")
            return BAD
        value = plain(node, path, problems, wanted, ())
        if isinstance(value, Bad):
            return BAD
        amount = self.amount(value) if isinstance(value, str) else None
        if amount is None:
            return wrong(node, path, problems, wanted)
        if not self.low <= amount <= self.high:
            return amount if problems.rule(node.where, path, f"`{value}`: {self._range()} is wanted") else BAD
        return amount

    def _range(self) -> str:
        low = f"at least {self.spell(self.low)}"
        return low if self.high == float("inf") else f"{low} and at most {self.spell(self.high)}"

    def schema(self) -> Json:
        return {
            "type": "string",
            "pattern": f"^{self.pattern}$",
            "examples": re.split(", | or ", self.example),
        }

    def spell(self, value: object) -> object:
        assert isinstance(value, int | float)
        base = min(self.units, key=lambda unit: abs(self.units[unit] - 1.0))
        for unit, factor in sorted(self.units.items(), key=lambda item: -item[1]):
            if value and value >= factor and value % factor == 0:
                return f"{value / factor:g}{unit}"
        return f"{value / self.units[base]:g}{base}"


def duration(low: float = 0.001, high: float = 7 * 86400.0) -> Measure:
    return Measure("a duration", "30s, 10m or 2h", {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}, low, high)


PERCENT = Measure("a share", "3%", {"%": 0.01}, 0.0, 1.0)
RATE = Measure("a rate", "8/s", {"/s": 1.0}, 0.001, 100_000.0)
