"""Set-ups of runs as a reader sees them."""

from __future__ import annotations

import pytest

from orchestrator.analysis.setups import setup_of
from orchestrator.model.experiment import Arm, Experiment, Load, Node, Server, Sweep


@pytest.mark.parametrize(
    ("load", "says"),
    [
        (Load(), "closed"),
        (Load("open", arrival="poisson", rate_per_s=5.0), "open, poisson 5/s"),
        (Load("open", arrival="constant", rate_per_s=0.5), "open, constant 0.5/s"),
        (Load("straddle", around=12, period_s=2.0), "steps across 12, period 2s"),
    ],
)
def test_a_load_is_told_in_words(load, says):
    made = Experiment(
        "trial", Node("gpu-1", "python3"), Server(args={}), (Arm("baseline", {}, {}),), Sweep(load=load)
    )
    assert setup_of(made, {}, {"arms": {}}, simulated=False).work["load"] == says
