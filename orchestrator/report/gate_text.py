"""What the gate said, as lines: for a terminal, and for every report of the run."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.analysis.gate import GateResult
from orchestrator.analysis.setups import Difference
from orchestrator.report.text import clean, listed, percent

_STATES = {"pass": "passed", "regression": "REGRESSION", "inconclusive": "inconclusive"}


def gate_lines(run: str, result: GateResult) -> list[str]:
    """The gate's word on the run and on each arm, with what the set-ups do not have in common."""
    against = listed(result.references) or "nothing"
    head = f"gate {_STATES[result.state]}: {result.metric} of {run} against {against}"
    lines = [f"{head}, at most {percent(result.max_drop, signed=False)} worse"]
    lines += [f"  {item.arm}: {_STATES[item.state]}, {item.why}" for item in result.arms]
    return lines + unlike_lines(result.unlike)


def unlike_lines(unlike: Sequence[Difference]) -> list[str]:
    """What two set-ups do not have in common, the blocking differences first."""
    if not unlike:
        return []
    return ["unlike in (A / B):", *(f"  {clean(str(item))}" for item in unlike)]
