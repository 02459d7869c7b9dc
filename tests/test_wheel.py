"""The serving tree for machines without SGLang: fetched once, unpacked whole or not at all."""

from __future__ import annotations

import os
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.demo.wheel import default_cache, download_argv, fetch_wheel, wheel_tree
from orchestrator.errors import DynspecError


def cached_wheel(cache: Path, version: str, text: str = "x = 1\n") -> Path:
    path = cache / "wheels" / f"sglang-{version}-py3-none-any.whl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("sglang/__init__.py", text)
        archive.writestr("sglang/srt/server_args.py", text)
    return path


def test_a_cached_wheel_is_unpacked_without_any_download(tmp_path):
    cached_wheel(tmp_path, "1.0")
    tree = wheel_tree("1.0", tmp_path)
    assert tree == tmp_path / "trees" / "1.0" / "sglang"
    assert (tree / "srt/server_args.py").read_text() == "x = 1\n"


def test_a_version_is_never_answered_with_its_post_release(tmp_path):
    wheel = cached_wheel(tmp_path, "1.0")
    cached_wheel(tmp_path, "1.0.post1")
    assert fetch_wheel("1.0", tmp_path) == wheel


def test_a_tree_that_is_there_is_used_as_it_is(tmp_path):
    cached_wheel(tmp_path, "1.0")
    first = wheel_tree("1.0", tmp_path)
    cached_wheel(tmp_path, "1.0", "x = 2\n")
    assert (wheel_tree("1.0", tmp_path) / "__init__.py").read_text() == "x = 1\n"
    assert first.is_dir()


def test_several_at_once_get_one_whole_tree_and_leave_no_scratch(tmp_path):
    cached_wheel(tmp_path, "1.0")
    with ThreadPoolExecutor(8) as pool:
        trees = list(pool.map(lambda _: wheel_tree("1.0", tmp_path), range(16)))
    assert set(trees) == {tmp_path / "trees" / "1.0" / "sglang"}
    assert os.listdir(tmp_path / "trees") == ["1.0"]


def test_a_broken_wheel_leaves_no_tree(tmp_path):
    cached_wheel(tmp_path, "1.0").write_bytes(b"not a zip")
    with pytest.raises(zipfile.BadZipFile):
        wheel_tree("1.0", tmp_path)
    assert os.listdir(tmp_path / "trees") == []


def test_the_download_names_its_tags_so_that_any_machine_can_ask():
    words = download_argv("0.5.11", Path("/cache"))
    assert words[-1] == "sglang==0.5.11"
    assert {"--no-deps", "--only-binary=:all:", "manylinux_2_34_x86_64", "any"} <= set(words)
    assert words[words.index("--python-version") + 1] == "3.12"


def test_what_pip_says_when_it_fails_is_passed_on(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # pip refuses by itself, no network is asked
    with pytest.raises(DynspecError, match=r"could not get the wheel of sglang 0\.0\.1") as failure:
        fetch_wheel("0.0.1", tmp_path)
    assert any("0.0.1" in line for line in failure.value.details)
    assert os.listdir(tmp_path / "wheels") == []


def test_a_checkout_caches_beside_itself():
    assert (default_cache().parent / "pyproject.toml").is_file()


@pytest.mark.wheels
def test_the_real_wheel_holds_the_files_that_the_first_patch_edits():
    tree = wheel_tree("0.5.11")
    assert (tree / "srt/server_args.py").is_file()
    assert (tree / "srt/speculative/eagle_worker_v2.py").is_file()
