"""What stands in a tree while an unfinished run has changed it is no ground to judge anything by."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import DynspecError, NodeBusy, NodeDirty
from orchestrator.model.facts import ChangedFile, Facts, FileFact, Pristine
from orchestrator.patchset import carried_patches
from orchestrator.remote.replies import ReadFile
from orchestrator.runner.doctor import Place, examine
from orchestrator.runner.leftovers import tree_words
from orchestrator.runner.prepare import inspect
from tests.plan_cases import experiment, facts

SERVER_ARGS = "srt/server_args.py"
JOURNAL = {
    "run_id": "r0",
    "path": "/x",
    "state": "dead",
    "files_changed": [f"/home/bob/venv/sglang/{SERVER_ARGS}"],
    "server_pid": None,
    "same_boot": True,
}
LOCK = {
    "run_id": "r1",
    "user": "bob",
    "controller": "bob@laptop:7",
    "guardian_pid": 9,
    "since_utc": "2026-01-01T00:00:00Z",
    "state": "live",
    "lease_left_s": 90,
    "phase": "",
}


class Reading:
    """A node that tells what it is."""

    def __init__(self, told: Facts) -> None:
        self._told = told

    def facts(self, **asked: object) -> Facts:
        return self._told

    def contents(self, files: tuple[FileFact, ...]) -> dict[str, bytes]:
        return {fact.absolute: b"" for fact in files}

    def known(self, fact: FileFact) -> bytes | None:
        return None

    def read_files(self, paths: list[str]) -> tuple[ReadFile, ...]:
        return tuple(ReadFile(path, None, None, 0) for path in paths)


REFUSALS: list[tuple[dict[str, Any], type[DynspecError], str]] = [
    ({"lock": LOCK, "journals": [JOURNAL | {"state": "live", "run_id": "r1"}]}, NodeBusy, "in use by run r1"),
    (
        {"journals": [JOURNAL]},
        NodeDirty,
        "run r0 left gpu-1 changed (srt/server_args.py); the next run restores",
    ),
    (
        {"lock": LOCK | {"state": "orphaned"}, "journals": [JOURNAL | {"state": "live", "run_id": "r1"}]},
        NodeDirty,
        "run r1 left gpu-1 changed",
    ),
]


@pytest.mark.parametrize(("changes", "kind", "words"), REFUSALS)
def test_a_tree_that_another_run_has_changed_is_refused_by_its_name_and_not_as_a_tree_that_does_not_fit(
    changes: dict[str, Any], kind: type[DynspecError], words: str
) -> None:
    with pytest.raises(kind) as refused:
        inspect(Reading(facts(changes)), experiment([]), ())  # type: ignore[arg-type]
    assert words in refused.value.message


def test_doctor_names_the_run_whose_changes_it_sees_and_judges_no_patch_by_them() -> None:
    pristine = Pristine("RECORD", 3, (ChangedFile(SERVER_ARGS, "changed"), ChangedFile("b.py", "changed")), 2)
    told = facts({"journals": [JOURNAL], "tree": {"pristine": pristine}})
    found = {(item.topic, item.text) for item in examine(Reading(told), Place("python3")).findings}  # type: ignore[arg-type]
    assert ("files", f"changed by run r0, which has not given the node back: {SERVER_ARGS}") in found
    assert (
        "files",
        "changed by hand before this run: b.py (changed) (3 files compared with RECORD)",
    ) in found
    assert ("patch dynamic_disable", "not judged: run r0 has changed files that it edits") in found


def test_doctor_notes_a_broken_patch_and_judges_the_others(tmp_path: Path) -> None:
    for name, body in (("torn", "def patch("), ("wild", "def patch(path, text):\n    1 / 0\n")):
        (tmp_path / name).mkdir()
        targets = f"[{{path: {SERVER_ARGS}, patcher: patcher.py}}]"
        manifest = f"schema: 1\nname: {name}\nsummary: s\ntargets: {targets}\n"
        (tmp_path / name / "manifest.yaml").write_text(manifest)
        (tmp_path / name / "patcher.py").write_text(body)
    shutil.copytree("patches/spec_banner", tmp_path / "spec_banner")
    found = examine(Reading(facts({})), Place("python3"), carried_patches(tmp_path))  # type: ignore[arg-type]
    told = {item.topic: (item.state, item.text) for item in found.findings}
    assert found.fits.keys() == {"spec_banner"}
    assert told["patch torn"][0] == told["patch wild"][0] == "note"
    assert "torn/patcher.py: does not load: SyntaxError" in told["patch torn"][1]
    assert "ZeroDivisionError" in told["patch wild"][1]


def test_a_tree_that_nobody_has_changed_is_as_installed() -> None:
    assert list(tree_words(Pristine("RECORD", 3), facts({}))) == [
        "as installed (3 files compared with RECORD)"
    ]
