"""A journal is acted on by the next guardian: processes are ended and files replaced by its word. Whatever a crash, a
disk or somebody's editor made of it: what is not ours stays untouched, and what cannot be read is said to be dirty."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from orchestrator.agent import apply, journal, procs, recovery, story
from orchestrator.agent.journal import Journal
from orchestrator.agent.wire import AgentError, sha256_hex
from tests.fuzz.budget import fuzzed
from tests.fuzz.strategies import ODD_TEXTS, damaged, json_value, with_odd_values

RUN = "run-1"
BEFORE, AFTER, NEW, FOREIGN = b"before\n", b"after\n", b"new\n", b"not ours\n"
Json = dict[str, Any]


def sleeper(mark: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "3600"], start_new_session=True, env={"DYNSPEC_RUN": mark})


class World:
    """A run that was cut off with its patch set in place and its server running, beside what belongs to others."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = f"{RUN}.{os.urandom(8).hex()}"
        self.home, self.workdir, self.package = (folder / name for name in ("home", "work", "package"))
        self.patched, self.added = self.package / "banner.py", self.package / "sub" / "new.py"
        os.environ["DYNSPEC_HOME"] = str(self.home)
        self.package.mkdir(parents=True)
        (self.package / "other.py").write_bytes(FOREIGN)
        (folder / "empty").mkdir()
        (folder / "precious" / "backup").mkdir(parents=True)
        (folder / "precious" / "backup" / "data").write_bytes(FOREIGN)
        self.server = sleeper(self.mark)
        time.sleep(0.03)  # not in the same clock tick: pid and start time are what tells processes apart
        self.bystander = sleeper("another.run")
        self.patched.write_bytes(BEFORE)
        self.path = self._cut_off_run()
        self.original = self.path.read_bytes()
        self.backups = {path: path.read_bytes() for path in (self.workdir / RUN / "backup").iterdir()}

    def _cut_off_run(self) -> Path:
        opened = Journal.create(
            RUN,
            boot_id=procs.boot_id(),
            machine_id=procs.machine_id(),
            pid_namespace=procs.pid_namespace(),
            guardian={"pid": 4_000_000, "start_time": 1},
            holder="ann@laptop:7",
            workdir=str(self.workdir),
            stop_s=5,
            marker=f"DYNSPEC_RUN={self.mark}",
        )
        (self.workdir / RUN).mkdir(parents=True, mode=0o700)
        wanted = [
            apply.Wanted(str(self.patched), sha256_hex(BEFORE), sha256_hex(AFTER), AFTER),
            apply.Wanted(str(self.added), None, sha256_hex(NEW), NEW),
        ]
        apply.apply(opened, "banner", wanted, [])
        opened.append("starting", argv_sha256="0" * 64, log=str(self.workdir / "log"), bytecode_prefixes=[])
        identity = procs.identity_of(self.server.pid)
        assert identity is not None
        opened.append("server", pid=identity[0], start_time=identity[1], pgid=identity[0], sid=identity[0])
        opened.append("tree", pids=[list(identity)])
        opened.close_file()
        return Path(opened.path)

    def put(self, data: bytes) -> None:
        """Everything as the cut left it, with this journal."""
        self.package.joinpath("sub").mkdir(exist_ok=True)
        self.patched.write_bytes(AFTER)
        self.added.write_bytes(NEW)
        for path, original in self.backups.items():
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(original)
        self.path.write_bytes(data)

    @property
    def records(self) -> list[Json]:
        return [json.loads(line) for line in self.original.splitlines()]

    def close(self) -> None:
        del os.environ["DYNSPEC_HOME"]
        for process in (self.server, self.bystander):
            process.kill()
            process.wait()

    def foreign_files(self) -> dict[str, bytes | None]:
        """Everything that is there but the run's own folders and the two files that it changed."""
        own = {self.patched, self.added, self.added.parent}
        places = (
            path
            for part in ("package", "precious", "empty")
            for path in [self.folder / part, *(self.folder / part).rglob("*")]
        )
        return {
            str(path): path.read_bytes() if path.is_file() else None for path in places if path not in own
        }

    def file_states(self) -> tuple[str, str]:
        states = {None: "absent", BEFORE: "before", AFTER: "after", NEW: "new"}
        found = (path.read_bytes() if path.exists() else None for path in (self.patched, self.added))
        first, second = (states.get(data, "spoilt") for data in found)
        return first, second


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """In memory where there is such a place: thousands of recoveries sync, and no disk has to prove itself here."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(prefix="dynspec-", dir=memory if memory.is_dir() else None) as folder:
        made = World(Path(folder))
        yield made
        made.close()


def recover_files(world: World, data: bytes) -> str:
    """Puts the files back as a recovery does, without its signals; what it said."""
    world.put(data)
    before = world.foreign_files()
    targets = set()
    try:
        for entry in recovery.unfinished():
            if entry.problem is not None:
                raise entry.problem
            assert entry.story is not None
            targets = recovery.ours(entry.story) if entry.story.starting else set()
            opened = Journal.reopen(entry.path)
            try:
                problems = recovery.restore.restore(opened).problems
                if not problems:
                    recovery.backup.drop(opened)
            finally:
                opened.close_file()
            if problems:
                raise recovery.restore.dirty_error(problems)
        said = "clean"
    except AgentError as error:
        assert error.code in ("dirty", "failed", "no_space"), error
        said = error.code
    assert {pid for pid, _ in targets} <= {world.server.pid}, "somebody else's process would be ended"
    assert world.foreign_files() == before, "a file that is not ours was touched"
    assert "spoilt" not in world.file_states()
    return said


def test_cut_at_every_byte_a_journal_restores_or_says_that_it_cannot(world: World) -> None:
    for length in range(len(world.original) + 1):
        said = recover_files(world, world.original[:length])
        whole = {
            record["kind"]
            for record in map(
                json.loads, world.original[:length].splitlines()[: world.original[:length].count(b"\n")]
            )
        }
        states = world.file_states()
        if "intend" in whole:
            assert (said, states) == ("clean", ("before", "absent")), length
        else:
            assert states == ("after", "new"), length
            assert said == ("clean" if "backup" not in whole and "open" in whole else "dirty"), length


HOSTILE = [
    {"kind": "open", "run_id": "../../precious"},
    {"kind": "open", "marker": "HOME=/root"},
    {"kind": "open", "marker": "PATH=/usr/bin"},
    {"kind": "backup", "path": "relative", "sha256": None, "mode": 0, "uid": 0, "gid": 0, "copy": None},
    {"kind": "tree", "pids": [[1, 1], [0, 0], [-1, 0], [2**40, 1], [True, True], ["7", 1]]},
    {"kind": "server", "pid": 1, "start_time": 0, "pgid": 1, "sid": 1},
    {"kind": "close", "state": "clean"},
    {"kind": "no such kind"},
    {},
]
LINES = [json.dumps(record).encode() + b"\n" for record in HOSTILE]
RUBBISH = [text.encode("utf-8", "surrogatepass") for text in ODD_TEXTS]


def lines_of(records: list[Any]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


@fuzzed(0.2)
@given(data=st.binary(max_size=200) | st.sampled_from([b"", b"\n", b"\0" * 4096, *LINES[:6], *RUBBISH]))
def test_garbage_is_dirty_and_touches_nothing(world: World, data: bytes) -> None:
    assume(b"close" not in data)  # a journal whose last line closes it is over, whatever stands before
    assert recover_files(world, data) == "dirty"
    assert world.file_states() == ("after", "new")


@fuzzed(0.4)
@given(drawn=st.data())
def test_a_damaged_journal_touches_only_what_the_run_changed(world: World, drawn: st.DataObject) -> None:
    recover_files(
        world, drawn.draw(damaged([world.original], [*RUBBISH, *LINES, *world.original.splitlines(True)]))
    )


@fuzzed(0.3)
@given(drawn=st.data())
def test_records_with_odd_values_touch_only_what_the_run_changed(world: World, drawn: st.DataObject) -> None:
    bystander = procs.identity_of(world.bystander.pid)
    assert bystander is not None
    precious = [str(path) for path in (world.folder / "precious").rglob("*")] + [str(world.folder / "empty")]
    # A pid with its exact start time is an identity: no damage makes one, and nobody else can write the file.
    nearly = [bystander[0], bystander[1] + 1]
    hostile = [*precious, str(world.package / "other.py"), nearly, bystander[0], "/", "/tmp", "0" * 64]

    def odd(random: Random) -> Any:
        return random.choice(hostile) if random.random() < 0.5 else json_value(random)

    records = drawn.draw(with_odd_values([world.records], odd))
    recover_files(world, lines_of(records) if isinstance(records, list) else lines_of([records]))


@fuzzed(0.1)
@given(drawn=st.data())
def test_records_in_another_order_touch_only_what_the_run_changed(world: World, drawn: st.DataObject) -> None:
    recover_files(world, lines_of(drawn.draw(st.permutations([*world.records, *HOSTILE[:3]]))))


@pytest.mark.parametrize("record", HOSTILE, ids=str)
def test_a_hostile_record_makes_a_journal_dirty(world: World, record: Json) -> None:
    opened = {**world.records[0], **record} if record.get("kind") == "open" else world.records[0]
    data = lines_of(
        [opened, *world.records[1:]] if record.get("kind") == "open" else [opened, record, *world.records[1:]]
    )
    world.put(data)
    with pytest.raises(AgentError) as caught:
        story.read(str(world.path))
    assert caught.value.code == "dirty"
    assert "nothing was touched" in caught.value.message


def test_a_copy_of_a_run_folder_is_not_taken_for_a_run(world: World) -> None:
    world.put(world.original)
    copy = world.home / "runs" / "run-2"
    copy.mkdir()
    copy.joinpath(journal.FILE_NAME).write_bytes(world.original)
    try:
        problems = {entry.run_id: entry.problem for entry in recovery.unfinished()}
    finally:
        copy.joinpath(journal.FILE_NAME).unlink()
        copy.rmdir()
    assert problems["run-1"] is None
    assert problems["run-2"] is not None
    assert "it is the journal of run run-1" in problems["run-2"].message
