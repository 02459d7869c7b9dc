"""Diffs and manifests are written by people: what is not plainly a change of lines is refused with its place."""

from __future__ import annotations

from pathlib import Path

import yaml
from hypothesis import given

from orchestrator.errors import AnchorError, PatchLoadError
from orchestrator.patchset import unidiff
from orchestrator.patchset.manifest import read_manifest
from tests.fuzz.budget import fuzzed
from tests.fuzz.strategies import ODD_TEXTS, as_yaml, damaged, texts, texts_of, with_odd_values

ROOT = Path(__file__).resolve().parents[2]
DIFF = """\
diff --git a/x.py b/x.py
--- a/x.py\t2026-01-01
+++ b/x.py
@@ -1,3 +1,4 @@ def f():
 a
-b
+B
+C
 c
@@ -7 +7,0 @@
-g
\\ No newline at end of file
--- a/y.py
+++ b/y.py
@@ -0,0 +1 @@
+new
"""
TEXT = "a\nb\nc\nd\ne\nf\ng"
MARKS = [
    "@@ -1 +1 @@\n", "@@ -0,0 +0,0 @@\n", "@@ -99999999999999999999 +1 @@\n", "@@ -1,5000000000 +1 @@\n",
    "--- a\n", "+++ b\n", "--- /dev/null\n", "+++ b/../../etc/passwd\n", "rename from x\n",
    "\\ No newline\n", " \n", "+\n", "-\n", "\r\n", "\x0c", "\u2028",
]  # fmt: skip
MANIFESTS = [path.read_text() for path in sorted(ROOT.glob("patches/*/manifest.yaml"))]
TREES = [yaml.safe_load(text) for text in MANIFESTS]
for tree in TREES:  # the listings of many releases are alike, and reading all of them takes most of the time
    tree["versions"] = dict(list(tree["versions"].items())[:2])
SHORTER = [yaml.safe_dump(tree, sort_keys=False, allow_unicode=True) for tree in TREES]
PIECES = [
    *ODD_TEXTS,
    "- ",
    ": ",
    "&a [*a]",
    "? ",
    "{1: 2}",
    "[]: 1\n",
    "{}: 1\n",
    "2026-01-01",
    "0o7",
    "!!binary x",
    "<<: {a: 1}\n",
]


def try_diff(text: str) -> None:
    try:
        files = unidiff.parse(text, "fuzz.patch")
    except PatchLoadError as error:
        assert error.message.startswith("fuzz.patch:"), error.message
        return
    for file in files:
        try:
            after = unidiff.apply(file, TEXT, unique=True)
        except AnchorError:
            continue
        assert unidiff.is_applied(file, after)
        assert after != TEXT or any(hunk.before != hunk.after for hunk in file.hunks)


@fuzzed(0.7)
@given(damaged([DIFF], [*MARKS, *ODD_TEXTS]))
def test_a_damaged_diff_is_applied_whole_or_refused(text: str) -> None:
    try_diff(text)


@fuzzed(0.3)
@given(texts() | texts_of("@-+ ,019ab\n\\/", 120))
def test_any_text_is_a_diff_or_refused(text: str) -> None:
    try_diff(text)


@fuzzed(0.5)
@given(damaged(SHORTER, PIECES) | texts())
def test_a_damaged_manifest_is_read_or_refused_in_words(text: str) -> None:
    try_manifest(text)


@fuzzed(0.5)
@given(with_odd_values(TREES))
def test_a_manifest_with_odd_values_is_read_or_refused_in_words(tree: object) -> None:
    text = as_yaml(tree)
    try_manifest(text)


def try_manifest(text: str) -> None:
    try:
        manifest = read_manifest(text, "manifest.yaml")
    except PatchLoadError as error:
        assert error.message.startswith("manifest.yaml:"), error.message
        return
    for path in [entry.path for entry in (*manifest.targets, *manifest.adds)]:
        assert not path.startswith("/")
        assert ".." not in path.split("/")
        assert "\0" not in path
