"""What `status` and `restore` print: short enough to be read, whatever was changed."""

from __future__ import annotations

from orchestrator.cli.node_text import status_lines
from orchestrator.cli.nodes import _run_line
from orchestrator.model.facts import JournalFact
from orchestrator.remote.replies import Status

ROOT = "/opt/venv/lib/python3.12/site-packages/sglang/srt"
PATHS = tuple(f"{ROOT}/managers/file_{number:02}.py" for number in range(19))
SHORT = f"19 files below {ROOT}/managers: file_00.py, file_01.py, file_02.py and 16 more (all with --json)"


def test_status_shortens_the_changed_files_as_plan_and_restore_do() -> None:
    journals = tuple(JournalFact("R", "/j", "dead", files, None, True) for files in (PATHS, (PATHS[0],), ()))
    told = status_lines("gpu-1", Status(None, journals, None, (), ()))[1:]
    start = "  open journal of run R (dead); files that are not as they were: "
    assert told == [f"{start}{words}" for words in (SHORT, PATHS[0], "none")]


def test_restore_shortens_what_it_put_back_and_what_it_left() -> None:
    run = {"run_id": "R", "stopped": [7], "restored": PATHS, "kept": PATHS, "patched": []}
    assert _run_line("gpu-1", run) == (
        f"gpu-1: run R: stopped 1 process; put back and verified: {SHORT}; left as somebody else changed them: {SHORT}"
    )
