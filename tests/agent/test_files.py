"""Apply and restore on real files: nothing but the wanted bytes changes, and nothing changes when anything is wrong."""

from __future__ import annotations

import os
import py_compile
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.client import Client, Refused, change, sha
from tests.agent.conftest import BANNER, WORKER, Node, fill

PATCHED = b'BANNER = "patched!"\n'
OTHER = b'BANNER = "other"\n'
FOREIGN = b'BANNER = "edited by somebody"\n'


@pytest.fixture
def client(node: Node) -> Client:
    client = node.client()
    node.guard(client)
    return client


def apply(client: Client, *files: object, name: str = "s", **args: object) -> dict[str, list[str]]:
    return client.ask("apply", set=name, files=list(files), **args)


def refusal(client: Client, *files: object) -> Refused:
    with pytest.raises(Refused) as refused:
        apply(client, *files)
    return refused.value


def test_a_set_replaces_the_set_before_it(node: Node, client: Client) -> None:
    apply(client, change(node.banner, BANNER, PATCHED), change(node.worker, WORKER, b"# two\n"))
    done = apply(client, change(node.banner, BANNER, OTHER))
    assert sorted(done["changed"]) == sorted([str(node.banner), str(node.worker)])
    assert node.banner.read_bytes() == OTHER
    assert node.worker.read_bytes() == WORKER


def test_a_file_added_by_one_set_is_gone_in_the_next(node: Node, client: Client) -> None:
    fresh = node.package / "runtime" / "fresh.py"
    apply(client, change(fresh, None, b"x = 1\n"))
    assert fresh.read_bytes() == b"x = 1\n"
    apply(client)
    assert not fresh.parent.exists()
    apply(client, change(fresh, None, b"x = 1\n"))
    client.ask("unwind", stop_s=2, reason="done")
    assert not fresh.parent.exists()


def test_the_original_set_runs_the_original_bytes(node: Node, client: Client) -> None:
    before = node.files()
    apply(client, change(node.banner, BANNER, PATCHED))
    assert apply(client)["changed"] == [str(node.banner)]
    assert node.files() == before


def test_a_tree_already_patched_is_kept_and_nothing_is_written(node: Node, client: Client) -> None:
    node.banner.write_bytes(PATCHED)
    inode = node.banner.stat().st_ino
    done = apply(client, change(node.banner, BANNER, PATCHED))
    assert done == {"changed": [], "kept": [str(node.banner)]}
    assert node.banner.stat().st_ino == inode
    assert [record["kind"] for record in node.journal()] == ["open"]
    client.ask("unwind", stop_s=2, reason="done")
    assert node.banner.read_bytes() == PATCHED


def test_other_bytes_than_expected_are_refused_by_name_with_no_file_touched(
    node: Node, client: Client
) -> None:
    node.worker.write_bytes(FOREIGN)
    before = node.files()
    refused = refusal(client, change(node.banner, BANNER, PATCHED), change(node.worker, WORKER, b"#\n"))
    assert refused.code == "changed"
    assert refused.details["files"] == [
        {"path": str(node.worker), "expected": sha(WORKER), "found": sha(FOREIGN)}
    ]
    assert node.files() == before
    assert [record["kind"] for record in node.journal()] == ["open"]


def test_a_file_edited_by_somebody_after_apply_is_refused_by_the_next_apply(
    node: Node, client: Client
) -> None:
    apply(client, change(node.banner, BANNER, PATCHED))
    node.banner.write_bytes(FOREIGN)
    assert refusal(client, change(node.banner, BANNER, OTHER)).code == "changed"
    assert node.banner.read_bytes() == FOREIGN


def test_restore_refuses_a_foreign_file_restores_the_others_and_names_it(node: Node, client: Client) -> None:
    apply(client, change(node.banner, BANNER, PATCHED), change(node.worker, WORKER, b"# two\n"))
    node.banner.write_bytes(FOREIGN)
    with pytest.raises(Refused) as refused:
        client.ask("unwind", stop_s=2, reason="done")
    assert refused.value.code == "dirty"
    assert [item["path"] for item in refused.value.details["files"]] == [str(node.banner)]
    assert node.banner.read_bytes() == FOREIGN
    assert node.worker.read_bytes() == WORKER
    dirty = node.by_hand("restore")
    assert dirty.returncode == 70
    assert f"cp {node.workdir}/run-1/backup/{sha(BANNER)} {node.banner}, then restore" in dirty.stdout
    assert f"to keep {node.banner} as it is: restore --keep-foreign" in dirty.stdout
    (told,) = node.client().ask("status")["journals"]
    assert told["files_changed"] == [str(node.banner)]
    backups = list((node.workdir / "run-1" / "backup").iterdir())
    assert BANNER in [path.read_bytes() for path in backups], (
        "the original is kept until a restore was verified"
    )
    node.banner.write_bytes(PATCHED)
    assert node.by_hand("restore").returncode == 0
    assert node.banner.read_bytes() == BANNER


def test_a_person_may_give_up_a_file_that_was_upgraded_meanwhile(node: Node, client: Client) -> None:
    apply(client, change(node.banner, BANNER, PATCHED), change(node.worker, WORKER, b"# two\n"))
    edited = FOREIGN + b"x = 1  # dynspec:spec_banner\n"
    node.banner.write_bytes(edited)
    client.kill()
    os.kill(node.guardian_pid(), 9)
    done = node.by_hand("restore", "--keep-foreign")
    assert done.returncode == 0
    assert f"left as somebody else changed it: {node.banner}" in done.stdout
    assert f"it still holds a patch of dynspec: {node.banner}" in done.stdout
    assert node.banner.read_bytes() == edited
    assert node.worker.read_bytes() == WORKER
    assert node.by_hand("restore").stdout.startswith("nothing to do")


def test_a_file_that_vanished_is_not_brought_back_silently(node: Node, client: Client) -> None:
    apply(client, change(node.banner, BANNER, PATCHED))
    node.banner.unlink()
    with pytest.raises(Refused) as refused:
        client.ask("restore")
    assert refused.value.code == "dirty"
    assert not node.banner.exists()


def test_a_work_folder_that_vanished_during_the_run_costs_no_original(node: Node, client: Client) -> None:
    apply(client, change(node.banner, BANNER, PATCHED))
    shutil.rmtree(node.workdir)
    done = client.ask("unwind", stop_s=2, reason="done")
    assert (done["restored"], done["verified"]) == ([str(node.banner)], True)
    assert node.banner.read_bytes() == BANNER
    assert not (node.home / "runs" / "run-1" / "backup").exists()


def test_a_damaged_backup_is_never_written_over_the_tree_and_the_way_out_is_named(
    node: Node, client: Client
) -> None:
    record = node.site / "toy_kit-1.2.3.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text("toy/__init__.py,,\n")
    apply(client, change(node.banner, BANNER, PATCHED))
    (node.workdir / "run-1" / "backup" / sha(BANNER)).write_bytes(b"garbage")
    (node.home / "runs" / "run-1" / "backup" / sha(BANNER)).unlink()
    with pytest.raises(Refused) as refused:
        client.ask("unwind", stop_s=2, reason="done")
    assert refused.value.code == "dirty"
    for words in (
        "(damaged)",
        "(missing)",
        sha(BANNER),
        "pip install --force-reinstall --no-deps toy_kit==1.2.3",
    ):
        assert words in refused.value.message
    assert node.banner.read_bytes() == PATCHED
    node.banner.write_bytes(BANNER)  # as pip would
    assert node.by_hand("restore").returncode == 0


def test_verify_tells_original_patched_and_foreign(node: Node, client: Client) -> None:
    apply(client, change(node.banner, BANNER, PATCHED), change(node.worker, WORKER, b"# two\n"))
    node.worker.write_bytes(FOREIGN)
    states = {item["path"]: item["state"] for item in client.ask("verify")["files"]}
    assert states == {str(node.banner): "patched", str(node.worker): "foreign"}
    apply_back = client.submit("apply", set="original", files=[])
    assert apply_back.result(10)["error"]["code"] == "changed"


# -- links, modes, owners


def test_a_hard_linked_twin_keeps_its_bytes(node: Node, client: Client) -> None:
    twin = node.folder / "twin.py"
    os.link(node.banner, twin)
    apply(client, change(node.banner, BANNER, PATCHED))
    assert twin.read_bytes() == BANNER
    client.ask("restore")
    assert twin.read_bytes() == BANNER


def test_a_symlink_is_followed_reported_and_stays_a_link(node: Node, client: Client) -> None:
    real = node.folder / "real.py"
    real.write_bytes(BANNER)
    node.banner.unlink()
    node.banner.symlink_to(real)
    done = apply(client, change(node.banner, BANNER, PATCHED))
    assert done["changed"] == [str(real)]
    assert node.banner.is_symlink()
    assert real.read_bytes() == PATCHED
    client.ask("unwind", stop_s=2, reason="done")
    assert node.banner.is_symlink()
    assert real.read_bytes() == BANNER


def test_a_link_put_in_the_place_of_a_patched_file_is_not_written_through(node: Node, client: Client) -> None:
    apply(client, change(node.banner, BANNER, PATCHED))
    victim = node.folder / "victim"
    victim.write_bytes(b"precious")
    node.banner.unlink()
    node.banner.symlink_to(victim)
    with pytest.raises(Refused) as refused:
        client.ask("restore")
    assert refused.value.code == "dirty"
    assert victim.read_bytes() == b"precious"


def test_one_file_named_twice_through_a_link_is_refused(node: Node, client: Client) -> None:
    alias = node.package / "alias.py"
    alias.symlink_to(node.banner)
    refused = refusal(client, change(node.banner, BANNER, PATCHED), change(alias, BANNER, PATCHED))
    assert refused.code == "bad_request"


def test_mode_is_kept_on_apply_and_on_restore(node: Node, client: Client) -> None:
    node.banner.chmod(0o640)
    apply(client, change(node.banner, BANNER, PATCHED))
    assert node.banner.stat().st_mode & 0o7777 == 0o640
    client.ask("restore")
    assert node.banner.stat().st_mode & 0o7777 == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_owner_is_kept_by_root(node: Node, client: Client) -> None:
    os.chown(node.banner, 1234, 4321)
    apply(client, change(node.banner, BANNER, PATCHED))
    assert (node.banner.stat().st_uid, node.banner.stat().st_gid) == (1234, 4321)
    client.ask("restore")
    assert (node.banner.stat().st_uid, node.banner.stat().st_gid) == (1234, 4321)


def test_extended_attributes_survive(node: Node, client: Client) -> None:
    try:
        os.setxattr(node.banner, "user.note", b"kept")
    except OSError:
        pytest.skip("this file system has no user attributes")
    apply(client, change(node.banner, BANNER, PATCHED))
    assert os.getxattr(node.banner, "user.note") == b"kept"
    client.ask("restore")
    assert os.getxattr(node.banner, "user.note") == b"kept"


# -- what cannot be written


@pytest.fixture
def plain_user() -> Iterator[tuple[Path, int]]:
    """A folder and a uid without root's powers: permission bits mean nothing to root."""
    uid = 65534 if os.geteuid() == 0 else os.geteuid()
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder, uid


@pytest.fixture
def plain(plain_user: tuple[Path, int], agent_file: Path) -> Iterator[tuple[Node, Client, int]]:
    folder, uid = plain_user
    agent = folder / agent_file.name
    agent.write_bytes(agent_file.read_bytes())
    node = Node(folder, agent)
    if os.geteuid() == 0:
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, uid, uid)
    client = Client(agent, node.environ, lambda: _become(uid), python="/usr/bin/python3")
    node.clients.append(client)
    node.guard(client)
    yield node, client, uid
    node.close()


def _become(uid: int) -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)


def test_an_unwritable_folder_fails_before_anything_changes(plain: tuple[Node, Client, int]) -> None:
    node, client, _ = plain
    (node.package / "sub").chmod(0o555)
    before = node.files()
    refused = refusal(client, change(node.banner, BANNER, PATCHED), change(node.worker, WORKER, b"#\n"))
    (node.package / "sub").chmod(0o755)
    assert refused.code == "not_writable"
    assert [item["path"] for item in refused.details["files"]] == [str(node.worker)]
    assert node.files() == before
    assert not (node.workdir / "run-1" / "backup").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_a_file_whose_owner_could_not_be_kept_is_refused(plain: tuple[Node, Client, int]) -> None:
    node, client, _ = plain
    os.chown(node.banner, 1234, 1234)
    refused = refusal(client, change(node.banner, BANNER, PATCHED))
    assert refused.code == "not_writable"
    assert "uid 1234" in refused.message


def test_a_full_disk_under_the_tree_fails_before_anything_changes(
    node: Node, client: Client, small_disk: Path
) -> None:
    target = small_disk / "banner.py"
    target.write_bytes(BANNER)
    (small_disk / "filler").write_bytes(b"x" * (1900 * 1024))
    refused = refusal(client, change(node.worker, WORKER, b"# two\n"), change(target, BANNER, PATCHED))
    assert refused.code == "no_space"
    assert (node.worker.read_bytes(), target.read_bytes()) == (WORKER, BANNER)
    assert sorted(path.name for path in small_disk.iterdir()) == ["banner.py", "filler"]


def test_a_full_disk_under_the_registry_stops_no_restore(node: Node, small_disk: Path) -> None:
    node.home = small_disk / "home"
    client = node.client(DYNSPEC_HOME=str(node.home))
    node.guard(client, holder="h" * 3000)  # so that the journal is at the end of a page
    apply(client, change(node.banner, BANNER, PATCHED))
    assert fill(small_disk / "filler") > 4096
    refused = refusal(client, change(node.banner, BANNER, OTHER))
    assert refused.code == "no_space"
    done = client.ask("unwind", stop_s=2, reason="done")
    assert done["verified"]
    assert node.banner.read_bytes() == BANNER
    assert node.journal()[-1]["kind"] == "close"


@pytest.fixture
def small_node(small_disk: Path, agent_file: Path) -> Iterator[Node]:
    """All of it on one small disk."""
    made = Node(small_disk, agent_file)
    yield made
    made.close()


def test_a_full_disk_under_tree_and_backups_stops_no_restore(small_node: Node, small_disk: Path) -> None:
    small_node.worker.chmod(0o640)
    before = small_node.files()
    client = small_node.client()
    small_node.guard(client)
    edits = [change(small_node.banner, BANNER, PATCHED), change(small_node.worker, WORKER, b"# two\n")]
    apply(client, *edits)
    fill(small_disk / "filler")
    done = client.ask("unwind", stop_s=2, reason="done")
    assert done["verified"]
    assert small_node.files() == before
    assert small_node.journal()[-1]["kind"] == "close"


def test_the_last_copy_of_an_original_is_kept_where_a_full_disk_stops_the_restore(
    small_node: Node, small_disk: Path
) -> None:
    before = small_node.files()
    client = small_node.client()
    small_node.guard(client)
    apply(client, change(small_node.banner, BANNER, PATCHED))
    shutil.rmtree(small_node.workdir / "run-1" / "backup")
    fill(small_disk / "filler")
    with pytest.raises(Refused, match="No space left on device") as refused:
        client.ask("unwind", stop_s=2, reason="done")
    assert refused.value.code == "dirty"
    (small_disk / "filler").unlink()
    assert small_node.by_hand("restore").returncode == 0
    assert small_node.files() == before


def test_an_immutable_file_is_refused_before_anything_changes(node: Node, client: Client) -> None:
    made = subprocess.run(["chattr", "+i", str(node.worker)], capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip("no immutable files here: needs root and a file system that knows them")
    try:
        refused = refusal(client, change(node.banner, BANNER, PATCHED), change(node.worker, WORKER, b"#\n"))
    finally:
        subprocess.run(["chattr", "-i", str(node.worker)], check=True)
    assert refused.code == "not_writable"
    assert node.banner.read_bytes() == BANNER


# -- stale bytecode


def value(node: Node, **extra: str) -> str:
    """What a fresh interpreter gets from the tree; it writes and trusts bytecode as usual."""
    argv = [sys.executable, "-c", "import toy.banner; print(toy.banner.BANNER)"]
    environ = {**node.environ, **extra}
    return subprocess.run(
        argv, cwd=node.site, env=environ, capture_output=True, text=True, check=True
    ).stdout.strip()


SAME_LENGTH = BANNER.replace(b"original", b"modified")


def test_an_edit_of_the_same_length_and_second_never_runs_old_bytecode(node: Node, client: Client) -> None:
    os.utime(node.banner, (1_700_000_000, 1_700_000_000))
    assert value(node) == "original"
    apply(client, change(node.banner, BANNER, SAME_LENGTH))
    os.utime(node.banner, (1_700_000_000, 1_700_000_000))  # the worst clock there is
    assert value(node) == "modified"
    client.ask("restore")
    os.utime(node.banner, (1_700_000_000, 1_700_000_000))
    assert value(node) == "original"


def test_the_modification_time_is_never_preserved(node: Node, client: Client) -> None:
    os.utime(node.banner, (1_700_000_000, 1_700_000_000))
    apply(client, change(node.banner, BANNER, SAME_LENGTH))
    client.ask("restore")
    assert node.banner.stat().st_mtime > 1_700_000_001


def test_bytecode_under_the_servers_cache_prefix_is_dropped_too(node: Node, client: Client) -> None:
    prefix = node.folder / "cache"
    os.utime(node.banner, (1_700_000_000, 1_700_000_000))
    assert value(node, PYTHONPYCACHEPREFIX=str(prefix)) == "original"
    apply(client, change(node.banner, BANNER, SAME_LENGTH))
    os.utime(node.banner, (1_700_000_000, 1_700_000_000))
    node.start(client, "import time; time.sleep(300)", env={"PYTHONPYCACHEPREFIX": str(prefix)})
    assert value(node, PYTHONPYCACHEPREFIX=str(prefix)) == "modified"
    client.ask("stop", timeout_s=5, gpu_free_s=1, gpus=None)
    client.ask("restore")
    os.utime(node.banner, (1_700_000_000, 1_700_000_000))
    assert value(node, PYTHONPYCACHEPREFIX=str(prefix)) == "original"


def test_every_optimisation_level_is_dropped_and_neighbours_stay(node: Node, client: Client) -> None:
    for level in (0, 1, 2):
        py_compile.compile(str(node.banner), optimize=level)
    neighbour = Path(py_compile.compile(str(node.package / "__init__.py")) or "")
    apply(client, change(node.banner, BANNER, PATCHED))
    assert list((node.package / "__pycache__").iterdir()) == [neighbour]
