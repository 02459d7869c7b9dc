"""The first patch on the real files: it applies, says what it should, and refuses what it must."""

from __future__ import annotations

import ast
import functools
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.errors import AnchorError, DoesNotFit
from orchestrator.patchset import FitState, build_patch_set, check_fit, load_patch, needed_files
from tests.wheels import LATER, PATCHES, TWO_WORKERS, read_sources, sha256, tree_facts, wheel_tree

BANNER = load_patch(PATCHES / "spec_banner")
WORKERS = {
    "srt/speculative/eagle_worker.py": "EAGLEWorker",
    "srt/speculative/eagle_worker_v2.py": "EAGLEWorkerV2",
}
pytestmark = pytest.mark.wheels


def sources_of(version: str) -> dict[str, str | None]:
    return read_sources(wheel_tree(version), needed_files((BANNER,)))


@functools.cache
def listed(version: str):
    """The patch set of an untouched listed release."""
    return built(version, sources_of(version))


def built(version: str, sources=None, *, says: str | None = None, allow_unlisted: bool = False):
    sources = sources or sources_of(version)
    return build_patch_set(
        (BANNER,), sources, tree_facts(says or version, sources), allow_unlisted=allow_unlisted
    )


@pytest.mark.parametrize("version", TWO_WORKERS)
def test_every_listed_release_is_patched_in_all_three_files_and_compiles(version):
    patch_set = listed(version)
    assert [edit.path for edit in patch_set.edits] == ["srt/server_args.py", *WORKERS]
    for edit in patch_set.edits:
        compile(edit.after, edit.path, "exec")
        assert edit.after.count("# dynspec:spec_banner") == 1
        assert edit.after_sha256 == sha256(edit.after)


@pytest.mark.parametrize("version", TWO_WORKERS)
def test_the_manifest_lists_the_hashes_of_the_real_files_before_and_after(version):
    sources = sources_of(version)
    listing = BANNER.listings[version]
    assert listing.files == {path: sha256(text) for path, text in sources.items()}
    assert listing.after == {edit.path: edit.after_sha256 for edit in listed(version).edits}


def test_the_manifest_lists_exactly_the_releases_that_have_both_workers():
    assert tuple(BANNER.listings) == TWO_WORKERS


@pytest.mark.parametrize("version", TWO_WORKERS)
def test_taking_the_added_lines_out_gives_back_the_original_bytes(version):
    sources = sources_of(version)
    for edit in listed(version).edits:
        before, after = sources[edit.path].splitlines(keepends=True), edit.after.splitlines(keepends=True)
        start = next(i for i, (b, a) in enumerate(zip([*before, ""], after, strict=False)) if b != a)
        grown = len(after) - len(before)
        assert after[:start] + after[start + grown :] == before


@pytest.mark.parametrize("version", TWO_WORKERS)
def test_a_patched_tree_is_never_patched_again(version):
    once = listed(version)
    again = {edit.path: edit.after for edit in once.edits}
    with pytest.raises(DoesNotFit, match="already carries spec_banner") as refusal:
        built(version, again, allow_unlisted=True)
    assert "dynspec restore NODE" in refusal.value.help


def test_one_file_left_patched_by_a_run_that_was_cut_off_is_named():
    sources = sources_of("0.5.11")
    path = "srt/speculative/eagle_worker.py"
    (edit,) = (edit for edit in listed("0.5.11").edits if edit.path == path)
    with pytest.raises(DoesNotFit, match=rf"already carries spec_banner in {path}"):
        built("0.5.11", {**sources, path: edit.after})


@pytest.mark.parametrize("version", LATER)
def test_releases_without_the_first_worker_need_no_banner(version):
    fit = check_fit(BANNER, version, dict.fromkeys(BANNER.paths), {})
    assert fit.state is FitState.NATIVE
    assert "EAGLEWorkerV2 is the only EAGLE worker" in fit.reason


def test_an_unlisted_release_is_refused_unless_the_experiment_allows_it():
    sources = sources_of("0.5.11")
    with pytest.raises(DoesNotFit, match=r"sglang 0\.5\.11\.post7 is not listed") as refusal:
        built("0.5.11", says="0.5.11.post7")
    assert "allow_unlisted" in refusal.value.help
    patched = built("0.5.11", says="0.5.11.post7", allow_unlisted=True)
    assert {edit.path for edit in patched.edits} == set(sources)


def test_an_edited_file_of_a_listed_release_is_refused_and_named():
    sources = sources_of("0.5.11")
    sources["srt/server_args.py"] += "# a local change\n"
    with pytest.raises(DoesNotFit, match=r"srt/server_args\.py: not the file of sglang 0\.5\.11"):
        built("0.5.11", sources)


@pytest.mark.parametrize(("path", "klass"), WORKERS.items())
def test_a_worker_that_may_end_early_is_refused(path, klass):
    text = f"class {klass}:\n    def __init__(self):\n        if self:\n            return\n        pass\n"
    with pytest.raises(AnchorError, match="returns early"):
        _target(path).edit(text, unique=True)


def _target(path: str):
    return next(target for target in BANNER.targets if target.path == path)


def _added(version: str, path: str, klass: str, method: str) -> ast.stmt:
    (edit,) = (edit for edit in listed(version).edits if edit.path == path)
    body = next(n for n in ast.parse(edit.after).body if isinstance(n, ast.ClassDef) and n.name == klass).body
    return next(n for n in body if isinstance(n, ast.FunctionDef) and n.name == method).body[-1]


def _run(stmt: ast.stmt, file: str, names: dict[str, object], caplog) -> list[str]:
    """Run the added statement alone, as the last one of its method would."""
    names = {"__file__": file, "logger": logging.getLogger("sglang.fake"), **names}
    with caplog.at_level(logging.INFO):
        exec(compile(ast.Module([stmt], []), file, "exec"), names)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(("path", "klass"), WORKERS.items())
def test_the_worker_names_itself_its_rank_its_shape_and_its_file(path, klass, caplog):
    worker = type(klass, (), {})()
    worker.topk, worker.speculative_num_steps, worker.speculative_num_draft_tokens = 1, 3, 4
    stmt = _added("0.5.11", path, klass, "__init__")
    (line,) = _run(stmt, f"/opt/{Path(path).name}", {"self": worker, "tp_rank": 7}, caplog)
    assert line == (
        f"dynspec: worker={klass} tp_rank=7 topk=1 steps=3 draft_tokens=4 file=/opt/{Path(path).name}"
    )


@pytest.mark.parametrize(
    ("algorithm", "overlap_off", "expected"),
    [
        (
            "EAGLE3",
            True,
            ["dynspec: arguments choose path=v1 algorithm=EAGLE3 topk=4 steps=2 draft_tokens=16"],
        ),
        (
            "EAGLE",
            False,
            ["dynspec: arguments choose path=v2 algorithm=EAGLE topk=4 steps=2 draft_tokens=16"],
        ),
        (None, False, []),
        ("NGRAM", True, []),
    ],
)
def test_the_arguments_say_which_path_they_choose(algorithm, overlap_off, expected, caplog):
    arguments = SimpleNamespace(
        speculative_algorithm=algorithm,
        disable_overlap_schedule=overlap_off,
        speculative_eagle_topk=4,
        speculative_num_steps=2,
        speculative_num_draft_tokens=16,
    )
    stmt = _added("0.5.11", "srt/server_args.py", "ServerArgs", "__post_init__")
    assert _run(stmt, "server_args.py", {"self": arguments}, caplog) == expected
