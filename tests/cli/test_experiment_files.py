"""The experiment file and the files that it names, as people have them: missing, a folder, in another encoding."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.cli import files
from orchestrator.errors import ExperimentError, UsageError
from orchestrator.patchset import carried_patches

DEMO = Path("experiments/demo.yaml").resolve()


def refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(UsageError) as refused:
        files.load(path, overrides)
    return refused.value.render()


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"schema: 1\nname: caf\xe9\n", "e.yaml:2: not UTF-8: byte 0xe9\n-> save the file as UTF-8"),
        ("schema: 1\n".encode("utf-16"), "e.yaml:1: UTF-16 text\n-> save the file as UTF-8"),
        (
            b"schema: 1\nname: a\0b\n",
            "e.yaml:2: a NUL byte: no text file, or UTF-16\n-> save the file as UTF-8",
        ),
    ],
)
def test_text_of_another_encoding_is_refused_with_its_line_and_what_to_do(
    tmp_path: Path, raw: bytes, says: str
) -> None:
    (tmp_path / "e.yaml").write_bytes(raw)
    assert refusal(tmp_path / "e.yaml") == f"{tmp_path}/{says}"


def test_a_folder_is_told_from_a_file_and_its_experiments_are_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    Path("mine/first.yaml").touch()
    assert refusal(Path("mine")) == "mine is a folder, not an experiment file\n-> there are: mine/first.yaml"


def test_without_any_experiment_the_way_to_the_first_one_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DYNSPEC_EXPERIMENT", raising=False)
    says = "no file experiments/default.yaml\n-> dynspec init NODE writes one"
    assert refusal(files.default_experiment()) == says


def test_a_pipe_or_a_device_in_the_place_of_an_experiment_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "device").symlink_to("/dev/null")
    os.mkfifo(tmp_path / "pipe")
    for name in ("device", "pipe"):
        assert "can't be read: a pipe or a device, not a file" in refusal(tmp_path / name)


def test_line_ends_of_another_system_are_the_same_experiment(tmp_path: Path) -> None:
    (tmp_path / "dos.yaml").write_bytes(DEMO.read_bytes().replace(b"\n", b"\r\n"))
    assert files.load(tmp_path / "dos.yaml") == files.load(DEMO)


@pytest.mark.parametrize(
    ("prompts", "says"),
    [
        (None, "cannot read"),
        (b"", "has no prompts"),
        (b'"fine"\n"caf\xe9"\n', "p.jsonl:2: not UTF-8"),
        (b'"fine"\n{"text": "a"}\n', "p.jsonl:2: an object needs exactly one of"),
        (b'"fine"\n[4, 5]\n', "prompt 1: chat takes text or messages, not token ids"),
    ],
)
def test_prompts_that_a_run_could_not_send_are_refused_without_a_node(
    tmp_path: Path, prompts: bytes | None, says: str
) -> None:
    path = tmp_path / "e.yaml"
    path.write_bytes(DEMO.read_bytes())
    if prompts is not None:
        (tmp_path / "p.jsonl").write_bytes(prompts)
    assert says in refusal(path, "sweep.prompts={file: p.jsonl}")


def test_prompts_are_a_file_since_they_are_read_more_than_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p.jsonl")
    (tmp_path / "e.yaml").write_bytes(DEMO.read_bytes())
    said = refusal(tmp_path / "e.yaml", "sweep.prompts={file: p.jsonl}")
    assert said == f"sweep.prompts: cannot read {tmp_path}/p.jsonl: a pipe or a device, not a file"


def test_an_experiment_may_come_through_a_pipe(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, DEMO.read_bytes())
    os.close(writing)
    assert files.load(Path(f"/dev/fd/{reading}")).experiment.name == "demo"
    os.close(reading)


def test_where_no_patch_is_carried_the_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError) as refused:
        files.load(DEMO, carried=carried_patches(tmp_path))
    assert f"no patch is called `spec_banner`; there are none in {tmp_path}" in refused.value.render()


def test_a_named_ssh_configuration_must_be_there(tmp_path: Path) -> None:
    for place in ("/nowhere/config", "~nobody-here/config"):
        assert f"{place} does not exist" in refusal(DEMO, f"node.ssh_config={place}")
    assert files.load(DEMO, ["node.ssh_config=/nowhere/config", "node.host=local"]).warnings == ()


def test_an_absent_known_hosts_file_is_a_note_since_ssh_takes_it_for_an_empty_one(tmp_path: Path) -> None:
    for place in ("/nowhere/hosts", "~nobody-here/hosts"):
        (note,) = files.load(DEMO, [f"node.known_hosts={place}"]).warnings
        assert note == f"node.known_hosts: no file {place} here, so no key of dynspec-demo is known"
