"""How many inputs each parser is given: a fixed set of 2,000 as part of the suite, as many fresh ones as asked for by
DYNSPEC_FUZZ_INPUTS (`make fuzz`: 100,000)."""

from __future__ import annotations

import os
from datetime import timedelta

from hypothesis import HealthCheck, settings

VARIABLE = "DYNSPEC_FUZZ_INPUTS"
IN_SUITE = 2_000
ASKED = int(os.environ.get(VARIABLE, IN_SUITE))
ONE_INPUT_S = 10.0  # a parser that takes longer over one input hangs


def fuzzed(share: float = 1.0) -> settings:
    """Settings for one parser. Where several tests feed the same parser, their shares add up to one."""
    return settings(
        max_examples=max(10, int(ASKED * share)),
        deadline=timedelta(seconds=ONE_INPUT_S),
        derandomize=ASKED <= IN_SUITE,  # a red build can be repeated; finding new inputs is for the long run
        database=None,
        suppress_health_check=list(HealthCheck),
    )
