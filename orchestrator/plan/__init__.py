"""Experiment + Facts + patch sets -> Plan: every step of a run with its undo, as a value. Pure.

`dynspec plan` prints the value and `dynspec run` executes it; neither knows anything the other does not.
"""

from __future__ import annotations

from orchestrator.plan.arms import FittedArms, NoArmServed, PatchRules, fit_arms, leave_out
from orchestrator.plan.build import Done, build_plan
from orchestrator.plan.fit import held, refuse_locked
from orchestrator.plan.render import render_plan
from orchestrator.plan.sharing import share_boots

__all__ = [
    "Done",
    "FittedArms",
    "NoArmServed",
    "PatchRules",
    "build_plan",
    "fit_arms",
    "held",
    "leave_out",
    "refuse_locked",
    "render_plan",
    "share_boots",
]
