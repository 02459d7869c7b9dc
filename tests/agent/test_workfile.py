"""`put`: a small file for the server, in the run's work folder and nowhere else."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tests.agent.client import Client, Refused, sha, z
from tests.agent.conftest import Node


@pytest.fixture
def client(node: Node) -> Client:
    client = node.client()
    node.guard(client)
    return client


def folder(node: Node) -> Path:
    return node.workdir / "run-1"


def test_a_file_is_written_for_this_user_alone_and_over_an_earlier_one(node: Node, client: Client) -> None:
    path = folder(node) / "adaptive" / "dynamic.json"
    for data in (b"a longer first text", b"{}\n"):
        assert client.ask("put", path=str(path), z=z(data)) == {"path": str(path), "sha256": sha(data)}
        assert path.read_bytes() == data
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "where", ["../run-2/x", "../../elsewhere", "adaptive/../../x", "../run-1x/y", ".", ""]
)
def test_a_place_outside_of_the_work_folder_is_refused(node: Node, client: Client, where: str) -> None:
    before = sorted(node.folder.rglob("*"))
    with pytest.raises(Refused) as refused:
        client.ask("put", path=f"{folder(node)}/{where}", z=z(b"x"))
    assert refused.value.code == "bad_request"
    assert sorted(node.folder.rglob("*")) == before


def test_a_link_on_the_way_is_not_followed(node: Node, client: Client) -> None:
    client.ask("put", path=str(folder(node) / "made" / "x"), z=z(b"x"))
    (folder(node) / "linked").symlink_to(node.package)
    (folder(node) / "made" / "y").symlink_to(node.banner)
    original = node.banner.read_bytes()
    for path in ("linked/new.py", "made/y"):
        with pytest.raises(Refused) as refused:
            client.ask("put", path=str(folder(node) / path), z=z(b"x"))
        assert refused.value.code == "not_writable"
    assert node.banner.read_bytes() == original
    assert not (node.package / "new.py").exists()


def test_too_much_is_refused(node: Node, client: Client) -> None:
    with pytest.raises(Refused, match="at most 1048576"):
        client.ask("put", path=str(folder(node) / "big"), z=z(b"x" * (2**20 + 1)))


def test_the_file_goes_with_the_runs_folder(node: Node, client: Client) -> None:
    client.ask("put", path=str(folder(node) / "adaptive" / "a.json"), z=z(b"{}"))
    client.ask("unwind", stop_s=2, reason="done")
    client.ask("clean", run_id="run-1", workdir=str(node.workdir))
    assert not folder(node).exists()


def test_nobody_but_the_holder_may_put(node: Node, client: Client) -> None:
    other = node.client()
    with pytest.raises(Refused):
        other.ask("put", path=str(folder(node) / "a"), z=z(b"x"))
    assert not (folder(node) / "a").exists()
