"""What lies on the node is its user's alone, and whoever puts something else in its place gains nothing by it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import pack, places
from orchestrator.agent.wire import AgentError
from orchestrator.load import pack as load_pack
from tests.agent.client import Client, Refused, change, sha
from tests.agent.conftest import BANNER, Node, with_bytecode

AFTER = b'BANNER = "patched"\n'
SLEEPS = "import time\nprint('up', flush=True)\ntime.sleep(60)\n"
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="another user needs root")


@pytest.fixture(scope="session")
def agent_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("agent") / pack.name()
    path.write_bytes(with_bytecode(pack.build_zipapp(), tmp_path_factory.mktemp("sources")))
    return path


@pytest.fixture
def node(tmp_path: Path, agent_file: Path) -> Any:
    made = Node(tmp_path, agent_file)
    yield made
    made.close()


@pytest.fixture
def run(node: Node) -> Client:
    client = node.client()
    node.guard(client, stop_s=5)
    return client


def refused(act: Callable[[], object]) -> AgentError | Refused:
    with pytest.raises((AgentError, Refused)) as caught:
        act()
    return caught.value


def test_every_file_and_folder_of_a_run_is_for_its_user_only(node: Node, run: Client) -> None:
    agents = node.home / "agent"
    agents.mkdir(mode=0o700)
    loadgen = load_pack.build_zipapp()
    (agents / "loadgen-0.pyz").write_bytes(loadgen)
    (agents / "loadgen-0.pyz").chmod(0o600)
    run.ask("apply", set="banner", files=[change(node.banner, BANNER, AFTER)])
    node.start(run, SLEEPS)
    run.ask("put", path=str(node.workdir / "run-1" / "config" / "a.json"), z="eJwDAAAAAAE=")
    load = {
        "spec": {"nonsense": 1},
        "name": "p",
        "timeout_s": 5,
        "workdir": str(node.workdir),
        "run_id": "run-1",
    }
    refused(lambda: run.ask("load", **load))
    kept = [path for top in (node.home, node.workdir / "run-1") for path in (top, *top.rglob("*"))]
    assert {path.name for path in kept} >= {
        "journal.jsonl",
        "guardian.sock",
        "guardian.log",
        "backup",
        "a-1.log",
        "a.json",
        "p.spec.json",
    }
    wrong = {
        str(path): oct(stat.S_IMODE(path.lstat().st_mode)) for path in kept if path.lstat().st_mode & 0o077
    }
    assert wrong == {}


def test_nothing_with_a_name_that_can_be_guessed_is_left_in_a_shared_folder(node: Node, run: Client) -> None:
    shared = set(os.listdir("/tmp")) | set(os.listdir("/dev/shm"))
    run.ask("apply", set="banner", files=[change(node.banner, BANNER, AFTER)])
    node.start(run, SLEEPS)
    new = (set(os.listdir("/tmp")) | set(os.listdir("/dev/shm"))) - shared
    assert [name for name in new if "dynspec" in name or "run-1" in name] == []


@pytest.mark.parametrize("part", ["logs", "logs/a-1.log"])
def test_a_link_on_the_way_to_the_log_is_not_followed(node: Node, run: Client, part: str) -> None:
    victim = node.folder / "victim"
    victim.mkdir(mode=0o700)
    (victim / "a-1.log").write_text("mine\n")
    link = node.workdir / "run-1" / part
    link.parent.mkdir(exist_ok=True, mode=0o700)
    link.symlink_to(victim if part == "logs" else victim / "a-1.log")
    assert refused(lambda: node.start(run, SLEEPS)).code == "not_writable"
    assert (victim / "a-1.log").read_text() == "mine\n"
    assert run.ask("status")["server"] is None


@pytest.mark.parametrize(
    "path", ["../log", "../run-10/log", "/etc/dynspec-test.log", "~/.profile", "logs/../../log"]
)
@pytest.mark.parametrize("verb", ["start", "sample", "put"])
def test_a_run_writes_in_its_own_folder_only(node: Node, run: Client, verb: str, path: str) -> None:
    place = path if path[0] in "/~" else f"{node.workdir}/run-1/{path}"
    acts: dict[str, Callable[[], object]] = {
        "start": lambda: node.start(run, SLEEPS, log=place),
        "sample": lambda: run.ask("sample", path=place, interval_s=1),
        "put": lambda: run.ask("put", path=place, z="eJwDAAAAAAE="),
    }
    before = sorted(node.folder.rglob("*"))
    assert refused(acts[verb]).code == "bad_request"
    assert [path for path in sorted(node.folder.rglob("*")) if path.name != "server.py"] == before


def test_a_run_folder_that_was_swapped_for_a_link_is_not_written_through(node: Node, run: Client) -> None:
    victim = node.folder / "victim"
    (victim / "backup").mkdir(parents=True, mode=0o700)
    (node.workdir / "run-1").rename(node.workdir / "taken")
    (node.workdir / "run-1").symlink_to(victim)
    for act in (
        lambda: run.ask("apply", set="banner", files=[change(node.banner, BANNER, AFTER)]),
        lambda: node.start(run, SLEEPS),
    ):
        assert refused(act).code == "not_writable"
    assert list((victim / "backup").iterdir()) == []
    assert node.banner.read_bytes() == BANNER


@pytest.mark.parametrize("swap", ["link", "other bytes", "gone"])
def test_a_backup_that_was_swapped_is_not_put_in_the_place_of_a_file(
    node: Node, run: Client, swap: str
) -> None:
    run.ask("apply", set="banner", files=[change(node.banner, BANNER, AFTER)])
    copies = [folder / "run-1" / "backup" / sha(BANNER) for folder in (node.workdir, node.home / "runs")]
    evil = node.folder / "evil"
    evil.write_bytes(b"import os; os.system('id')\n")
    for copy in copies:
        copy.unlink()
        if swap == "link":
            copy.symlink_to(evil)
        elif swap == "other bytes":
            copy.write_bytes(evil.read_bytes())
    error = refused(lambda: run.ask("restore"))
    assert error.code == "dirty"
    assert str(node.banner) in error.message
    assert node.banner.read_bytes() == AFTER
    copies[1].unlink(missing_ok=True)
    copies[1].write_bytes(BANNER)  # one of the two is enough
    assert run.ask("restore")["restored"] == [str(node.banner)]


def test_a_link_in_the_place_of_a_staged_file_is_not_written_through(node: Node, run: Client) -> None:
    victim = node.folder / "victim"
    victim.write_text("mine\n")
    (node.package / ".banner.py.dynspec-run-1").symlink_to(victim)
    assert (
        refused(lambda: run.ask("apply", set="banner", files=[change(node.banner, BANNER, AFTER)])).code
        == "not_writable"
    )
    assert victim.read_text() == "mine\n"
    assert node.banner.read_bytes() == BANNER
    (node.package / ".banner.py.dynspec-run-1").unlink()


def test_a_work_folder_below_one_that_everybody_may_write_in_is_refused_and_why(node: Node) -> None:
    node.workdir.mkdir()
    node.workdir.chmod(0o777)
    error = refused(lambda: node.guard(node.client()))
    assert error.code == "not_writable"
    assert f"everybody may replace what lies in {node.workdir}" in error.message
    node.workdir.chmod(0o1777)
    node.guard(node.client())


@root_only
def test_a_work_folder_behind_another_users_link_is_refused(node: Node) -> None:
    real = node.folder / "real"
    real.mkdir(mode=0o700)
    node.workdir.symlink_to(real)
    os.lchown(node.workdir, 65534, 65534)
    error = refused(lambda: node.guard(node.client()))
    assert error.code == "not_writable"
    assert "is a link of uid 65534" in error.message
    os.lchown(node.workdir, 0, 0)
    node.guard(node.client())  # one's own link to a larger disk is fine


def test_a_folder_swapped_between_the_look_and_the_opening_is_found_out(tmp_path: Path) -> None:
    own, victim = tmp_path / "own", tmp_path / "victim"
    for folder in (own, victim):
        folder.mkdir(mode=0o700)
    places.private_way(str(tmp_path), str(own / "log"))
    own.rename(tmp_path / "taken")
    own.symlink_to(victim)
    with pytest.raises(OSError):
        places.open_private(str(own / "log"), os.O_WRONLY | os.O_CREAT)
    own.unlink()
    own.mkdir()
    own.chmod(0o777)
    with pytest.raises(PermissionError):
        places.open_private(str(own / "log"), os.O_WRONLY | os.O_CREAT)
    assert list(victim.iterdir()) == list(own.iterdir()) == []


def test_clean_removes_the_folders_of_a_finished_run_and_no_others(node: Node, run: Client) -> None:
    precious = node.folder / "precious"
    (precious / "run-1").mkdir(parents=True)
    (precious / "other").mkdir()
    run.ask("unwind", stop_s=5)
    other = node.client()
    assert other.ask("clean", workdir=str(precious), run_id="other") == {}
    assert refused(lambda: other.ask("clean", workdir=str(precious), run_id="run-1")).code == "bad_request"
    assert sorted(path.name for path in precious.iterdir()) == ["other", "run-1"]
    other.ask("clean", workdir=str(node.workdir), run_id="run-1")
    assert list(node.workdir.iterdir()) == []
