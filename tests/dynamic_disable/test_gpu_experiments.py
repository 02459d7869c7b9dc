"""The committed GPU experiments say what their comments say."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.native_adaptive import default_batch_sizes, native_adaptive

GPU = Path(__file__).resolve().parents[2] / "experiments" / "gpu"


@pytest.mark.parametrize("threshold", [0, 12])
def test_the_native_configurations_are_those_that_the_threshold_gives(threshold: int) -> None:
    text = (GPU / f"adaptive-{threshold}.json").read_text()
    assert text == native_adaptive(threshold, 3, default_batch_sizes(64)).to_json()
