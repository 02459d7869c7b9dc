"""The run folder: atomic, never overwritten, redacted, readable after a kill."""

import json
import re

import pytest

from orchestrator.errors import UsageError
from orchestrator.model.facts import PortFact
from orchestrator.redact import Redactor
from orchestrator.store import RunStore, new_run_id, plain, safe_name


@pytest.fixture
def store(tmp_path):
    return RunStore.create(tmp_path, "20260101-000000-x-0a1b", Redactor({"T": "sekret-value"}))


def test_a_run_id_has_time_name_and_four_hex_digits():
    assert re.fullmatch(r"19700101-000000-my-test-[0-9a-f]{4}", new_run_id("my test", 0.0))


@pytest.mark.parametrize("name", ["../../etc", "a/b", ".", "", "x" * 5 + "\x00", "-rf"])
def test_any_name_becomes_one_harmless_path_component(name):
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", safe_name(name))


def test_a_run_folder_is_never_made_twice(store, tmp_path):
    with pytest.raises(FileExistsError):
        RunStore.create(tmp_path, store.run_id, Redactor({}))


def test_what_is_written_is_redacted_and_leaves_no_temporary_file(store):
    store.write("a/b.txt", "x sekret-value y")
    store.write_json("c.json", {"key": "sekret-value"})
    store.event("note", {"text": "sekret-value"})
    store.write_point("arm", 1, 0, 4, b'{"i": 0, "error": "sekret-value"}\n', {"why": "sekret-value"})
    files = [path for path in store.folder.rglob("*") if path.is_file()]
    assert len(files) == 5
    assert all(b"sekret" not in path.read_bytes() for path in files)


def test_a_run_folder_is_for_its_user_only(store):
    store.event("note", {})
    store.write("a/b/c.txt", "")
    store.write_point("arm", 1, 0, 4, b"", {})
    kept = [store.folder, *store.folder.rglob("*")]
    assert len(kept) == 6 + 4  # folders and files
    wrong = {path.name: oct(path.stat().st_mode) for path in kept if path.stat().st_mode & 0o077}
    assert wrong == {}


def test_json_files_carry_the_schema(store):
    assert json.loads(store.write_json("x.json", {"a": PortFact(1, False)}).read_text())["schema"] == 1


def test_a_point_counts_once_its_meta_file_is_there(store):
    store.write_point("arm", 2, 1, 8, b"{}\n", {"load": {}})
    store.write_bytes("arms/arm/boot-2/point-02-c16.jsonl", b"{}\n")  # records alone: killed in between
    store.write_bytes("arms/arm/boot-2/point-03-c16.meta.json", b'{"arm": "arm", ')  # torn
    found = list(store.points())
    assert [(point.arm, point.boot, point.index, point.concurrency) for point in found] == [("arm", 2, 1, 8)]


def test_an_unknown_run_is_refused_with_the_latest_ones(store, tmp_path):
    store.write_json("plan.json", {})
    with pytest.raises(UsageError) as caught:
        RunStore.open(tmp_path, "nothere")
    assert store.run_id in caught.value.help


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_is_no_run_even_from_within_a_run_folder(store, name, monkeypatch):
    store.write_json("plan.json", {})
    monkeypatch.chdir(store.folder)
    with pytest.raises(UsageError, match="the name of the run is empty"):
        RunStore.open(store.folder.parent, name)


def test_a_folder_that_is_there_and_holds_no_run_is_not_called_missing(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"empty is not a run folder: it has neither plan.json nor"):
        RunStore.open(tmp_path, "empty")


def test_a_damaged_file_is_named_not_traced(store):
    store.write("facts.json", "{")
    with pytest.raises(UsageError, match=r"facts\.json is damaged"):
        store.read_json("facts.json")


def test_dataclasses_become_plain_data_with_their_type():
    assert plain(PortFact(1, False)) == {
        "type": "PortFact", "port": 1, "in_use": False, "pid": None, "command": None, "user": None
    }  # fmt: skip
