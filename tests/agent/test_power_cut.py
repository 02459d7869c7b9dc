"""Power-cut drills: stop at every durable write there is, before it and after it, then restore and compare.

The file drills run in forked processes that die by the seam in `durable.py`; each is followed by the recovery that the
next guardian, or a person, would do. Drills of process records use a real guardian and a real server.
"""

from __future__ import annotations

import ast
import itertools
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.agent import (
    apply,
    backup,
    durable,
    journal,
    overlay,
    places,
    procs,
    recovery,
    restore,
    story,
)
from orchestrator.agent.journal import Journal
from tests.agent import power_model
from tests.agent.client import Refused, alive, change, eventually, sha, z
from tests.agent.conftest import BANNER, WORKER, Node, fill

AGENT = Path(durable.__file__).parent
EDGES = ("before", "after")
PROCESS_WRITES = ("journal.starting", "journal.server", "journal.tree", "journal.stopped")
GONE = b"# this file is absent in one patch set\n"
KILLED = -signal.SIGKILL


def in_child(act: Callable[[], object], kill_at: str = "") -> int:
    """Runs `act` in a forked process: its exit status, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            durable._seen.clear()
            os.environ[durable.KILL_VARIABLE] = kill_at
            act()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def count_writes(act: Callable[[], object], file: Path) -> dict[str, int]:
    """How often each durable write happens in `act`."""

    def counting() -> None:
        act()
        file.write_text(json.dumps(durable._seen))

    assert in_child(counting) == 0
    counts: dict[str, int] = json.loads(file.read_text())
    return counts


class Drill:
    """The deeds of one run on the toy package, without the guardian around them."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.gone = node.package / "gone.py"
        self.fresh = node.package / "new" / "deep" / "fresh.py"
        self.gone.write_bytes(GONE)
        node.worker.chmod(0o640)
        self.before = node.files()
        self.clean_tree = self.everything()

    def everything(self) -> set[str]:
        return {str(path) for path in self.node.package.rglob("*")}

    def open_journal(self) -> Journal:
        for folder in (places.home(), places.runs_folder(), places.run_folder("run-1")):
            places.private_folder(folder)
        places.private_folder(places.work_folder(str(self.node.workdir), "run-1"))
        return Journal.create(
            "run-1",
            boot_id=procs.boot_id(),
            machine_id=procs.machine_id(),
            pid_namespace=procs.pid_namespace(),
            guardian={"pid": os.getpid(), "start_time": 1},  # a process that is gone
            holder="ann@laptop:7",
            workdir=str(self.node.workdir),
            stop_s=5.0,
            marker="DYNSPEC_RUN=run-1.drill",
        )

    def run(self) -> None:
        """Every kind of change between sets: edit, add, remove, back to the original, and the end."""
        opened = self.open_journal()
        first = [
            change(self.node.banner, BANNER, b"first\n"),
            change(self.node.worker, WORKER, WORKER + b"# first\n"),
            change(self.fresh, None, b"fresh = 1\n"),
        ]
        second = [change(self.node.banner, BANNER, b"second\n"), change(self.gone, GONE, None)]
        for name, files in (("first", first), ("second", second), ("original", []), ("again", first)):
            apply.apply(opened, name, apply.parse(files), [])
            self.leave_bytecode()
        assert restore.restore(opened).problems == []
        backup.drop(opened)
        opened.append("close", state=journal.CLEAN)
        opened.close_file()

    def leave_bytecode(self) -> None:
        for source in (self.node.banner, self.fresh):
            if source.exists():
                cache = source.parent / "__pycache__"
                cache.mkdir(exist_ok=True)
                (cache / f"{source.stem}.cpython-311.pyc").write_bytes(b"stale")

    def recover(self) -> None:
        recovery.recover_all()

    def check_clean(self) -> None:
        assert self.node.files() == self.before
        caches = {str(self.node.package / "__pycache__")}
        assert self.everything() - caches == self.clean_tree, "a temporary file or stale bytecode is left"
        for name in ("backup", overlay.FOLDER):
            assert not (self.node.workdir / "run-1" / name).exists()
        assert recovery.unfinished() == []
        for path in (self.node.home / "runs").glob("*/journal.jsonl"):
            assert story.read(str(path)).closed == journal.CLEAN


class OverlayDrill(Drill):
    """The same changes in a copy: the package itself must not be touched at any moment."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.untouched = {path: path.lstat().st_ctime_ns for path in self.node.package.rglob("*")}

    def run(self) -> None:
        opened = self.open_journal()
        laid = overlay.lay(opened, "toy", str(self.node.package), lambda: False)
        fresh = "new/deep/fresh.py"
        first = [("banner.py", BANNER, b"first\n"), (fresh, None, b"fresh = 1\n")]
        second = [("banner.py", BANNER, b"second\n"), ("gone.py", GONE, None)]
        for name, files in (("first", first), ("second", second), ("original", []), ("again", first)):
            wanted = [dict(change(Path(path), *texts), path=path) for path, *texts in files]
            overlay.bring(opened, laid, name, overlay.parse(wanted))
            (Path(laid.path) / "new" / "__pycache__").mkdir(parents=True, exist_ok=True)
        assert restore.restore(opened).problems == []
        backup.drop(opened)
        opened.append("close", state=journal.CLEAN)
        opened.close_file()

    def check_clean(self) -> None:
        super().check_clean()
        assert {path: path.lstat().st_ctime_ns for path in self.node.package.rglob("*")} == self.untouched


@pytest.fixture
def drill(memory_path: Path, agent_file: Path, monkeypatch: pytest.MonkeyPatch) -> Drill:
    return next(fresh_drills(memory_path, agent_file, monkeypatch))


@pytest.fixture
def overlay_drill(memory_path: Path, agent_file: Path, monkeypatch: pytest.MonkeyPatch) -> Drill:
    return next(fresh_drills(memory_path, agent_file, monkeypatch, OverlayDrill))


def fresh_drills(
    memory_path: Path, agent_file: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Drill] = Drill
) -> Iterator[Drill]:
    """One untouched node after another."""
    number = 0
    while True:
        number += 1
        node = Node(memory_path / str(number), agent_file)
        monkeypatch.setenv("DYNSPEC_HOME", str(node.home))
        yield kind(node)


OVERLAY_WRITES = sorted(name for name in durable.NAMES if "overlay" in name)
FILE_WRITES = sorted(
    durable.NAMES
    - {*PROCESS_WRITES, *OVERLAY_WRITES}
    - {"journal.mend", "journal.rotate", "file.unstage"}  # only after a cut, with drills of their own
    - {"file.lend"}  # only on a full disk
)


@pytest.mark.parametrize("name", FILE_WRITES)
def test_a_power_cut_at_any_file_write_is_restored_to_the_byte(
    name: str, memory_path: Path, agent_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drills = fresh_drills(memory_path, agent_file, monkeypatch)
    times = count_writes(next(drills).run, memory_path / "counts").get(name, 0)
    assert times > 0, f"{name} never happens in the drill"
    for edge, nth in itertools.product(EDGES, range(1, times + 1)):
        drill = next(drills)
        assert in_child(drill.run, f"{name}:{edge}:{nth}") == KILLED
        assert in_child(drill.recover) == 0, f"recovery failed after {name}:{edge}:{nth}"
        drill.check_clean()


@pytest.mark.parametrize(
    "first_cut", ["file.replace:after:2", "file.stage:after:3", "journal.intend:after:4"]
)
def test_a_power_cut_during_recovery_is_recovered_in_turn(
    first_cut: str, memory_path: Path, agent_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drills = fresh_drills(memory_path, agent_file, monkeypatch)
    drill = next(drills)
    assert in_child(drill.run, first_cut) == KILLED
    counts = count_writes(drill.recover, memory_path / "counts")
    assert {"journal.close", "journal.restored"} <= set(counts)
    assert "file.unstage" in counts or not first_cut.startswith("file.stage")
    for name, times in counts.items():
        for edge, nth in itertools.product(EDGES, range(1, times + 1)):
            drill = next(drills)
            assert in_child(drill.run, first_cut) == KILLED
            assert in_child(drill.recover, f"{name}:{edge}:{nth}") == KILLED
            assert in_child(drill.recover) == 0, f"after {first_cut}, then {name}:{edge}:{nth}"
            drill.check_clean()


@pytest.mark.parametrize("name", OVERLAY_WRITES)
def test_a_power_cut_at_any_write_of_an_overlay_leaves_no_overlay_and_an_untouched_package(
    name: str, memory_path: Path, agent_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drills = fresh_drills(memory_path, agent_file, monkeypatch, OverlayDrill)
    times = count_writes(next(drills).run, memory_path / "counts").get(name, 0)
    assert times > 0, f"{name} never happens in the drill"
    for edge, nth in itertools.product(EDGES, range(1, times + 1)):
        drill = next(drills)
        assert in_child(drill.run, f"{name}:{edge}:{nth}") == KILLED
        for again in EDGES:  # and the recovery is cut too
            in_child(drill.recover, f"overlay.drop:{again}")
        assert in_child(drill.recover) == 0, f"recovery failed after {name}:{edge}:{nth}"
        drill.check_clean()


@pytest.mark.parametrize("edge", EDGES)
def test_a_torn_last_line_is_mended_even_when_the_power_fails_again(drill: Drill, edge: str) -> None:
    assert in_child(drill.run, "journal.applied:before:1") == KILLED
    path = drill.node.home / "runs" / "run-1" / "journal.jsonl"
    with path.open("ab") as stream:
        stream.write(b'{"kind":"appl')
    assert in_child(drill.recover, f"journal.mend:{edge}:1") == KILLED
    assert in_child(drill.recover) == 0
    drill.check_clean()


@pytest.mark.parametrize("edge", EDGES)
def test_a_closed_journal_moves_aside_for_a_second_run_of_the_same_name(drill: Drill, edge: str) -> None:
    assert in_child(drill.run) == 0
    assert in_child(drill.run, f"journal.rotate:{edge}:1") == KILLED
    assert in_child(drill.recover) == 0
    assert in_child(drill.run) == 0
    drill.check_clean()
    assert (drill.node.home / "runs" / "run-1" / "journal.jsonl.1").exists()


@pytest.mark.parametrize("edge", EDGES)
def test_a_power_cut_while_a_full_disk_is_restored_is_restored(
    small_disk: Path, agent_file: Path, monkeypatch: pytest.MonkeyPatch, edge: str
) -> None:
    drill = next(fresh_drills(small_disk, agent_file, monkeypatch))
    opened = drill.open_journal()
    apply.apply(opened, "s", apply.parse([change(drill.node.worker, WORKER, WORKER + b"# patched\n")]), [])
    opened.close_file()
    fill(small_disk / "filler")
    assert in_child(drill.recover, f"file.lend:{edge}") == KILLED
    assert in_child(drill.recover) == 0
    drill.check_clean()


SERVER = """
    import os, sys, time
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            print("worker", os.getpid(), flush=True)
            time.sleep(300)
        os._exit(0)
    print("launcher", os.getpid(), flush=True)
    time.sleep(300)
"""


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("name", PROCESS_WRITES)
def test_a_guardian_killed_around_the_server_is_recovered_by_hand(node: Node, name: str, edge: str) -> None:
    before = node.files()
    client = node.client(**{durable.KILL_VARIABLE: f"{name}:{edge}"})
    guardian = node.guard(client)["guardian_pid"]
    client.ask("apply", set="s", files=[change(node.banner, BANNER, b"patched\n")])

    def deeds() -> None:
        node.start(client, SERVER)
        if name == "journal.tree":
            eventually(lambda: not alive(guardian), what="the guardian notes its tree and is cut")
        client.ask("stop", timeout_s=5, gpu_free_s=1, gpus="all")

    with pytest.raises(Refused) as refused:
        deeds()
    assert refused.value.code in ("lost", "bad_request")
    eventually(lambda: not alive(guardian), what="guardian gone")
    done = node.by_hand("restore")
    assert done.returncode == 0, done.stdout + done.stderr
    client.close()
    assert node.files() == before
    assert node.processes() == []
    assert recorded(node)[-1] == "close"


def recorded(node: Node) -> list[str]:
    return [record["kind"] for record in node.journal()]


def test_whatever_of_the_unsynced_a_cut_leaves_the_tree_comes_back(
    drill: Drill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drills above lose the process and keep the disk; here the disk loses what was not synced."""
    with power_model.recording(drill.node.folder, monkeypatch) as recorder:
        drill.run()
    drill.check_clean()
    pictures = list(recorder.pictures())
    assert len(pictures) > 100
    for what, picture in pictures:
        power_model.put(drill.node.folder, picture)
        assert in_child(drill.recover) == 0, f"not recovered after: {what}"
        assert drill.node.files() == drill.before, f"not as before after: {what}"


def test_whatever_of_the_unsynced_a_cut_leaves_no_overlay_stays(
    overlay_drill: Drill, monkeypatch: pytest.MonkeyPatch
) -> None:
    drill = overlay_drill
    with power_model.recording(drill.node.folder, monkeypatch) as recorder:
        drill.run()
    for what, picture in recorder.pictures():
        power_model.put(drill.node.folder, picture)
        assert in_child(drill.recover) == 0, f"not recovered after: {what}"
        assert drill.node.files() == drill.before, f"not as before after: {what}"
        assert not (drill.node.workdir / "run-1" / overlay.FOLDER).exists(), f"left after: {what}"


# -- the list of durable writes is the code's own


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    for found in ast.walk(ast.parse(path.read_text())):
        if isinstance(found, ast.Call) and isinstance(found.func, ast.Attribute):
            yield f"{ast.unparse(found.func.value)}.{found.func.attr}", found


def test_every_registered_name_is_used_and_every_used_name_is_registered() -> None:
    used = set()
    for path in AGENT.glob("*.py"):
        for name, call in calls(path):
            first = call.args[0] if call.args else None
            if name.startswith("durable.") and isinstance(first, ast.Constant):
                used.add(first.value)
            if name.endswith(".append") and isinstance(first, ast.Constant) and call.keywords:
                used.add(f"journal.{first.value}")
    assert used == durable.NAMES


def test_nothing_else_replaces_removes_or_syncs_files() -> None:
    guarded = {
        "os.replace",
        "os.rename",
        "os.unlink",
        "os.remove",
        "os.fsync",
        "os.mkdir",
        "os.makedirs",
        "os.link",
    }
    guarded |= {"shutil.rmtree", "shutil.move", "shutil.copy", "os.rmdir", "os.ftruncate", "os.truncate"}
    known = {
        # nothing here is needed to give the node back
        ("durable.py", "*"),
        ("journal.py", "os.ftruncate"),  # takes back half a record after a failed write
        ("guardian.py", "os.unlink"),  # its socket
        ("places.py", "os.unlink"),  # a socket of a dead guardian
        ("loadrun.py", "os.unlink"),  # old records of the same point
        ("smoke.py", "os.mkdir"),  # the overlay
        ("tree_copy.py", "os.mkdir"),  # an overlay that serves: the journal says that it is there
        ("smoke.py", "shutil.rmtree"),
        ("smoke.py", "os.rmdir"),
        ("tidy.py", "shutil.rmtree"),  # after the journal is closed
    }
    found = {
        (path.name, name)
        for path in AGENT.glob("*.py")
        for name, _ in calls(path)
        if name in guarded and (path.name, "*") not in known
    }
    assert found == {item for item in known if item[1] != "*"}


def test_an_edit_with_the_wrong_content_is_refused_before_anything_is_written(node: Node) -> None:
    client = node.client()
    node.guard(client)
    wrong = dict(change(node.banner, BANNER, b"x"), after_sha256=sha(b"y"), z=z(b"x"))
    with pytest.raises(Refused) as refused:
        client.ask("apply", set="s", files=[wrong])
    assert refused.value.code == "bad_request"
    assert recorded(node) == ["open"]
