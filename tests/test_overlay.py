"""Overlay mode, the judging: what speaks against a server that should run from the copy; which modules must be gone."""

from __future__ import annotations

import pytest

from orchestrator.model.plan import Edit, PatchSet
from orchestrator.remote.replies import Origin, Origins
from orchestrator.runner.overlay import contradictions, removed_modules

ROOT = "/work/run-1/overlay"
OURS = Origin(7, "python3 -m sglang.launch_server", "overlay", f"was started with PYTHONPATH={ROOT}")
RENAMED = Origin(8, "sglang::scheduler_TP0", "unknown", "its environment cannot be read")
THEIRS = Origin(9, "python3 -c spawn_main", "installed", "was started with PYTHONPATH=/theirs")


@pytest.mark.parametrize(
    ("processes", "files", "says"),
    [
        ((OURS,), (), []),
        ((OURS, RENAMED), (f"{ROOT}/sglang/srt/speculative/eagle_worker.py",), []),
        ((OURS, THEIRS), (), ["pid 9 (python3 -c spawn_main) was started with PYTHONPATH=/theirs"]),
        ((RENAMED,), (), ["none of its processes can be shown to run from it"]),
        ((OURS,), ("/site/sglang/srt/worker.py",), ["a rank says that it runs /site/sglang/srt/worker.py"]),
        ((OURS,), (f"{ROOT}-2/sglang/w.py",), [f"a rank says that it runs {ROOT}-2/sglang/w.py"]),
    ],
)
def test_one_process_or_rank_elsewhere_is_enough_and_an_unreadable_one_is_none(
    processes: tuple[Origin, ...], files: tuple[str, ...], says: list[str]
) -> None:
    assert contradictions(Origins(ROOT, processes), files) == says


def test_modules_of_removed_files_are_named_as_they_are_imported() -> None:
    edits = (
        Edit("srt/a.py", "/x/srt/a.py", "aa", None),
        Edit("srt/b/__init__.py", "/x/srt/b/__init__.py", "bb", None),
        Edit("srt/data.json", "/x/srt/data.json", "cc", None),
        Edit("srt/kept.py", "/x/srt/kept.py", "dd", "ee", "text"),
    )
    found = list(removed_modules("sglang", PatchSet("gone", ("gone",), edits, ())))
    assert found == ["sglang.srt.a", "sglang.srt.b"]
