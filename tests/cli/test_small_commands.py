"""schema, patch and completion from the shell; and that every command shows an example and offers --json."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import typer

from orchestrator.cli import files
from orchestrator.cli.app import app
from orchestrator.errors import PatchLoadError, UsageError
from orchestrator.patchset import carried_patches
from orchestrator.schema import experiment_schema
from tests.cli.command import ROOT, dynspec
from tests.wheels import wheel_tree

ROOT_GROUP = typer.main.get_command(app)
GROUPS = {"": ROOT_GROUP.commands, "patch ": ROOT_GROUP.commands["patch"].commands}
LEAVES = {
    f"{group}{name}": command
    for group, commands in GROUPS.items()
    for name, command in commands.items()
    if not hasattr(command, "commands") and not command.hidden
}


def test_the_schema_is_printed_written_and_named_for_editors(tmp_path: Path) -> None:
    assert dynspec("schema").value == experiment_schema()
    done = dynspec("schema", "-o", tmp_path / "x.schema.json")
    assert json.loads((tmp_path / "x.schema.json").read_text()) == experiment_schema()
    assert "# yaml-language-server: $schema=x.schema.json" in done.out


@pytest.mark.parametrize("name", sorted(LEAVES))
def test_every_command_has_an_example_and_a_first_line_that_fits(name: str) -> None:
    command = LEAVES[name]
    assert "xample: " in (command.epilog or "")
    assert f"dynspec {name}" in command.epilog
    written = command.epilog.removeprefix("\b\n")
    shown = command.get_help(typer.Context(command, terminal_width=78)).splitlines()
    assert written.partition(", then ")[0] in "\n".join(shown)  # a copied command is whole
    assert command.help


@pytest.mark.parametrize("name", sorted(set(LEAVES) - {"demo"}))
def test_every_command_answers_programs_too(name: str) -> None:
    assert "--json" in [option for item in LEAVES[name].params for option in item.opts]


PATHS = [
    (name, param)
    for name, command in sorted(LEAVES.items())
    for param in command.params
    if param.metavar in ("DIR", "FILE", "PATH", "EXPERIMENT.yaml", "[EXPERIMENT.yaml]")
]


@pytest.mark.parametrize(("name", "param"), PATHS, ids=[f"{name} {param.name}" for name, param in PATHS])
def test_no_command_takes_an_empty_path_for_the_working_folder(name: str, param: Any) -> None:
    option = max(param.opts, key=len)
    shown, words = (option, [option]) if option.startswith("-") else (param.metavar.strip("[]"), [])
    before = ["node"] if name == "doctor" and not words else []
    with pytest.raises(UsageError, match=f"^{shown}: the path is empty"):
        LEAVES[name].make_context(name, [*before, *words, ""])


def test_an_empty_path_is_bad_input_and_nothing_is_written(tmp_path: Path) -> None:
    done = dynspec("run", ROOT / "experiments/demo.yaml", "--results", "", "--json", cwd=tmp_path)
    assert (done.code, done.value["error"]["message"]) == (2, "--results: the path is empty")
    assert list(tmp_path.iterdir()) == []


def test_patches_are_told_to_programs_whole() -> None:
    listed = {item["name"]: item for item in dynspec("patch", "list", "--json").value["patches"]}
    shown = dynspec("patch", "show", "dynamic_disable", "--json").value
    assert listed["dynamic_disable"] == {key: value for key, value in shown.items() if key != "schema"}
    assert "speculative-disable-batch-threshold" in shown["flags"]
    assert "0.5.11" in shown["versions"]


def test_a_patch_that_does_not_load_is_listed_with_its_fault_and_ends_nothing_that_does_not_use_it(
    tmp_path: Path,
) -> None:
    shutil.copytree(
        ROOT / "orchestrator", tmp_path / "orchestrator", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copytree(ROOT / "patches/spec_banner", tmp_path / "patches/spec_banner")
    (tmp_path / "patches/torn").mkdir()
    (tmp_path / "patches/torn/manifest.yaml").write_text("schema: 2\n")
    listed = dynspec("patch", "list", "--json", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert ([item["name"] for item in listed.value["patches"]], listed.code) == (["spec_banner"], 2)
    (broken,) = listed.value["broken"]
    assert (broken["name"], broken["details"][0]) == ("torn", "schema: Input should be 1 (read: 2)")
    carried = carried_patches(tmp_path / "patches")
    experiment = ROOT / "experiments/demo.yaml"
    assert files.load(experiment, carried=carried).experiment.arm("eagle3-banner").patches == ("spec_banner",)
    with pytest.raises(PatchLoadError, match="arm eagle3-banner: patch torn does not load: "):
        files.load(experiment, ["arms.eagle3-banner.patches=[torn]"], carried)


@pytest.mark.wheels
@pytest.mark.parametrize(("version", "code", "state"), [("0.5.11", 0, "fits"), ("0.5.23", 0, "native")])
def test_a_patch_is_checked_against_a_folder(version: str, code: int, state: str) -> None:
    done = dynspec("patch", "check", "spec_banner", "--package-dir", wheel_tree(version), "--json")
    assert (done.code, done.value["exit_code"], done.value["state"]) == (code, code, state)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("dynspec sc", ["schema"]),
        ("dynspec patch show dyn", ["dynamic_disable"]),
        ("dynspec status gpu", ["gpu-a", "gpu-b"]),
        ("dynspec logs 2026", ["20260102-000000-b-0002", "20260101-000000-a-0001"]),
        ("dynspec status zzz", []),
    ],
)
def test_a_shell_completes_commands_patches_hosts_and_runs(
    tmp_path: Path, typed: str, offered: list[str]
) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host gpu-a gpu-b *.lan !x\n  Port 2222\nhost other\n")
    for run in ("20260101-000000-a-0001", "20260102-000000-b-0002"):
        (tmp_path / "results" / run).mkdir(parents=True)
        (tmp_path / "results" / run / "plan.json").touch()
    env = {"_DYNSPEC_COMPLETE": "complete_bash", "COMP_WORDS": typed, "HOME": str(tmp_path)}
    done = dynspec(cwd=tmp_path, COMP_CWORD=str(len(typed.split()) - 1), **env)
    assert done.out.split() == offered
