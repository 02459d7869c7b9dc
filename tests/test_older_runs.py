"""A run was valid when it began: what it kept is read, whatever rules came later. Those are told."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from orchestrator.cli.compares import compare
from orchestrator.cli.files import load
from orchestrator.cli.results import report
from orchestrator.config import load_begun, load_experiment
from orchestrator.errors import ExperimentError
from orchestrator.records.begun import begun, begun_experiment
from orchestrator.store import LOCK_FILE, RunStore
from tests.run_folders import write_run

REFUSED = yaml.safe_load((Path(__file__).parent / "config" / "refused.yaml").read_text())
BASE = (Path(__file__).parent / "config" / "base.yaml").read_text()
BROKEN = [  # as the lock file writes it, as an older version took it, what today's rule says
    (
        "model-path: /models/m",
        "model-path: ~/m",
        "server.args.model-path: no shell and no SGLang replaces the `~`",
    ),
    ("repeats: 1", "repeats: 1, requests_per_slot: 100000000", "sweep.requests_per_slot: "),
    ("python: /venv", "workdir: /etc/x, python: /venv", "node.workdir: `/etc/x` is a folder of the system"),
    ("python: /venv", "cwd: work, python: /venv", "node.cwd: `work` is relative"),
    (
        "python: /venv",
        "free_list: [{user: a, command: b}], python: /venv",
        "node.free_list: has no effect with free: own",
    ),
    ("sweep:", "colour: red\nsweep:", "colour: unknown key"),
    ("output_tokens: 64", "output_tokens: 64, temperature: 100", "sweep.temperature: 100 is outside"),
]


def older(results: Path, run_id: str, old: str, new: str) -> RunStore:
    run = write_run(results, run_id, boots=1, sweep=(1,), arms=("baseline", "eagle3"))
    lock = run.folder / LOCK_FILE
    text = (
        lock.read_text().replace(", requests_per_slot: 4", "")
        if "requests_per_slot" in new
        else lock.read_text()
    )
    assert old in text
    lock.write_text(text.replace(old, new, 1))
    return run


@pytest.mark.parametrize(("old", "new", "says"), BROKEN)
def test_a_rule_that_is_newer_than_a_run_is_told_of_it_and_refuses_a_new_run_of_its_file(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    run = older(tmp_path, "20260101-000000-trial-0001", old, new)
    (told,) = begun(run).broken
    assert says in told
    with pytest.raises(ExperimentError) as refused:
        load(run.folder / LOCK_FILE)
    assert says in refused.value.render()


def test_what_a_run_had_is_what_is_read(tmp_path: Path) -> None:
    run = older(tmp_path, "20260101-000000-trial-0001", "model-path: /models/m", "model-path: ~/m")
    assert begun_experiment(run).server.args["model-path"] == "~/m"
    assert begun(write_run(tmp_path, "20260102-000000-trial-0002", boots=1, sweep=(1,))).broken == ()


def test_report_and_compare_read_such_a_run_and_note_the_rule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = ["20260101-000000-trial-0001", "20260102-000000-trial-0002"]
    for run_id in ids:
        older(tmp_path, run_id, "model-path: /models/m", "model-path: ~/m")
    assert report(ids[0], results=tmp_path, md=True) == 0
    note = "the run is older than a rule that would refuse it today: "
    assert f"- Note: {note}" in capsys.readouterr().out
    assert compare(*ids, results=tmp_path) == 0
    said = capsys.readouterr().err
    assert all(f"dynspec: note: {run_id}: {note}" in said for run_id in ids)


def test_of_each_wrong_file_the_lenient_reading_tells_what_the_strict_one_refuses() -> None:
    lenient = 0
    for row in REFUSED:
        text = BASE
        for old, new in row["change"]:
            text = text.replace(old, new, 1)
        with suppress(ExperimentError):  # a value that cannot be read at all
            found = load_begun(text, name="x.yaml")
            with pytest.raises(ExperimentError) as strict:
                load_experiment(text, name="x.yaml", patches=("spec_banner", "dynamic_disable"))
            lenient += bool(found.broken)
            assert set(found.broken) <= {*strict.value.details, strict.value.message}
    assert lenient > 20
