"""The count of penalised tokens against a scheduler that counts, with a table of logits for a model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import penalties
import pytest

CYCLE = [5, 9, 14, 3, 8, 1, 11, 2]  # said again and again, so that a token which is not counted shows
PROMPT, STEPS, VOCABULARY = [7, 4, *CYCLE], 32, 40
SAMPLING: list[dict[str, float]] = [
    {"frequency_penalty": 2.0},
    {"presence_penalty": 2.0},
    {"repetition_penalty": 1.8},
]
LOGITS = [
    [3.0 if token == CYCLE[t % 8] else math.sin(token + 5 * t) for token in range(VOCABULARY)]
    for t in range(STEPS)
]


def log_probabilities(logits: list[float], tally: dict[int, int], **sampling: float) -> list[float]:
    """As SGLang applies one of the three, by hand."""
    changed = []
    for token, value in enumerate(logits):
        times = tally.get(token, 0)
        value -= times * sampling.get("frequency_penalty", 0.0)
        value -= bool(times) * sampling.get("presence_penalty", 0.0)
        scale = sampling.get("repetition_penalty", 1.0) if times else 1.0
        changed.append(value * scale if value < 0 else value / scale)
    whole = math.log(sum(map(math.exp, changed)))
    return [value - whole for value in changed]


def answer(
    sampling: dict[str, float], overlap: bool = True, prefills: tuple[int, ...] = ()
) -> dict[str, Any]:
    """What a server says whose scheduler processes a result one turn after its launch, or at once without overlap.

    `prefills`: a prefill of another request takes the turn before these steps.
    """
    said: list[int] = []
    told: list[float] = []
    known: list[int] = []  # processed outputs
    tally: dict[int, int] = {}
    for step in range(STEPS):
        if step in prefills or not overlap:
            known = said[:]
        if step:
            last = known[-1] if known else PROMPT[-1]
            tally[last] = tally.get(last, 0) + 1
        known = said[:]  # the result before this one, processed beside the forward
        values = log_probabilities(LOGITS[step], tally, **sampling)
        said.append(CYCLE[step % 8])
        told.append(values[said[-1]])
    return {"ids": said, "output_token_logprobs": told}


def judged(entry: dict[str, Any], sampling: dict[str, float], **more: Any) -> tuple[str, bool]:
    return penalties.judged(np.array(LOGITS), PROMPT, entry, sampling, **more)


@pytest.mark.parametrize("sampling", SAMPLING, ids=str)
def test_under_overlap_outputs_count_one_step_late_and_the_prompts_last_token_first(sampling):
    assert judged(answer(sampling), sampling) == ("every step fits", True)
    assert not judged(answer(sampling), sampling, serial=True)[1]


@pytest.mark.parametrize("sampling", SAMPLING, ids=str)
def test_without_overlap_they_count_at_once(sampling):
    assert judged(answer(sampling, overlap=False), sampling, serial=True) == ("every step fits", True)


def test_a_prefill_in_between_takes_one_token_from_the_count_and_counts_the_next_one_twice():
    for sampling in SAMPLING:
        for step, missed in ((1, -1), (4, 2)):
            told, fits = judged(answer(sampling, prefills=(step,)), sampling)
            assert fits
            assert told == f"every step fits, with [{missed}] never counted and the next one twice"


@pytest.mark.parametrize("sampling", SAMPLING, ids=str)
def test_a_penalty_that_is_not_applied_or_half_as_strong_fits_nothing(sampling):
    halved = {name: value / 2 if value == 2.0 else 1.3 for name, value in sampling.items()}
    for wrong in ({}, halved):
        told, fits = judged(answer(wrong), sampling)
        assert not fits
        assert told.startswith("FITS NOTHING at [")
