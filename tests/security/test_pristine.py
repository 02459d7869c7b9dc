"""Whether the tree was clean before: told from the installer's RECORD or from git, for a copy patched by hand too."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.agent import pack, pristine
from orchestrator.model.facts import ChangedFile, Pristine
from orchestrator.plan import render_plan
from tests.agent.client import change
from tests.agent.conftest import BANNER, Node
from tests.plan_cases import facts, plan_of

FILES = {
    "__init__.py": "__version__ = '1'\n",
    "banner.py": "BANNER = 1\n",
    "sub/worker.py": "def work(): ...\n",
}


def record_line(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A package as pip leaves it."""
    package = tmp_path / "site" / "toy"
    lines = []
    for name, text in FILES.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
        lines.append(record_line(f"toy/{name}", text.encode()))
    info = package.parent / "toy-1.dist-info"
    info.mkdir()
    (info / "RECORD").write_text(
        "".join([*lines, "toy/__pycache__/banner.cpython-311.pyc,,\n", "toy-1.dist-info/RECORD,,\n"])
    )
    return package


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A package in a git checkout, as an editable install serves it."""
    package = tmp_path / "clone" / "python" / "toy"
    for name, text in FILES.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    git(package, "init", "-q", str(tmp_path / "clone"))
    git(package, "add", ".")
    git(package, "commit", "-qm", "first")
    return package


def git(package: Path, *words: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *words], cwd=package, check=True, capture_output=True)


def look(package: Path, files: list[str] | None = None) -> Pristine:
    told = pristine.look(str(package), files)
    return Pristine(**{**told, "changed": tuple(ChangedFile(**item) for item in told["changed"])})


def test_an_installed_tree_is_told_clean_with_what_it_was_compared_with(installed: Path) -> None:
    found = look(installed, ["banner.py"])
    assert (found.baseline, found.checked, found.changed, found.problem) == (
        "toy-1.dist-info/RECORD",
        1,
        (),
        None,
    )
    assert found.words() == "as installed (1 file compared with toy-1.dist-info/RECORD)"
    assert look(installed).checked == len(FILES)


@pytest.mark.parametrize("tree", ["installed", "checkout"])
def test_a_tree_patched_by_hand_is_told_file_by_file(tree: str, request: pytest.FixtureRequest) -> None:
    package: Path = request.getfixturevalue(tree)
    (package / "banner.py").write_text("BANNER = 2\n")
    (package / "sub" / "worker.py").unlink()
    (package / "sub" / "new.py").write_text("")
    (package / "sub" / "__pycache__").mkdir()
    (package / "sub" / "__pycache__" / "new.cpython-311.pyc").write_bytes(b"")
    found = look(package)
    assert {(item.path, item.state) for item in found.changed} == {
        ("banner.py", "changed"),
        ("sub/new.py", "added"),
        ("sub/worker.py", "missing"),
    }
    assert found.changed_count == 3
    assert "changed by hand before this run: " in found.words()
    assert look(package, ["__init__.py", "no/such.py"]).changed == ()


def test_a_checkout_is_told_with_its_commit_and_its_difference(checkout: Path) -> None:
    assert look(checkout).words().startswith("as installed (3 files compared with git ")
    (checkout / "banner.py").write_text("BANNER = 2\n")
    found = look(checkout, ["banner.py", "sub/worker.py"])
    assert "-BANNER = 1\n+BANNER = 2\n" in found.diff
    assert "python/toy/banner.py" in found.diff
    git(checkout, "add", ".")
    assert look(checkout).diff == found.diff, "what is staged is not committed"


def test_a_long_difference_and_a_long_list_are_cut(checkout: Path) -> None:
    for number in range(40):
        (checkout / f"added_{number}.py").write_text("")
    (checkout / "banner.py").write_text("x = 1\n" * 50_000)
    found = look(checkout)
    assert len(found.diff) < 17_000
    assert found.diff.endswith("(cut here)\n")
    assert (len(found.changed), found.changed_count) == (20, 41)
    assert "and 36 more" in found.words()


def test_looking_at_a_checkout_writes_nothing_and_runs_nothing_of_it(checkout: Path, tmp_path: Path) -> None:
    top, trap = checkout.parents[1], tmp_path / "ran"
    for name in ("core.fsmonitor", "core.pager", "diff.external", "diff.x.textconv", "core.sshCommand"):
        git(checkout, "config", name, f"touch {trap}; cat")
    (top / ".gitattributes").write_text("*.py diff=x\n")
    for hook in ("post-index-change", "fsmonitor-watchman"):
        (top / ".git" / "hooks" / hook).write_text(f"#!/bin/sh\ntouch {trap}\n")
        (top / ".git" / "hooks" / hook).chmod(0o755)
    os.utime(checkout / "banner.py", (1, 1))  # a stale index, which git would refresh
    before = {path: path.stat().st_mtime_ns for path in (top / ".git").rglob("*")}
    (checkout / "sub" / "worker.py").write_text("")
    assert look(checkout).changed_count == 1
    assert {path: path.stat().st_mtime_ns for path in (top / ".git").rglob("*")} == before
    assert not trap.exists()


def test_where_nothing_can_be_told_the_reason_is(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = installed.parent / "other-2.dist-info"
    shutil.copytree(installed.parent / "toy-1.dist-info", second)
    assert "several distributions: other-2.dist-info, toy-1.dist-info" in (look(installed).problem or "")
    (second / "RECORD").write_text("toy/plugin.py,,\n")
    assert look(installed).problem is None, "a plug-in in its folder did not bring the package"
    (installed.parent / "toy-1.dist-info" / "RECORD").write_text('toy/__init__.py,sha256=%%%,"\n')
    assert look(installed, ["banner.py"]).problem or look(installed, ["banner.py"]).changed
    shutil.rmtree(installed.parent / "toy-1.dist-info")
    assert "neither installed by a wheel nor a git checkout" in look(installed).words()
    (tmp_path / ".git").write_text("gitdir: /nonexistent\n")
    assert (look(installed).problem or "").startswith("git: ")
    monkeypatch.setenv("PATH", "")
    assert "no git on PATH" in (look(installed).problem or "")


def test_another_users_checkout_is_not_trusted(checkout: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("another user needs root")
    for path in (checkout.parents[1], checkout.parents[1] / ".git"):
        os.chown(path, 65534, 65534)
    assert "dubious ownership" in (look(checkout).problem or "")


def test_facts_tell_it_before_during_and_after_a_run(tmp_path: Path) -> None:
    agent = tmp_path / pack.name()
    agent.write_bytes(pack.build_zipapp())
    node = Node(tmp_path / "node", agent)
    info = node.site / "toy-1.2.3.dist-info"
    info.mkdir()
    lines = [
        record_line(str(path.relative_to(node.site)), path.read_bytes())
        for path in node.package.rglob("*.py")
    ]
    (info / "RECORD").write_text("".join(lines))
    asked = {
        "python": sys.executable,
        "cwd": str(node.site),
        "package": "toy",
        "files": ["banner.py"],
        "port": 9,
        "workdir": str(node.workdir),
    }
    client = node.client()

    def changed(**more: object) -> tuple[int, list[str]]:
        told = client.ask("facts", **asked, **more)["tree"]["pristine"]
        return told["checked"], [item["path"] for item in told["changed"]]

    try:
        assert changed() == (1, [])
        node.guard(client)
        client.ask("apply", set="banner", files=[change(node.banner, BANNER, b"BANNER = 2\n")])
        assert changed() == (1, ["banner.py"])
        client.ask("unwind", stop_s=5)
        assert changed() == (1, [])
        assert changed(whole_package=True) == (len(lines), [])
    finally:
        node.close()


def test_a_plan_says_that_a_tree_was_patched_by_hand() -> None:
    clean = facts({})
    assert clean.tree is not None
    found = Pristine("git 1a2b3c4d5e6f", 2, (ChangedFile("srt/server_args.py", "changed"),), 1, "diff")
    by_hand = replace(clean, tree=replace(clean.tree, pristine=found))
    words = "changed by hand before this run: srt/server_args.py (changed) (2 files compared with git 1a2b3c4d5e6f)"
    assert [line for line in render_plan(plan_of({}), by_hand) if words in line]
    untouched = replace(clean, tree=replace(clean.tree, pristine=Pristine("git 1a2b3c4d5e6f", 2)))
    assert [line for line in render_plan(plan_of({}), untouched) if "as installed (2 files" in line]
