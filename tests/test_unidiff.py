"""A diff is applied at its own lines and byte for byte, or it is refused with the reason."""

from __future__ import annotations

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import AnchorError, PatchLoadError
from orchestrator.patchset import unidiff

TWINS = """\
def left(x):
    check(x)
    total = 0
    for item in x:
        total += item
    return total


def right(x):
    check(x)
    total = 0
    for item in x:
        total += item
    return total
"""
RIGHT_FIXED = "total = 1".join(TWINS.rsplit("total = 0", 1))


def diff_of(before: str, after: str, path: str = "pkg/file.py", context: int = 3) -> str:
    """A unified diff as `diff -u` writes it, the note on a missing last line end included."""
    out = []
    lines = difflib.unified_diff(
        unidiff.split_lines(before), unidiff.split_lines(after), f"a/{path}", f"b/{path}", n=context
    )
    for line in lines:
        out.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(out)


def one(text: str) -> unidiff.FileDiff:
    (diff,) = unidiff.parse(text)
    return diff


def test_a_diff_that_fits_gives_the_text_it_was_made_from():
    assert unidiff.apply(one(diff_of(TWINS, RIGHT_FIXED)), TWINS) == RIGHT_FIXED
    assert RIGHT_FIXED.count("total = 1") == 1


def test_drift_near_the_intended_twin_refuses_and_never_lands_in_the_other_one():
    """GNU patch with --fuzz=0 and git apply both put this hunk into `left` and exit 0."""
    diff = one(diff_of(TWINS, RIGHT_FIXED, context=1))
    at = TWINS.rindex("    total = 0")
    drifted = (
        TWINS[:at].replace("def right(x):\n    check(x)\n", "def right(x):\n    check(x, 1)\n") + TWINS[at:]
    )
    with pytest.raises(AnchorError, match=r"stands at line 2 instead, and hunks are never moved"):
        unidiff.apply(diff, drifted)


def test_a_block_that_moved_by_one_line_is_refused_and_its_place_is_named():
    with pytest.raises(
        AnchorError, match=r"hunk at line 8 does not match: the block stands at line 9 instead"
    ):
        unidiff.apply(one(diff_of(TWINS, RIGHT_FIXED)), "import os\n" + TWINS)


def test_a_twin_at_the_very_line_is_refused_where_the_file_is_not_known():
    diff = one(diff_of(TWINS, RIGHT_FIXED, context=1))
    assert unidiff.apply(diff, TWINS) == RIGHT_FIXED
    with pytest.raises(AnchorError, match=r"stands 2 times \(lines 2, 10\)"):
        unidiff.apply(diff, TWINS, unique=True)


def test_an_insertion_without_context_is_refused_where_the_file_is_not_known():
    diff = one("--- a/m.py\n+++ b/m.py\n@@ -2,0 +3 @@\n+new\n")
    assert unidiff.apply(diff, "a\nb\nc\n") == "a\nb\nnew\nc\n"
    with pytest.raises(AnchorError, match="the block at line 2 has no line of the file to know its place by"):
        unidiff.apply(diff, "another\nfile\nit is\n", unique=True)


def test_a_deletion_without_context_leaves_no_sign_that_another_file_was_patched():
    diff = one("--- a/m.py\n+++ b/m.py\n@@ -2 +1,0 @@\n-b\n")
    assert unidiff.apply(diff, "a\nb\nc\n") == "a\nc\n"
    with pytest.raises(AnchorError, match="line 2 is 'file', expected 'b'"):
        unidiff.apply(diff, "another\nfile\nit is\n")


def test_another_line_in_the_context_is_shown_as_found_and_as_expected():
    with pytest.raises(AnchorError, match=r"line 10 is '    verify\(x\)', expected '    check\(x\)'"):
        unidiff.apply(one(diff_of(TWINS, RIGHT_FIXED)), TWINS.replace("check", "verify"))


def test_applying_twice_is_known_and_refused():
    diff = one(diff_of(TWINS, RIGHT_FIXED))
    assert unidiff.is_applied(diff, RIGHT_FIXED)
    assert not unidiff.is_applied(diff, TWINS)
    with pytest.raises(AnchorError, match="already patched"):
        unidiff.apply(diff, RIGHT_FIXED)


def test_of_two_hunks_one_applied_is_neither_applied_nor_fitting():
    before = "".join(f"line {n}\n" for n in range(30))
    after = before.replace("line 3\n", "line three\n").replace("line 25\n", "line twenty-five\n")
    half = before.replace("line 3\n", "line three\n")
    diff = one(diff_of(before, after))
    assert len(diff.hunks) == 2
    with pytest.raises(AnchorError, match="hunk at line 1 does not match"):
        unidiff.apply(diff, half)


def test_a_file_that_ends_too_early_is_refused():
    with pytest.raises(AnchorError, match="the file ends after 2 lines"):
        unidiff.apply(one(diff_of("a\nb\nc\n", "a\nb\nd\n")), "a\nb\n")


def test_another_line_end_is_named_instead_of_being_matched():
    diff = one(diff_of("a\nb\n", "a\nc\n"))
    with pytest.raises(AnchorError, match=r"line 1 has another line end \(CRLF, the diff has LF\)"):
        unidiff.apply(diff, "a\r\nb\r\n")
    crlf = one(diff_of("a\r\nb\r\n", "a\r\nc\r\n"))
    assert unidiff.apply(crlf, "a\r\nb\r\n") == "a\r\nc\r\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a\nb", "a\nc"),
        ("a\nb", "a\nb\n"),
        ("a\nb\n", "a\nb"),
        ("a\nb", "a"),
        ("a", "a\nb"),
        ("a\nb\nc", "b\nc"),
    ],
)
def test_a_missing_last_line_end_is_part_of_the_text(before, after):
    diff = one(diff_of(before, after))
    assert unidiff.apply(diff, before) == after
    with pytest.raises(AnchorError):
        unidiff.apply(diff, before.removesuffix("\n") if before.endswith("\n") else before + "\n")


def test_several_files_come_apart_and_text_around_them_is_passed_over():
    text = (
        "From 1234 Mon Sep 17\nSubject: two files\n\nold mode of thinking\n---\n 2 files changed\n\n"
        "diff --git a/one.py b/one.py\nindex 1..2 100644\n"
        + diff_of("a\n", "b\n", "one.py")
        + "diff --git a/sub/two.py b/sub/two.py\nindex 3..4 100644\n"
        + diff_of("c\n", "d\n", "sub/two.py")
        + "-- \n2.39.5\n"
    )
    assert [diff.path for diff in unidiff.parse(text)] == ["one.py", "sub/two.py"]


def test_names_with_time_stamps_and_without_prefix_are_read():
    diff = one("--- srt/a.py\t2026-01-01 10:00:00\n+++ srt/a.py\t2026-01-02 10:00:00\n@@ -1 +1 @@\n-a\n+b\n")
    assert diff.path == "srt/a.py"
    assert unidiff.apply(diff, "a\n") == "b\n"


def test_an_empty_context_line_whose_blank_an_editor_stripped_is_still_one():
    diff = one("--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n a\n\n-b\n+c\n")
    assert unidiff.apply(diff, "a\n\nb\n") == "a\n\nc\n"


def test_lines_end_at_line_feeds_only():
    before, after = "a\x0c\u2028b\x85c\nz\n", "a\x0c\u2028b\x85c\ny\n"
    assert unidiff.apply(one(diff_of(before, after)), before) == after


HEAD = "--- a/x\n+++ b/x\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "holds no change"),
        ("just words\n", "holds no change"),
        (HEAD, "has no hunk"),
        (HEAD + "@@ -1,2 +1 @@\n-a\n", "ends too early"),
        (HEAD + "@@ -1 +1 @@\n-a\n+b\n+c\n", "beyond the length"),
        (HEAD + "@@ -1,2 +1,1 @@\n a\n+b\n-c\n", "does not have the length"),
        (HEAD + "@@ -1 +1 @@\n a\n", "changes nothing"),
        (HEAD + "@@ -x +1 @@\n-a\n+b\n", "not a hunk header"),
        (HEAD + "@@ -5 +5 @@\n-a\n+b\n@@ -2 +2 @@\n-c\n+d\n", "out of order"),
        (HEAD + "@@ -1 +1 @@\n-a\n+b\n" + HEAD + "@@ -9 +9 @@\n-a\n+b\n", "stands there twice"),
        ("@@ -1 +1 @@\n-a\n+b\n", "without a file header"),
        ("--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+b\n", "list new files under `adds`"),
        ("--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-b\n", "not supported"),
        ("diff --git a/x b/y\nrename from x\nrename to y\n", "not supported"),
        ("diff --git a/x b/x\nold mode 100644\nnew mode 100755\n", "not supported"),
        ("diff --git a/x b/x\nGIT binary patch\n", "not supported"),
    ],
)
def test_a_broken_diff_is_refused_with_its_line(text, reason):
    with pytest.raises(PatchLoadError, match=reason) as refusal:
        unidiff.parse(text, "my.patch")
    assert refusal.value.message.startswith("my.patch:")


lines = st.lists(st.sampled_from(["a\n", "b\n", "c\r\n", "\n", "é\u2028\n"]), max_size=12)


@given(lines, lines, st.sampled_from(["", "end"]), st.integers(0, 3))
def test_any_diff_applied_to_its_own_original_gives_its_own_result(old, new, tail, context):
    before, after = "".join(old) + tail, "".join(new) + tail
    text = diff_of(before, after, context=context)
    if before == after:
        assert text == ""
        return
    diff = one(text)
    assert unidiff.apply(diff, before) == after
    assert unidiff.is_applied(diff, after)


@given(lines.filter(bool), st.integers(0, 11))
def test_a_text_changed_anywhere_inside_a_hunk_never_takes_it(old, at):
    before = "".join(old)
    after = "first\n" + before + "last\n"
    diff = one(diff_of(before, after, context=99))
    changed = "".join(old[: at % len(old)]) + "zzz\n" + "".join(old[at % len(old) + 1 :])
    with pytest.raises(AnchorError):
        unidiff.apply(diff, changed)
