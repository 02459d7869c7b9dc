"""The threshold of a timing run comes from other boots, by a rule."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from best_threshold import best_threshold, main


def summary(**arms: dict[int, float]) -> dict:
    points = {
        name: [{"concurrency": c, "metrics": {"output_tps": {"value": v}}} for c, v in speeds.items()]
        for name, speeds in arms.items()
    }
    return {"arms": {name: {"points": found} for name, found in points.items()}}


@pytest.mark.parametrize(
    ("static", "threshold"),
    [({1: 3.0, 4: 9.0, 16: 20.0}, 4), ({1: 1.0, 4: 9.0, 16: 40.0}, 0), ({1: 3.0, 4: 9.0, 16: 40.0}, 16)],
)
def test_it_is_the_largest_concurrency_up_to_which_static_was_never_slower(static, threshold):
    assert best_threshold(summary(none={1: 2.0, 4: 8.0, 16: 30.0}, static=static)) == threshold


def test_the_first_run_of_both_arms_decides(tmp_path: Path, capsys):
    for name, found in (("a", summary(none={1: 2.0})), ("b", summary(none={1: 2.0}, static={1: 3.0}))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(json.dumps(found))
    assert main([str(tmp_path / name) for name in ("b", "a", "lost")]) == 0
    assert capsys.readouterr().out == "1\n"
    assert main([str(tmp_path / "a")]) == 1
