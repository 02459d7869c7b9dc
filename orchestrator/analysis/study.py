"""The comparisons that one run allows: which arms are set against which, in which boots, at which points. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.analysis.crossover import Crossover, by_concurrency, crossover
from orchestrator.analysis.own_switch import OwnSwitch, own_switch
from orchestrator.analysis.recommend import Recommendation, recommend
from orchestrator.analysis.roles import Roles
from orchestrator.analysis.switching import Part, above_threshold, up_to_threshold
from orchestrator.analysis.verdict import Comparison, Side, compare
from orchestrator.model.experiment import Arm
from orchestrator.model.result import ArmSummary


@dataclass(frozen=True)
class ThresholdCost:
    """What an arm with a threshold pays: above it against the baseline, up to it against its static arm."""

    arm: str
    threshold: int
    above: Part | None
    up_to: Part | None


@dataclass(frozen=True)
class Study:
    """`boot_order`: (arm, boot) as they ran. `shared`: groups of arms that were measured in the same boots.
    `asked`: concurrencies of the sweep, beside those of the points."""

    folded: Mapping[str, ArmSummary]
    parts: Roles
    boot_order: Sequence[tuple[str, int]] = ()
    shared: Sequence[Collection[str]] = ()
    asked: Collection[int] = ()

    def compare(self, a: str, b: str, metric: str, floor: float = 1.0) -> Comparison | None:
        """None where one of the arms has no valid value."""
        left, right = self._side(a, metric), self._side(b, metric)
        if not left.values or not right.values:
            return None
        return compare(metric, left, right, shared_boots=self._shared(a, b), floor=floor)

    def crossovers(self, metrics: Sequence[str], floor: float = 1.0) -> list[Crossover]:
        found = []
        for metric in metrics:
            for a, b in self.parts.pairs:
                left, right = self._curve(a, metric), self._curve(b, metric)
                if left.values and right.values:
                    compared = crossover(
                        metric,
                        left,
                        right,
                        shared_boots=self._shared(a, b),
                        floor=floor,
                        asked=self._asked(),
                        switch=self._switch(a),
                        against_speculates=b in self.parts.static,
                    )
                    found.append(compared)
        return found

    def costs(self, metric: str, floor: float = 1.0) -> list[ThresholdCost]:
        """For each arm with a threshold."""
        found = []
        for name, threshold in self.parts.thresholds.items():
            static = self.parts.static_of.get(name)
            up_to = None
            if static is not None:
                sides = self._curve(name, metric), self._curve(static, metric)
                up_to = up_to_threshold(metric, *sides, threshold, floor=floor)
            found.append(ThresholdCost(name, threshold, self._above(name, metric, floor), up_to))
        return found

    def recommendation(self, metric: str, arms: Sequence[Arm], floor: float = 1.0) -> Recommendation | None:
        """For the first static arm; None without one, or without a baseline."""
        if self.parts.baseline is None or not self.parts.static:
            return None
        arm = self.parts.static[0]
        left, right = self._curve(arm, metric), self._curve(self.parts.baseline, metric)
        if not left.values or not right.values:
            return None
        tax = self._tax(arm, metric, floor)
        taxed = crossover(metric, left, right, offset=1 - (tax or 0.0), floor=floor, asked=self._asked())
        return recommend(taxed, next((item for item in arms if item.name == arm), None), tax)

    def _above(self, name: str, metric: str, floor: float) -> Part | None:
        if self.parts.baseline is None:
            return None
        sides = self._curve(name, metric), self._curve(self.parts.baseline, metric)
        return above_threshold(metric, *sides, self.parts.thresholds[name], floor=floor)

    def _tax(self, static: str, metric: str, floor: float) -> float | None:
        """The disabled tax measured by a dynamic arm of the same settings; never below 0."""
        for name in self.parts.thresholds:
            part = self._above(name, metric, floor) if self.parts.static_of.get(name) == static else None
            if part and part.comparison and part.comparison.headline:
                return max(0.0, 1 - part.comparison.headline.ratio)
        return None

    def _asked(self) -> set[int]:
        measured = {point.concurrency for arm in self.folded.values() for point in arm.points}
        return measured | set(self.asked)

    def _switch(self, name: str) -> OwnSwitch:
        threshold = self.parts.thresholds.get(name)
        return own_switch(self.folded[name], threshold, adaptive=name in self.parts.adaptive)

    def _side(self, name: str, metric: str) -> Side:
        """Valid points only, by position in the sweep."""
        values: dict[int, dict[int, float]] = {}
        for point in (boot for summary in self.folded[name].points for boot in summary.boots):
            value = point.metrics.get(metric)
            if point.valid and value is not None and value > 0:
                values.setdefault(point.boot, {})[point.index] = value
        order = {boot: float(place) for place, (owner, boot) in enumerate(self.boot_order) if owner == name}
        return Side(name, values, order)

    def _curve(self, name: str, metric: str) -> Side:
        """The same by concurrency."""
        side = self._side(name, metric)
        concurrency = {point.index: point.concurrency for point in self.folded[name].points}
        return Side(name, by_concurrency(side.values, concurrency), side.order)

    def _shared(self, a: str, b: str) -> bool:
        return any(a in group and b in group for group in self.shared)
