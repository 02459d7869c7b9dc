"""spec_banner and dynamic_disable edit the same files; an arm may name both, in either order."""

from __future__ import annotations

import functools

import pytest

from orchestrator.errors import DoesNotFit
from orchestrator.patchset import build_patch_set, find_patch, needed_files
from tests.wheels import TWO_WORKERS, read_sources, tree_facts, wheel_tree

BOTH = ("spec_banner", "dynamic_disable")
pytestmark = pytest.mark.wheels


@functools.cache
def sources_of(version: str) -> dict[str, str | None]:
    return read_sources(wheel_tree(version), needed_files([find_patch(name) for name in BOTH]))


@functools.cache
def of_release(version: str, names: tuple[str, ...]):
    """On an untouched release; seconds of parsing for each."""
    return built(version, names, sources_of(version))


def built(version: str, names: tuple[str, ...], sources: dict[str, str | None]):
    patches = [find_patch(name) for name in names]
    return build_patch_set(patches, sources, tree_facts(version, sources), allow_unlisted=False)


@pytest.mark.parametrize("version", TWO_WORKERS)
def test_both_apply_and_each_leaves_its_mark_in_the_shared_files(version):
    forth = {edit.path: edit.after for edit in of_release(version, BOTH).edits}
    for path in find_patch("spec_banner").paths:
        assert forth[path].count("# dynspec:spec_banner") == 1
        assert "# dynspec:dynamic_disable" in forth[path]


def test_the_order_of_the_two_changes_only_the_order_of_their_lines():
    forth = {edit.path: edit.after for edit in of_release("0.5.11", BOTH).edits}
    back = {edit.path: edit.after for edit in of_release("0.5.11", BOTH[::-1]).edits}
    assert forth.keys() == back.keys()
    for path in forth:
        assert sorted(forth[path].split("\n")) == sorted(back[path].split("\n"))


def test_a_tree_that_carries_both_is_refused_to_each_of_them():
    patched = {edit.path: edit.after for edit in of_release("0.5.11", BOTH).edits}
    for name in BOTH:
        with pytest.raises(DoesNotFit, match=f"already carries {name}"):
            built("0.5.11", (name,), {**sources_of("0.5.11"), **patched})
