"""Patch folders are read strictly, judged against a tree, and built into exact texts or refused with the reason."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

import pytest

from orchestrator.cli.patch_text import list_lines, patch_lines
from orchestrator.errors import DoesNotFit, PatchLoadError
from orchestrator.model.experiment import Arm
from orchestrator.model.plan import PatchSet
from orchestrator.patchset import (
    Carried,
    FitState,
    available_patches,
    build_patch_set,
    carried_patches,
    check_fit,
    decode_source,
    find_patch,
    load_patch,
    needed_files,
)
from orchestrator.patchset.local import check_folder
from tests.wheels import sha256, tree_facts

MAIN = "def serve():\n    x = 1\n    return x\n"
EXTRA = "def other():\n    return 0\n"
TREE = {"srt/main.py": MAIN, "srt/extra.py": EXTRA}

# A patcher as small as it gets: a comment line with the marker at the end of the file.
APPENDS = """\
from orchestrator.errors import AnchorError

def patch(path, text):
    if text.count("{anchor}") != 1:
        raise AnchorError(path + ": {anchor!r} is not there once")
    return text + "{line}\\n"
"""

MANIFEST = """\
schema: 1
name: toy
summary: adds a line
package: toy_sglang
workers: [v2]
flags: [toy-flag]
targets:
  - {path: srt/main.py, patcher: patcher.py}
versions: {}
"""


def folder_of(
    tmp_path: Path,
    manifest: str = MANIFEST,
    *,
    name: str = "toy",
    line: str = "y = 2",
    anchor: str = "return x",
    **files,
) -> Path:
    """A patch folder on disk; `files` are further files by name with `__` for the dot."""
    folder = tmp_path / name
    folder.mkdir(exist_ok=True)
    (folder / "manifest.yaml").write_text(manifest.replace("name: toy\n", f"name: {name}\n"))
    (folder / "patcher.py").write_text(APPENDS.format(anchor=anchor, line=f"{line}  # dynspec:{name}"))
    for file, text in files.items():
        (folder / file.replace("__", ".")).write_bytes(text.encode())
    return folder


def listed(manifest: str, version: str = "1.0", files=None, after=None) -> str:
    """The manifest with one release listed."""
    files = files or {"srt/main.py": sha256(MAIN)}
    block = f'versions:\n  "{version}":\n    status: listed\n    files:\n'
    block += "".join(f"      {path}: {sha}\n" for path, sha in files.items())
    if after:
        block += "    after:\n" + "".join(f"      {path}: {sha}\n" for path, sha in after.items())
    return manifest.replace("versions: {}\n", block)


AFTER = MAIN + "y = 2  # dynspec:toy\n"
LISTED = listed(MANIFEST, after={"srt/main.py": sha256(AFTER)})


def facts(version: str | None, sources):
    return tree_facts(version, sources, "toy_sglang")


def build(patches, sources=None, version: str | None = "1.0", *, allow_unlisted=False) -> PatchSet:
    sources = {**TREE, **(sources or {})}
    return build_patch_set(patches, sources, facts(version, sources), allow_unlisted=allow_unlisted)


# Reading folders


def test_a_folder_becomes_a_value(tmp_path):
    patch = load_patch(folder_of(tmp_path, LISTED))
    assert (patch.name, patch.workers, patch.flags) == ("toy", ("v2",), ("toy-flag",))
    assert patch.paths == ("srt/main.py",)
    assert patch.listings["1.0"].files == {"srt/main.py": sha256(MAIN)}


def test_a_patch_without_a_listed_version_is_told_so_in_the_list(tmp_path):
    told = list_lines(Carried((load_patch(folder_of(tmp_path)),)))
    assert told == ["toy  adds a line", "  for toy_sglang (no version is listed)"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("summary: adds a line\n", ""), "summary: Field required"),
        (("schema: 1", "schema: 2"), "schema: Input should be 1"),
        (("workers: [v2]", "workers: [v3]"), r"workers\.0: Input should be 'v1' or 'v2' \(read: 'v3'\)"),
        (("workers: [v2]", "worker: [v2]"), "worker: Extra inputs are not permitted"),
        (("flags: [toy-flag]", "flags: [--toy-flag]"), r"flags\.0: String should match pattern"),
        (("srt/main.py", "/srt/main.py"), r"targets\.0\.path: a path must be relative"),
        (("srt/main.py", "srt/../main.py"), r"targets\.0\.path: a path must be relative"),
        ((", patcher: patcher.py", ""), r"targets\.0: give exactly one of `patcher` and `diff`"),
        (("versions: {}", "versions: {0.5: {status: listed, files: {}}}"), r"versions\.0\.5\..*valid string"),
        (
            ("versions: {}", 'versions: {"1.0": {status: listed, files: {}}}'),
            r"versions\.1\.0\.files lacks srt/main\.py",
        ),
        (("versions: {}", 'versions: {"x": {status: listed, files: {}}}'), "'x' is not a version"),
        (("versions: {}", "native: [{versions: new, instead: x}]"), "'new' is not a range of versions"),
        (("versions: {}", "adds: [{path: srt/main.py, source: patcher.py}]"), "listed twice: srt/main.py"),
        (("  - {path: srt/main.py, patcher: patcher.py}\n", "  []\n"), "touches no file"),
    ],
)
def test_a_manifest_that_is_wrong_says_where(tmp_path, change, reason):
    with pytest.raises(PatchLoadError) as refusal:
        load_patch(folder_of(tmp_path, MANIFEST.replace(*change)))
    text = refusal.value.render()
    assert "manifest.yaml" in text
    assert re.search(reason, text), text


def test_a_repeated_key_is_refused_since_yaml_would_keep_the_last(tmp_path):
    with pytest.raises(PatchLoadError, match="key 'summary' is repeated"):
        load_patch(folder_of(tmp_path, MANIFEST + "summary: again\n"))


def test_a_hash_list_must_cover_the_targets_and_nothing_else(tmp_path):
    text = listed(MANIFEST, files={"srt/main.py": sha256(MAIN), "srt/extra.py": sha256(EXTRA)})
    with pytest.raises(PatchLoadError) as refusal:
        load_patch(folder_of(tmp_path, text))
    assert "names no target: srt/extra.py" in refusal.value.render()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def patch(path, text:\n", "does not load: SyntaxError"),
        ("import nothing_of_that_name\n", "does not load: ModuleNotFoundError"),
        ("def path(p, t): return t\n", "defines no function patch"),
        ("raise SystemExit\n", r"patcher\.py:1: does not load: SystemExit$"),
    ],
)
def test_a_patcher_that_does_not_load_is_a_broken_patch(tmp_path, code, reason):
    with pytest.raises(PatchLoadError, match=reason):
        load_patch(folder_of(tmp_path, patcher__py=code))


MISTAKES = [
    ("raise ValueError('x')", r"patcher\.py:2: patch\('srt/main\.py', text\) raised ValueError: x$"),
    ("raise SystemExit(3)", "raised SystemExit: 3$"),
    ("raise GeneratorExit", "raised GeneratorExit$"),
    ("return None", r"patcher\.py: patch\('srt/main\.py', text\) returned None, the new text is wanted$"),
    ("return 5", "returned a value of type int, the new text is wanted$"),
    (r"return text + '#\udc80'", "returned text that is no UTF-8: line "),
]


@pytest.mark.parametrize(("mistake", "says"), MISTAKES)
def test_a_mistake_in_a_patcher_is_told_as_one_of_the_patcher(tmp_path, mistake, says):
    patch = load_patch(folder_of(tmp_path, patcher__py=f"def patch(path, text):\n    {mistake}\n"))
    (tmp_path / "pkg/srt").mkdir(parents=True)
    (tmp_path / "pkg/srt/main.py").write_text(MAIN)
    for ask in (lambda: check_folder(patch, tmp_path / "pkg"), lambda: build([patch], allow_unlisted=True)):
        with pytest.raises(PatchLoadError, match=says):
            ask()


def test_what_a_patcher_prints_is_not_in_our_output(tmp_path, capsys):
    code = "print('loading')\ndef patch(path, text):\n    print('patching')\n    return text + '#'\n"
    load_patch(folder_of(tmp_path, patcher__py=code)).targets[0].edit(MAIN, unique=False)
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "loading\npatching\n")


@pytest.mark.parametrize(
    ("result", "says"),
    [
        ("text + 'x = (\\n'", "srt/main.py: the result does not compile: line "),
        ("text + 'x = no_such_name\\n'", "undefined name 'no_such_name'"),
    ],
)
def test_a_result_that_a_run_would_refuse_does_not_fit_for_check_either(tmp_path, result, says):
    patch = load_patch(folder_of(tmp_path, patcher__py=f"def patch(path, text):\n    return {result}\n"))
    (tmp_path / "pkg/srt").mkdir(parents=True)
    (tmp_path / "pkg/srt/main.py").write_text(MAIN)
    found = check_folder(patch, tmp_path / "pkg")
    assert (found.state, says in found.reason) == (FitState.MISFIT, True), found
    with pytest.raises(DoesNotFit) as refused:
        build([patch], allow_unlisted=True)
    assert says in refused.value.render()


def test_an_edited_patcher_of_the_same_size_in_the_same_second_is_read_anew(tmp_path):
    folder = folder_of(tmp_path, line="y = 2")
    first = build([load_patch(folder)], allow_unlisted=True)
    folder_of(tmp_path, line="y = 3")
    second = build([load_patch(folder)], allow_unlisted=True)
    assert "y = 2" in first.edits[0].after
    assert "y = 3" in second.edits[0].after
    assert not list(folder.rglob("*.pyc"))


def test_a_folder_and_its_name_must_agree(tmp_path):
    folder = folder_of(tmp_path)
    folder.rename(tmp_path / "renamed")
    with pytest.raises(PatchLoadError, match="name is 'toy', its folder is 'renamed'"):
        load_patch(tmp_path / "renamed")


def test_an_unknown_patch_is_answered_with_the_nearest_name(tmp_path):
    folder_of(tmp_path)
    assert find_patch("toy", tmp_path).name == "toy"
    with pytest.raises(PatchLoadError, match="did you mean 'toy'"):
        find_patch("tyo", tmp_path)
    with pytest.raises(PatchLoadError, match="known: toy"):
        find_patch("something_else", tmp_path)


def test_a_folder_that_can_not_be_read_as_a_patch_is_broken_and_says_why(tmp_path):
    manifest = folder_of(tmp_path, name="linked") / "manifest.yaml"
    manifest.rename(tmp_path / "elsewhere.yaml").touch()
    manifest.symlink_to("../elsewhere.yaml")
    for name in ("bare", "looped", "piped", ".git", "__pycache__"):
        (tmp_path / name).mkdir()
    (tmp_path / "looped/manifest.yaml").symlink_to("manifest.yaml")
    os.mkfifo(tmp_path / "piped/manifest.yaml")
    patcher = folder_of(tmp_path, name="waits") / "patcher.py"
    patcher.unlink()
    os.mkfifo(patcher)
    (tmp_path / "gone").symlink_to("nowhere")
    carried = carried_patches(tmp_path)
    assert [patch.name for patch in carried.patches] == ["linked"]
    said = {name: fault.message.removeprefix(f"{tmp_path}/") for name, fault in carried.broken.items()}
    assert said == {
        "bare": "bare/manifest.yaml: No such file or directory",
        "gone": "gone/manifest.yaml: No such file or directory",
        "looped": "looped/manifest.yaml: Too many levels of symbolic links",
        "piped": "piped/manifest.yaml: a pipe or a device, not a file",
        "waits": "waits/patcher.py: a pipe or a device, not a file",
    }


def test_where_there_are_no_patches_the_folder_is_named(tmp_path):
    assert list_lines(carried_patches(tmp_path)) == [f"there are no patches in {tmp_path}"]
    with pytest.raises(PatchLoadError, match=f"there is no patch 'toy': known: none in {tmp_path}"):
        find_patch("toy", tmp_path)


def test_a_version_is_called_listed_once(tmp_path):
    other = f'  "2.0": {{status: experimental, files: {{srt/main.py: {sha256(MAIN)}}}}}\n'
    patch = load_patch(folder_of(tmp_path, LISTED + other))
    shown = [line for line in patch_lines(patch) if line.startswith("  listed ")]
    assert shown == ["  listed   1.0", "  listed   2.0 (experimental)"]


def test_the_carried_patches_all_load():
    carried = carried_patches()
    assert {"spec_banner", "dynamic_disable"} <= set(carried.names)
    assert carried.broken == {}


def test_a_patch_that_does_not_load_is_in_the_way_of_those_alone_who_use_it(tmp_path):
    folder_of(tmp_path)
    folder_of(tmp_path, name="half")
    (tmp_path / "half/patcher.py").write_text("def patch(")
    folder_of(tmp_path, "schema: 2\n", name="old")
    carried = carried_patches(tmp_path)
    assert [patch.name for patch in available_patches(tmp_path)] == ["toy"]
    assert carried.names == ("toy", "half", "old")
    carried.refuse_broken([Arm("plain", {}, {}), Arm("noted", {}, {}, patches=("toy",))])
    with pytest.raises(
        PatchLoadError, match=r"arm both: patch old does not load: .*old/manifest\.yaml: "
    ) as refused:
        carried.refuse_broken([Arm("both", {}, {}, patches=("toy", "old"))])
    assert "schema: Input should be 1 (read: 2)" in refused.value.details


# Diffs as targets

DIFF = """\
--- a/python/toy/srt/main.py
+++ b/python/toy/srt/main.py
@@ -1,3 +1,3 @@
 def serve():
-    x = 1
+    x = 2
     return x
"""
DIFF_MANIFEST = MANIFEST.replace("patcher: patcher.py", "diff: fix.patch")


def test_a_target_may_be_a_unified_diff_whatever_folder_it_was_made_in(tmp_path):
    patch = load_patch(folder_of(tmp_path, listed(DIFF_MANIFEST), fix__patch=DIFF))
    (edit,) = build([patch]).edits
    assert edit.after == MAIN.replace("x = 1", "x = 2")


def test_a_diff_that_changes_more_files_than_the_targets_is_refused(tmp_path):
    more = DIFF + DIFF.replace("main.py", "extra.py")
    with pytest.raises(PatchLoadError, match=r"changes files that are no targets: python/toy/srt/extra\.py"):
        load_patch(folder_of(tmp_path, DIFF_MANIFEST, fix__patch=more))
    with pytest.raises(PatchLoadError, match=r"changes srt/main\.py 0 times"):
        load_patch(folder_of(tmp_path, DIFF_MANIFEST, fix__patch=DIFF.replace("main.py", "extra.py")))


def test_a_diff_that_is_applied_already_is_known_without_any_marker(tmp_path):
    patch = load_patch(folder_of(tmp_path, DIFF_MANIFEST, fix__patch=DIFF))
    with pytest.raises(DoesNotFit, match="already_applied"):
        build([patch], {"srt/main.py": MAIN.replace("x = 1", "x = 2")}, allow_unlisted=True)


def test_a_file_that_speaks_of_a_patch_is_not_taken_for_patched(tmp_path):
    told = MAIN.replace("return x", "return 'already patched'")
    patch = load_patch(folder_of(tmp_path, DIFF_MANIFEST, fix__patch=DIFF))
    fit = check_fit(patch, None, {"srt/main.py": sha256(told)}, {"srt/main.py": told})
    assert (fit.state, "already patched" in fit.reason) == (FitState.MISFIT, True)


def test_a_twin_of_the_block_refuses_a_diff_on_a_file_of_unknown_hash_only(tmp_path):
    twins = "def a():\n    x = 1\n    return x\n\n\ndef b():\n    x = 1\n    return x\n"
    diff = "--- a/srt/main.py\n+++ b/srt/main.py\n@@ -7,2 +7,2 @@\n-    x = 1\n+    x = 2\n     return x\n"
    patch = load_patch(folder_of(tmp_path, DIFF_MANIFEST, fix__patch=diff))
    with pytest.raises(DoesNotFit, match="stands 2 times"):
        build([patch], {"srt/main.py": twins}, allow_unlisted=True)
    known = listed(DIFF_MANIFEST, files={"srt/main.py": sha256(twins)})
    patch = load_patch(folder_of(tmp_path, known, fix__patch=diff))
    (edit,) = build([patch], {"srt/main.py": twins}).edits
    assert edit.after.index("x = 2") > edit.after.index("def b")


# Judging a tree


def test_listed_hashes_fit_without_reading_any_text(tmp_path):
    patch = load_patch(folder_of(tmp_path, LISTED))
    fit = check_fit(patch, "1.0", {"srt/main.py": sha256(MAIN)}, {})
    assert (fit.state, fit.reason) == (FitState.FITS, "the files are those of toy_sglang 1.0")


@pytest.mark.parametrize(
    ("version", "hashes", "sources", "state", "reason"),
    [
        ("1.1", MAIN, MAIN, "fits_unlisted", r"toy_sglang 1\.1 is not listed \(listed: 1\.0\)"),
        (None, MAIN, MAIN, "fits_unlisted", r"\(version unknown\) is not listed"),
        (
            "1.0",
            MAIN + "#\n",
            MAIN + "#\n",
            "fits_unlisted",
            r"srt/main\.py: not the file of toy_sglang 1\.0",
        ),
        ("1.1", "", "", "misfit", "is not there once"),
        ("1.1", MAIN, None, "misfit", "its text was not read"),
        ("1.0", None, None, "misfit", r"the tree lacks srt/main\.py"),
        ("1.0", AFTER, AFTER, "already_applied", r"already carries toy in srt/main\.py"),
        ("1.7", AFTER, None, "already_applied", "never applied twice"),
        ("1.1", AFTER + "#\n", AFTER + "#\n", "already_applied", "already carries toy"),
        ("2.0.post1", MAIN, MAIN, "native", "needs no patch: built in"),
        ("2.0rc1", MAIN, MAIN, "fits_unlisted", "not listed"),
        ("1.5.3", MAIN, MAIN, "refused", "broken upstream"),
        ("strange", MAIN, MAIN, "fits_unlisted", "strange is not listed"),
    ],
)
def test_a_tree_is_judged_by_version_hashes_and_anchors(tmp_path, version, hashes, sources, state, reason):
    native = 'native: [{versions: ">=2.0", instead: built in}]\n'
    refused = 'refused: [{versions: "1.5.*", reason: broken upstream}]\n'
    patch = load_patch(folder_of(tmp_path, native + refused + LISTED))
    sha = None if hashes is None else sha256(hashes)
    fit = check_fit(patch, version, {"srt/main.py": sha}, {"srt/main.py": sources})
    assert fit.state == state
    assert re.search(reason, fit.reason), fit.reason


# Building


def test_no_patches_are_the_original_tree():
    assert build(()) == PatchSet("original", (), (), ())


def test_a_patch_set_holds_exact_texts_hashes_and_module_names(tmp_path):
    patch_set = build([load_patch(folder_of(tmp_path, LISTED))])
    (edit,) = patch_set.edits
    assert (edit.before_sha256, edit.after_sha256, edit.after) == (sha256(MAIN), sha256(AFTER), AFTER)
    assert edit.absolute == "/opt/venv/lib/toy_sglang/srt/main.py"
    assert (patch_set.name, patch_set.modules) == ("toy", ("toy_sglang.srt.main",))


def test_patches_of_one_file_are_applied_in_the_order_given(tmp_path):
    one = load_patch(folder_of(tmp_path, listed(MANIFEST), name="one", line="y = 2"))
    two = load_patch(folder_of(tmp_path, listed(MANIFEST), name="two", line="z = 3"))
    forth, back = build([one, two]), build([two, one])
    assert forth.edits[0].after == MAIN + "y = 2  # dynspec:one\nz = 3  # dynspec:two\n"
    assert back.edits[0].after == MAIN + "z = 3  # dynspec:two\ny = 2  # dynspec:one\n"
    assert (forth.name, forth.patches) == ("one+two", ("one", "two"))
    assert forth.edits[0].before_sha256 == sha256(MAIN)


def test_needed_files_are_named_once_in_order(tmp_path):
    adds = MANIFEST + "adds: [{path: srt/extra.py, source: patcher.py}]\n"
    one = load_patch(folder_of(tmp_path, adds, name="one"))
    two = load_patch(folder_of(tmp_path, name="two"))
    assert needed_files([one, two]) == ("srt/main.py", "srt/extra.py")


def test_an_anchor_taken_away_by_an_earlier_patch_names_the_later_one(tmp_path):
    one = load_patch(folder_of(tmp_path, listed(MANIFEST), name="one", line="return_x = 'return x'"))
    two = load_patch(folder_of(tmp_path, listed(MANIFEST), name="two"))
    with pytest.raises(DoesNotFit, match=r"patch two: srt/main\.py: 'return x' is not there once"):
        build([one, two])


def test_windows_line_ends_and_a_missing_last_one_come_through(tmp_path):
    patch = load_patch(folder_of(tmp_path))
    text = MAIN.replace("\n", "\r\n")
    (edit,) = build([patch], {"srt/main.py": text}, allow_unlisted=True).edits
    assert edit.after == text + "y = 2  # dynspec:toy\n"
    assert decode_source("a.py", edit.after.encode()) == edit.after


def test_bytes_that_are_no_text_are_refused_by_name():
    with pytest.raises(DoesNotFit, match=r"srt/main\.py: not UTF-8 \(byte 2\)"):
        decode_source("srt/main.py", b"x=\xff")


def test_an_added_file_is_an_edit_of_nothing(tmp_path):
    manifest = MANIFEST + "adds: [{path: srt/sub/__init__.py, source: new.py}]\n"
    patch = load_patch(folder_of(tmp_path, manifest, new__py="z = 1\n"))
    _, edit = build([patch], {"srt/sub/__init__.py": None}, allow_unlisted=True).edits
    assert (edit.before_sha256, edit.after, edit.absolute) == (
        None,
        "z = 1\n",
        "/opt/venv/lib/toy_sglang/srt/sub/__init__.py",
    )
    assert (
        build([patch], {"srt/sub/__init__.py": None}, allow_unlisted=True).modules[1] == "toy_sglang.srt.sub"
    )


def test_a_file_of_that_name_in_the_tree_refuses_an_added_one(tmp_path):
    manifest = MANIFEST + "adds: [{path: srt/sub.py, source: new.py}]\n"
    patch = load_patch(folder_of(tmp_path, manifest, new__py="z = 1\n"))
    with pytest.raises(DoesNotFit, match=r"has another srt/sub\.py, which toy adds"):
        build([patch], {"srt/sub.py": "somebody's\n"}, allow_unlisted=True)
    with pytest.raises(DoesNotFit, match=r"already carries toy in srt/sub\.py"):
        build([patch], {"srt/sub.py": "z = 1\n"}, allow_unlisted=True)


def test_two_patches_that_add_the_same_file_do_not_go_together(tmp_path):
    adds = MANIFEST + "adds: [{path: srt/new.py, source: new.py}]\n"
    extra = adds.replace("srt/main.py", "srt/extra.py")
    one = load_patch(folder_of(tmp_path, adds, name="one", new__py="z = 1\n"))
    two = load_patch(folder_of(tmp_path, extra, name="two", anchor="return 0", new__py="z = 2\n"))
    with pytest.raises(DoesNotFit, match=r"patch two: srt/new\.py is added by an earlier patch"):
        build([one, two], {"srt/new.py": None}, allow_unlisted=True)


def test_an_optional_file_that_the_tree_lacks_is_left_out(tmp_path):
    manifest = MANIFEST.replace(
        "versions: {}", "  - {path: srt/old.py, patcher: patcher.py, optional: true}\nversions: {}"
    )
    patch = load_patch(folder_of(tmp_path, listed(manifest)))
    assert [edit.path for edit in build([patch], {"srt/old.py": None}).edits] == ["srt/main.py"]
    with pytest.raises(DoesNotFit, match=r"srt/old\.py: not the file of toy_sglang 1\.0"):
        build([patch], {"srt/old.py": "return x\n"})


def test_a_patcher_that_changes_nothing_has_not_succeeded(tmp_path):
    patch = load_patch(folder_of(tmp_path, patcher__py="def patch(path, text):\n    return text\n"))
    with pytest.raises(DoesNotFit, match="changes nothing"):
        build([patch], allow_unlisted=True)


def test_a_result_with_a_new_undefined_name_is_refused(tmp_path):
    patch = load_patch(folder_of(tmp_path, listed(MANIFEST), line="print(nowhere)"))
    with pytest.raises(DoesNotFit) as refusal:
        build([patch])
    assert refusal.value.details == ("srt/main.py:4: undefined name 'nowhere'",)


def test_a_result_that_does_not_compile_is_refused(tmp_path):
    patch = load_patch(folder_of(tmp_path, listed(MANIFEST), line="print("))
    with pytest.raises(DoesNotFit) as refusal:
        build([patch])
    assert "SyntaxError" in refusal.value.details[0]


def test_a_result_other_than_the_listed_one_is_refused(tmp_path):
    wrong = listed(MANIFEST, after={"srt/main.py": "f" * 64})
    with pytest.raises(DoesNotFit, match="otherwise than the manifest's `after` hash"):
        build([load_patch(folder_of(tmp_path, wrong))])


def test_a_text_other_than_the_facts_say_is_refused(tmp_path):
    patch = load_patch(folder_of(tmp_path, LISTED))
    with pytest.raises(DoesNotFit, match="changed while it was read"):
        build_patch_set(
            [patch], {"srt/main.py": MAIN + "#\n"}, facts("1.0", {"srt/main.py": MAIN}), allow_unlisted=False
        )


def test_a_text_that_was_not_read_is_refused(tmp_path):
    patch = load_patch(folder_of(tmp_path, LISTED))
    with pytest.raises(DoesNotFit, match="not read from the node"):
        build_patch_set([patch], {}, facts("1.0", {}), allow_unlisted=False)


def test_the_place_of_a_file_follows_the_nodes_own_answer(tmp_path):
    patch = load_patch(folder_of(tmp_path, LISTED))
    tree = facts("1.0", TREE)
    moved = dataclasses.replace(tree.files[0], absolute="/mnt/real/main.py", symlink="/mnt/real/main.py")
    tree = dataclasses.replace(tree, files=(moved, *tree.files[1:]))
    (edit,) = build_patch_set([patch], TREE, tree, allow_unlisted=False).edits
    assert edit.absolute == "/mnt/real/main.py"


@pytest.mark.parametrize(
    ("version", "sources", "helps"),
    [
        ("1.1", MAIN, "allow_unlisted"),
        ("2.0", MAIN, "take toy out of the arm's patches"),
        ("1.0", AFTER, "dynspec restore NODE"),
        ("1.0", "x = 1\n", "dynspec patch show toy"),
    ],
)
def test_every_refusal_says_what_helps(tmp_path, version, sources, helps):
    manifest = 'native: [{versions: ">=2.0", instead: built in}]\n' + LISTED
    with pytest.raises(DoesNotFit) as refusal:
        build([load_patch(folder_of(tmp_path, manifest))], {"srt/main.py": sources}, version)
    assert helps in refusal.value.help
    assert refusal.value.exit_code == 4
