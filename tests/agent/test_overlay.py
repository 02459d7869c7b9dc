"""Overlay mode on the node: the package runs from a folder of ours, and the installed one is only read."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import pack
from tests.agent.client import Client, Json, Refused, alive, change, eventually, sha, z
from tests.agent.conftest import BANNER, WORKER, Node

PATCHED = WORKER + b"# patched\n"
NOBODY = 65534

SERVE = b"""
import multiprocessing, os, sys, time
import toy._json
from toy.sub import worker


def child(kind):
    print(kind, os.getpid(), worker.__file__, toy._json.__file__, flush=True)
    time.sleep(300)


if __name__ == "__main__":
    print("leader", os.getpid(), worker.__file__, toy._json.__file__, flush=True)
    for kind in ("spawn", "forkserver", "fork"):
        multiprocessing.get_context(kind).Process(target=child, args=(kind,)).start()
    time.sleep(300)
"""


class Served:
    """A node whose toy package is installed for an interpreter of its own, with an extension and a start file."""

    def __init__(self, node: Node, base: str = sys.executable) -> None:
        self.node = node
        subprocess.run([base, "-m", "venv", "--without-pip", node.folder / "venv"], check=True)
        self.python = node.folder / "venv" / "bin" / "python3"
        self.site = next((node.folder / "venv" / "lib").glob("python3*/site-packages"))
        self.cwd = node.folder / "cwd"
        self.cwd.mkdir()
        self.package = self.site / "toy"
        shutil.move(node.package, self.package)
        (self.package / "serve.py").write_bytes(SERVE)
        told = [str(self.python), "-c", "import _json; print(_json.__file__)"]
        extension = Path(subprocess.run(told, capture_output=True, text=True, check=True).stdout.strip())
        self.extension = Path(shutil.copy(extension, self.package)).name
        subprocess.run([self.python, "-m", "compileall", "-q", self.package], check=True)

    @property
    def root(self) -> Path:
        return self.node.workdir / "run-1" / "overlay"

    def place(self, **over: Any) -> Json:
        return {"python": str(self.python), "cwd": str(self.cwd), "env": {}, **over}

    def check(self, client: Client, absent: tuple[str, ...] = (), **over: Any) -> Any:
        """Why the package would not be loaded from an overlay, or None."""
        where = {"workdir": str(self.node.workdir), "run_id": "run-1", "package": "toy"}
        asked = {**where, "package_path": str(self.package), "absent": list(absent), **self.place(**over)}
        return client.ask("overlay", **asked)["problem"]

    def lay(self, client: Client, *files: Json, name: str = "patched") -> Json:
        return client.ask("lay", set=name, package="toy", package_path=str(self.package), files=list(files))

    def start(self, client: Client, **over: Any) -> Json:
        launch = {
            "argv": [str(self.python), "-m", "toy.serve"],
            "cwd": str(self.cwd),
            "log": str(self.node.log),
        }
        return client.ask("start", **{**launch, "env": {}, "port": 1, "arm": "a", "boot": 1, **over})

    def said(self) -> dict[str, tuple[int, str, str]]:
        """By kind of process: its pid, where a module and where an extension came from."""
        lines = [line.split() for line in self.node.log.read_text().splitlines()]
        return {words[0]: (int(words[1]), words[2], words[3]) for words in lines if len(words) == 4}

    def picture(self) -> dict[str, tuple[object, ...]]:
        """Everything of the installed package, down to what a chmod or a link would leave: ctime and link count."""
        found = {}
        for path in [self.package, *sorted(self.package.rglob("*"))]:
            info = path.lstat()
            content = path.read_bytes() if path.is_file() else b""
            times = (info.st_mtime_ns, info.st_ctime_ns)
            found[str(path)] = (content, info.st_mode, info.st_uid, info.st_gid, info.st_nlink, *times)
        return found


@pytest.fixture
def served(node: Node) -> Served:
    return Served(node)


def edit(path: str, before: bytes | None, after: bytes | None) -> Json:
    """One entry of `lay`."""
    return {**change(Path(path), before, after), "path": path}


def test_the_package_its_extension_and_every_spawned_worker_load_from_the_overlay(served: Served) -> None:
    before = served.picture()
    client = served.node.client()
    served.node.guard(client)
    laid = served.lay(client, edit("sub/worker.py", WORKER, PATCHED))
    assert laid == {"root": str(served.root), "changed": ["sub/worker.py"], "kept": []}
    served.start(client)
    said = eventually(lambda: len(served.said()) == 4 and served.said(), what="all processes speak")
    for _, module, extension in said.values():
        assert module == str(served.root / "toy" / "sub" / "worker.py")
        assert extension == str(served.root / "toy" / served.extension)
    told = {item["pid"]: item for item in client.ask("origins")["processes"]}
    for pid, _, _ in said.values():
        assert told[pid]["state"] == "overlay"
        assert told[pid]["how"] == f"maps {served.root / 'toy' / served.extension}"
    assert {item["state"] for item in told.values()} == {"overlay"}  # the fork server and the tracker too
    assert served.picture() == before
    assert client.ask("verify")["files"] == [
        {"path": str(served.package / "sub" / "worker.py"), "state": "original", "sha256": sha(WORKER)}
    ]
    client.ask("unwind", stop_s=5, reason="done")
    assert not served.root.exists()
    assert served.picture() == before
    assert served.node.journal()[-1]["kind"] == "close"


def test_the_copy_holds_no_link_keeps_times_and_is_ours_alone(served: Served) -> None:
    real = served.site.parent / "cache.py"
    real.write_bytes(b"linked = 1\n")
    (served.package / "linked.py").symlink_to(real)  # as an installer with a cache of links leaves it
    (served.package / "data").symlink_to(served.package / "sub")
    (served.package / "broken").symlink_to("nowhere")
    libraries = served.site / "toy.libs"
    libraries.mkdir()
    (libraries / "libtoy.so").write_bytes(b"\x7fELF")
    client = served.node.client()
    served.node.guard(client)
    served.lay(client)
    for path in served.root.rglob("*"):
        info = path.lstat()
        assert not path.is_symlink()
        assert stat.S_IMODE(info.st_mode) & 0o077 == 0
        origin = served.site / path.relative_to(served.root)
        if path.is_file():
            assert (info.st_nlink, info.st_mtime_ns) == (1, origin.stat().st_mtime_ns)
            assert path.read_bytes() == origin.read_bytes()
    assert (served.root / "toy" / "linked.py").read_bytes() == b"linked = 1\n"
    assert (served.root / "toy.libs" / "libtoy.so").exists()
    assert list((served.root / "toy" / "sub" / "__pycache__").glob("worker.*.pyc"))
    assert not (served.root / "toy" / "broken").is_symlink()


def test_each_set_holds_exactly_its_own_files(served: Served) -> None:
    client = served.node.client()
    served.node.guard(client)
    fresh = "new/deep/fresh.py"
    first = [edit("sub/worker.py", WORKER, PATCHED), edit(fresh, None, b"fresh = 1\n")]
    served.lay(client, *first)
    copy = served.root / "toy"
    (copy / "new" / "__pycache__").mkdir()  # as an import leaves it
    assert (copy / fresh).exists()
    assert not list((copy / "sub" / "__pycache__").glob("worker.*.pyc"))
    second = served.lay(client, edit("banner.py", BANNER, None), name="second")
    assert sorted(second["changed"]) == ["banner.py", fresh, "sub/worker.py"]
    assert not (copy / "banner.py").exists()
    assert not (copy / "new").exists()
    assert (copy / "sub" / "worker.py").read_bytes() == WORKER
    original = served.lay(client, name="original")
    assert original["changed"] == ["banner.py"]
    assert (copy / "banner.py").read_bytes() == BANNER
    assert served.lay(client, *first)["changed"] == ["sub/worker.py", fresh]
    assert client.ask("restore") == {"restored": [], "verified": True}
    assert not served.root.exists()


def test_a_set_made_for_other_bytes_is_refused_and_leaves_no_overlay(served: Served) -> None:
    client = served.node.client()
    served.node.guard(client)
    with pytest.raises(Refused) as refused:
        served.lay(client, edit("banner.py", b"something else\n", b"patched\n"))
    assert refused.value.code == "changed"
    assert "banner.py" in refused.value.message
    assert not served.root.exists()
    served.lay(client, edit("banner.py", BANNER, b"patched\n"))  # and it can be tried again


def test_the_installed_package_may_be_upgraded_meanwhile(served: Served) -> None:
    """All boots run the same copy; the upgrade is nothing that the run would have to put back."""
    client = served.node.client()
    served.node.guard(client)
    served.lay(client, edit("banner.py", BANNER, b"patched\n"))
    (served.package / "banner.py").write_bytes(b"upgraded\n")
    served.lay(client, name="original")
    assert (served.root / "toy" / "banner.py").read_bytes() == BANNER
    (state,) = client.ask("verify")["files"]
    assert (state["state"], state["sha256"]) == ("foreign", sha(b"upgraded\n"))
    assert client.ask("unwind", stop_s=5, reason="done")["verified"] is True
    assert (served.package / "banner.py").read_bytes() == b"upgraded\n"


def test_nothing_is_laid_while_the_server_runs(served: Served) -> None:
    client = served.node.client()
    served.node.guard(client)
    served.lay(client)
    served.start(client)
    with pytest.raises(Refused) as refused:
        served.lay(client, edit("banner.py", BANNER, b"patched\n"))
    assert refused.value.code == "busy"


def test_what_the_path_had_before_follows_the_overlay(served: Served) -> None:
    client = served.node.client(PYTHONPATH="/login/path")
    served.node.guard(client)
    served.lay(client)
    show = [str(served.python), "-c", "import os; print('path', os.environ['PYTHONPATH'], '-', '-')"]
    for number, (env, rest) in enumerate([({}, ":/login/path"), ({"PYTHONPATH": "/theirs"}, ":/theirs")], 1):
        log = served.node.workdir / "run-1" / "logs" / f"{number}.log"
        served.start(client, argv=show, env=env, log=str(log))
        eventually(lambda log=log: log.read_text())
        assert log.read_text().split()[1] == f"{served.root}{rest}"
        client.ask("stop", timeout_s=5, gpu_free_s=1, gpus="all")
    served.start(client, argv=show, env={"PYTHONPATH": None})
    assert eventually(lambda: served.node.log.read_text()).split()[1] == str(served.root)


# -- what would be loaded instead


HOOK = """
import importlib.machinery, sys

class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return importlib.machinery.PathFinder.find_spec(name, [{folder!r}]) if name == "toy" else None

sys.meta_path.{how}
"""


def hook(served: Served, how: str) -> None:
    """An editable install as build tools make it: a .pth file that puts a finder on sys.meta_path."""
    checkout = served.node.folder / "checkout"
    shutil.copytree(served.package, checkout / "toy")
    (served.site / "__editable___toy_finder.py").write_text(HOOK.format(folder=str(checkout), how=how))
    (served.site / "__editable__.toy.pth").write_text("import __editable___toy_finder\n")


def test_a_plain_install_a_path_file_and_an_appended_hook_do_not_outrank_it(served: Served) -> None:
    client = served.node.client()
    assert served.check(client) is None
    checkout = served.node.folder / "src"
    shutil.copytree(served.package, checkout / "toy")
    (served.site / "toy.pth").write_text(f"{checkout}\n")
    assert served.check(client) is None
    hook(served, "append(Finder)")
    assert served.check(client) is None
    assert not served.node.workdir.exists()


def test_a_copy_in_the_folder_that_it_is_started_in_is_refused(served: Served) -> None:
    client = served.node.client()
    shutil.copytree(served.package, served.cwd / "toy")
    problem = served.check(client)
    assert "the folder that the server is started in has its own" in problem
    assert str(served.cwd / "toy" / "__init__.py") in problem
    shutil.rmtree(served.cwd / "toy")
    (served.cwd / "toy").mkdir()  # a repository of that name, say: no package
    assert served.check(client) is None


def test_an_import_hook_that_answers_first_is_refused_by_name(served: Served) -> None:
    hook(served, "insert(0, Finder)")
    problem = served.check(served.node.client())
    assert "the import hook __editable___toy_finder.Finder answers before any path" in problem


def test_a_hook_that_would_find_what_the_set_removes_is_refused(served: Served) -> None:
    (served.site / "__editable___toy_finder.py").write_text(
        "import importlib.util, sys\n"
        "class Finder:\n"
        "    @classmethod\n"
        "    def find_spec(cls, name, path=None, target=None):\n"
        "        if name == 'toy.banner':\n"
        f"            return importlib.util.spec_from_file_location(name, {str(served.package / 'banner.py')!r})\n"
        "sys.meta_path.append(Finder)\n"
    )
    (served.site / "__editable__.toy.pth").write_text("import __editable___toy_finder\n")
    client = served.node.client()
    assert served.check(client) is None
    assert "still finds toy.banner" in served.check(client, ("toy.banner",))
    served.node.guard(client)
    served.lay(client, edit("banner.py", BANNER, None))
    with pytest.raises(Refused) as refused:
        served.start(client)
    assert (refused.value.code, "toy.banner" in refused.value.message) == ("mismatch", True)


def test_an_interpreter_that_ignores_the_path_is_refused(served: Served) -> None:
    deaf = served.node.folder / "deaf"
    deaf.write_text(f'#!/bin/sh\nexec {served.python} -E "$@"\n')
    deaf.chmod(0o755)
    assert "does not look into PYTHONPATH" in served.check(served.node.client(), python=str(deaf))


def test_a_path_entry_of_the_work_folder_cannot_have_a_colon(served: Served) -> None:
    client = served.node.client()
    served.node.workdir = served.node.folder / "a:b"
    assert "cannot stand in PYTHONPATH" in served.check(client)


def test_what_came_up_since_the_plan_is_refused_at_the_start(served: Served) -> None:
    client = served.node.client()
    served.node.guard(client)
    served.lay(client)
    shutil.copytree(served.package, served.cwd / "toy")
    with pytest.raises(Refused) as refused:
        served.start(client)
    assert refused.value.code == "mismatch"
    assert not served.node.log.exists()
    assert "starting" not in [record["kind"] for record in served.node.journal()]


def test_a_process_started_without_the_overlay_is_told_apart(served: Served) -> None:
    client = served.node.client()
    served.node.guard(client)
    served.lay(client)
    strays = """
        import os, subprocess, sys, time
        sleep = "import time; print('up', 0, 0, 0, flush=True); time.sleep(300)"
        subprocess.Popen([sys.executable, "-c", sleep], env={**os.environ, "PYTHONPATH": "/theirs"})
        subprocess.Popen([sys.executable, "-c", sleep], env={})
        longer = os.pathsep.join(["/nothing", os.environ["PYTHONPATH"], "/theirs"])
        subprocess.Popen([sys.executable, "-c", sleep], env={**os.environ, "PYTHONPATH": longer})
        subprocess.Popen([sys.executable, "-c", "import toy._json; " + sleep], env={"PATH": "/bin"})
        subprocess.Popen(["sleep", "300"], env={})
        time.sleep(300)
    """
    served.start(client, argv=[str(served.python), "-c", textwrap.dedent(strays)])
    eventually(lambda: served.node.log.read_text().count("up") == 4, what="strays are up")
    told = [(item["state"], item["how"]) for item in client.ask("origins")["processes"]]
    assert sorted(state for state, _ in told) == ["installed", "installed", "overlay", "overlay", "unknown"]
    assert ("installed", "was started with PYTHONPATH=/theirs") in told
    assert ("overlay", f"was started with PYTHONPATH=/nothing:{served.root}:/theirs") in told
    assert ("installed", f"maps {served.package / served.extension}") in told


# -- other users' files, full disks, and ends that nobody planned


@pytest.fixture
def foreign_package(agent_file: Path) -> Iterator[Served]:
    """Installed by root, read-only for everybody; the agent runs as nobody."""
    if os.geteuid() != 0:
        pytest.skip("installing as another user needs root")
    with tempfile.TemporaryDirectory(prefix="dynspec-overlay-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        agent = folder / pack.name()
        shutil.copy(agent_file, agent)
        agent.chmod(0o644)
        node = Node(folder, agent)
        made = Served(
            node, "/usr/bin/python3"
        )  # the one of these tests may lie in a home that is closed to others
        for place in (node.home, node.workdir):
            place.mkdir(mode=0o700)
            os.chown(place, NOBODY, NOBODY)
        for path in [made.package, *made.package.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        yield made
        node.close()


def as_nobody() -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def test_a_read_only_package_of_root_serves_a_user_who_could_not_even_link_it(
    foreign_package: Served,
) -> None:
    served = foreign_package
    before = served.picture()
    client = Client(served.node.agent, served.node.environ, preexec=as_nobody, python="/usr/bin/python3")
    served.node.clients.append(client)
    assert served.check(client) is None
    served.node.guard(client)
    served.lay(client, edit("sub/worker.py", WORKER, PATCHED))
    assert (served.root / "toy" / "sub" / "worker.py").stat().st_uid == NOBODY
    served.start(client)
    said = eventually(lambda: len(served.said()) == 4 and served.said(), what="all processes speak")
    assert {Path(module).parent for _, module, _ in said.values()} == {served.root / "toy" / "sub"}
    client.ask("unwind", stop_s=5, reason="done")
    assert not served.root.exists()
    assert served.picture() == before


@pytest.fixture
def small_disk(node: Node) -> Iterator[Path]:
    place = node.folder / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("no small disk: mounting a tmpfs needs root")
    place.chmod(0o700)
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_another_file_system_will_do_and_a_full_one_is_refused(served: Served, small_disk: Path) -> None:
    served.node.workdir = small_disk / "work"
    client = served.node.client()
    assert served.check(client) is None
    served.node.guard(client)
    served.lay(client)
    assert (served.root / "toy" / "banner.py").read_bytes() == BANNER
    client.ask("restore")
    (served.package / "weights.bin").write_bytes(b"\1" * (6 << 20))
    assert "MiB needed" in served.check(client)
    with pytest.raises(Refused) as refused:
        served.lay(client)
    assert refused.value.code == "no_space"
    assert not served.root.exists()


def test_a_link_to_a_folder_above_it_is_refused(served: Served) -> None:
    (served.package / "sub" / "loop").symlink_to(served.package)
    client = served.node.client()
    served.node.guard(client)
    with pytest.raises(Refused) as refused:
        served.lay(client)
    assert (refused.value.code, "link to a folder above" in refused.value.message) == ("mismatch", True)
    assert not served.root.exists()


@pytest.mark.parametrize("when", ["overlay.build:after", "overlay.write:before", "journal.server:after"])
def test_after_a_guardian_that_was_killed_a_person_restores_and_nothing_is_left(
    served: Served, when: str
) -> None:
    before = served.picture()
    prefix = served.node.folder / "caches"
    client = served.node.client(DYNSPEC_TEST_KILL_AT=when, PYTHONPYCACHEPREFIX=str(prefix))
    guardian = served.node.guard(client)["guardian_pid"]

    def deeds() -> None:
        served.lay(client, edit("sub/worker.py", WORKER, PATCHED))
        served.start(client)

    with pytest.raises(Refused):
        deeds()
    eventually(lambda: not alive(guardian), what="guardian gone")
    if when.startswith("journal.server"):
        eventually(lambda: len(served.said()) == 4, what="the orphaned server came up")
        assert list(prefix.rglob("worker.*.pyc"))
    done = served.node.by_hand("restore", PYTHONPYCACHEPREFIX=str(prefix))
    assert done.returncode == 0, done.stdout + done.stderr
    client.close()
    assert not served.root.exists()
    assert not [path for path in prefix.rglob("*") if str(served.node.workdir) in str(path)]
    assert served.picture() == before
    assert served.node.processes() == []


def test_an_overlay_that_is_a_link_by_now_is_not_followed(served: Served) -> None:
    client = served.node.client()
    guardian = served.node.guard(client)["guardian_pid"]
    served.lay(client)
    os.kill(guardian, signal.SIGKILL)
    eventually(lambda: not alive(guardian), what="guardian gone")
    shutil.rmtree(served.root)
    served.root.symlink_to(served.package)
    done = served.node.by_hand("restore")
    assert done.returncode == 70, done.stdout + done.stderr
    assert "is a link and not ours" in done.stdout + done.stderr
    assert (served.package / "banner.py").exists()


def test_a_path_that_leaves_the_package_and_a_wrong_digest_are_refused(served: Served) -> None:
    client = served.node.client()
    served.node.guard(client)
    for path in ("../escape.py", "/etc/passwd", "sub//worker.py"):
        with pytest.raises(Refused) as refused:
            served.lay(client, edit(path, None, b"x"))
        assert refused.value.code == "bad_request"
    with pytest.raises(Refused) as refused:
        served.lay(client, dict(edit("banner.py", BANNER, b"x"), after_sha256=sha(b"y"), z=z(b"x")))
    assert refused.value.code == "bad_request"
    assert not served.root.exists()
