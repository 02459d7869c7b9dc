"""What a dead guardian leaves: put back by the next guardian or by a person, and never by killing the wrong process."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.agent import procs
from orchestrator.agent import story as stories
from orchestrator.agent.wire import AgentError
from tests.agent.client import Refused, alive, change, end, eventually
from tests.agent.conftest import BANNER, Node

PATCHED = b"patched\n"
SLEEP = "import time; print('up', flush=True); time.sleep(300)"


@pytest.fixture
def dead(node: Node) -> int:
    """A run whose guardian was killed: its file is patched, its server lives. The server's pid."""
    client = node.client()
    node.guard(client)
    client.ask("apply", set="s", files=[change(node.banner, BANNER, PATCHED)])
    pid: int = node.start(client, SLEEP)["pid"]
    os.kill(node.guardian_pid(), signal.SIGKILL)
    client.event("guardian_lost")
    client.close()
    return pid


def rewrite(node: Node, edit: Callable[[list[dict[str, Any]]], Any]) -> None:
    """Edits the records of the dead journal."""
    records = node.journal()
    edit(records)
    path = node.home / "runs" / "run-1" / "journal.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_the_next_guardian_stops_and_restores_before_it_begins(node: Node, dead: int) -> None:
    client = node.client()
    assert [item["state"] for item in client.ask("status")["journals"]] == ["dead"]
    (recovered,) = node.guard(client, "run-2")["recovered"]
    done = {"run_id": "run-1", "restored": [str(node.banner)], "stopped": [dead]}
    assert recovered == {**done, "kept": [], "patched": []}
    assert not alive(dead)
    assert node.banner.read_bytes() == BANNER


def test_who_asks_during_a_recovery_is_told_of_it(node: Node, dead: int) -> None:
    end(dead)
    client = node.client()
    node.guard(client, "run-2")
    deaf = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(300)"
    )
    log = node.workdir / "run-2" / "logs" / "x.log"
    node.start(client, deaf, log=str(log))
    eventually(lambda: log.exists() and log.read_text())
    os.kill(node.guardian_pid("run-2"), signal.SIGKILL)
    client.event("guardian_lost")
    taking = client.submit("guard", run_id="run-3", holder="b", workdir=str(node.workdir), lease_s=60)
    second = node.client()
    lock = eventually(lambda: second.ask("status")["lock"], what=repr(taking))
    assert (lock["run_id"], lock["state"], lock["phase"]) == ("run-3", "unwinding", "recovering a dead run")
    assert [item["run_id"] for item in client.result(taking)["recovered"]] == ["run-2"]


def test_a_person_restores_from_any_folder_and_is_told_what_was_done(node: Node, dead: int) -> None:
    done = node.by_hand("restore")
    assert done.returncode == 0
    assert "run run-1: stopped 1 processes, restored 1 files" in done.stdout
    assert f"restored {node.banner}" in done.stdout
    assert not alive(dead)
    assert node.banner.read_bytes() == BANNER
    assert node.by_hand("restore").stdout == "nothing to do: no open journal, no guardian\n"


def test_a_person_may_only_stop_the_server(node: Node, dead: int) -> None:
    assert node.by_hand("stop").returncode == 0
    assert not alive(dead)
    assert node.banner.read_bytes() == PATCHED
    assert node.by_hand("restore").returncode == 0
    assert node.banner.read_bytes() == BANNER


def test_status_by_hand_names_the_open_journal(node: Node, dead: int) -> None:
    told = node.by_hand("status")
    assert told.returncode == 0
    assert "lock: free" in told.stdout
    assert "journal.jsonl (dead, 1 files)" in told.stdout
    end(dead)


def test_by_hand_a_live_run_is_left_alone_unless_forced(node: Node) -> None:
    client = node.client()
    node.guard(client)
    pid = node.start(client, SLEEP)["pid"]
    for command in ("stop", "restore"):
        refused = node.by_hand(command)
        assert refused.returncode == 1
        assert "held by run run-1" in refused.stdout
    assert alive(pid)
    assert node.by_hand("stop", "--force").returncode == 0
    assert not alive(pid)
    assert client.ask("status")["lock"]["run_id"] == "run-1"
    assert node.by_hand("restore", "--force").returncode == 0
    assert client.ask("status")["lock"] is None


def test_by_hand_an_orphan_is_given_back_without_force(node: Node) -> None:
    client = node.client()
    guardian = node.guard(client)["guardian_pid"]
    client.ask("apply", set="s", files=[change(node.banner, BANNER, PATCHED)])
    client.kill()
    eventually(lambda: "orphaned" in node.by_hand("status").stdout)
    assert node.by_hand("restore").returncode == 0
    assert node.banner.read_bytes() == BANNER
    eventually(lambda: not alive(guardian))


def test_by_hand_a_frozen_guardian_is_ended_only_by_force_and_then_recovered(node: Node) -> None:
    client = node.client()
    guardian = node.guard(client)["guardian_pid"]
    client.ask("apply", set="s", files=[change(node.banner, BANNER, PATCHED)])
    server = node.start(client, SLEEP)["pid"]
    os.kill(guardian, signal.SIGSTOP)
    assert node.by_hand("restore").returncode == 1
    assert node.banner.read_bytes() == PATCHED
    done = node.by_hand("restore", "--force")
    assert done.returncode == 0, done.stdout
    assert node.banner.read_bytes() == BANNER
    assert not alive(server)
    assert not alive(guardian)


def test_the_verb_for_restoring_does_what_a_person_does(node: Node, dead: int) -> None:
    done = node.client().ask("recover", what="restore")
    assert [(item["run_id"], item["stopped"]) for item in done["recovered"]] == [("run-1", [dead])]
    assert node.banner.read_bytes() == BANNER


def test_an_unknown_word_by_hand_is_refused(node: Node) -> None:
    refused = node.by_hand("restore", "--fource")
    assert refused.returncode == 1
    assert "--force" in refused.stdout


# -- identity: what may be signalled


def test_after_a_reboot_only_files_are_restored(node: Node, dead: int) -> None:
    """The recorded pid may be anybody's now; here it is a process that just happens to have that number."""
    done = node.by_hand("restore", **{procs.BOOT_ID_VARIABLE: "another-boot"})
    assert done.returncode == 0, done.stdout
    assert node.banner.read_bytes() == BANNER
    assert alive(dead)
    end(dead)


def test_a_pid_that_was_reused_is_never_signalled(node: Node, dead: int) -> None:
    bystander = os.posix_spawn("/bin/sleep", ["sleep", "300"], {})
    end(dead)

    def as_if_reused(records: list[dict[str, Any]]) -> None:
        for record in records:
            if record["kind"] == "server":
                record.update(pid=bystander, pgid=bystander, sid=bystander)

    rewrite(node, as_if_reused)
    assert node.by_hand("restore").returncode == 0
    assert alive(bystander)
    os.kill(bystander, 9)
    os.waitpid(bystander, 0)


@pytest.mark.parametrize("field", ["boot_id", "pid_namespace"])
def test_pids_of_another_boot_or_container_mean_nothing(node: Node, dead: int, field: str) -> None:
    rewrite(node, lambda records: records[0].update({field: "another"}))
    assert node.by_hand("restore").returncode == 0
    assert alive(dead)
    assert node.banner.read_bytes() == BANNER
    end(dead)


def test_a_journal_of_another_machine_in_a_shared_home_is_left_alone(node: Node, dead: int) -> None:
    rewrite(node, lambda records: records[0].update(boot_id="theirs", machine_id="theirs@other-node"))
    client = node.client()
    assert client.ask("status")["journals"] == []
    assert node.guard(client, "run-2")["recovered"] == []
    assert node.banner.read_bytes() == PATCHED
    assert alive(dead)
    end(dead)


def test_a_worker_with_an_unrecorded_pid_is_found_by_its_mark(node: Node, dead: int) -> None:
    rewrite(node, lambda records: [records.remove(r) for r in list(records) if r["kind"] == "server"])
    assert node.by_hand("restore").returncode == 0
    assert not alive(dead)


def test_another_users_mark_is_not_obeyed(node: Node, dead: int) -> None:
    if os.geteuid() != 0:
        pytest.skip("another user needs root")
    mark = node.journal()[0]["marker"].partition("=")[2]
    source = "import os, time; os.setuid(65534); time.sleep(300)"
    stranger = os.posix_spawn("/usr/bin/python3", ["python3", "-c", source], {"DYNSPEC_RUN": mark})
    eventually(lambda: Path(f"/proc/{stranger}").stat().st_uid == 65534)
    assert node.by_hand("restore").returncode == 0
    assert alive(stranger)
    os.kill(stranger, 9)
    os.waitpid(stranger, 0)


def test_processes_that_will_not_die_are_named_and_files_still_restored(node: Node, tmp_path: Path) -> None:
    """A process in uninterruptible sleep cannot be had in a test; one that is traced and stopped comes close enough
    only on some kernels. So the judgement alone is tested, on the function that makes it."""
    from orchestrator.agent import ending

    me = procs.identity_of(os.getpid())
    assert me is not None
    ended = ending.end(lambda: {me}, 0.2, lambda alive: None)
    assert (ended.stopped, ended.survivors) == ([], [os.getpid()]), (
        "a signal never reaches this process or its parents"
    )


# -- several runs, and the same run again


def test_a_closed_run_may_be_resumed_under_its_name(node: Node) -> None:
    first = node.client()
    node.guard(first)
    first.ask("apply", set="s", files=[change(node.banner, BANNER, PATCHED)])
    first.ask("unwind", stop_s=2, reason="done")
    node.guard(first)
    first.ask("apply", set="s", files=[change(node.banner, BANNER, PATCHED)])
    first.ask("unwind", stop_s=2, reason="done")
    assert node.banner.read_bytes() == BANNER
    assert node.journal()[0]["kind"] == "open"
    assert node.journal()[-1]["kind"] == "close"


def test_a_dirty_run_blocks_the_next_until_it_is_clean(node: Node, dead: int) -> None:
    node.banner.write_bytes(b"edited\n")
    client = node.client()
    with pytest.raises(Refused) as refused:
        node.guard(client, "run-2")
    assert refused.value.code == "dirty"
    assert refused.value.details["files"][0]["path"] == str(node.banner)
    assert client.ask("status")["lock"] is None
    assert not alive(dead), "what could be cleaned was"
    node.banner.write_bytes(PATCHED)
    assert node.guard(client, "run-2")["recovered"][0]["run_id"] == "run-1"


def test_one_unreadable_journal_does_not_keep_another_run_from_being_restored(node: Node, dead: int) -> None:
    odd = node.home / "runs" / "run-9" / "journal.jsonl"
    odd.parent.mkdir()
    odd.write_bytes(b"garbage\n")
    done = node.by_hand("restore")
    assert done.returncode == 70
    assert str(odd) in done.stdout
    assert "restored " + str(node.banner) in done.stdout
    assert node.banner.read_bytes() == BANNER
    assert not alive(dead)


def test_clean_refuses_while_the_journal_is_open(node: Node, dead: int) -> None:
    client = node.client()
    with pytest.raises(Refused) as refused:
        client.ask("clean", run_id="run-1", workdir=str(node.workdir))
    assert refused.value.code == "dirty"
    assert (node.workdir / "run-1" / "backup").exists()
    assert node.by_hand("restore").returncode == 0
    client.ask("clean", run_id="run-1", workdir=str(node.workdir))
    assert not (node.home / "runs" / "run-1").exists()
    assert not (node.workdir / "run-1").exists()


# -- journals that cannot be read

BROKEN = {
    "empty": b"",
    "zeros": b"\0" * 100,
    "not json": b"hello\n",
    "torn first line": b'{"kind":"open","run_id":"run-1"',
    "not an object": b"[1, 2]\n",
    "no kind": b'{"x": 1}\n',
    "unknown kind": b'{"kind":"later"}\n',
    "opening without pid": b'{"kind":"open","run_id":"r","boot_id":"b","workdir":"/w","marker":"m"}\n',
    "pid one": b'{"kind":"server","pid":1,"start_time":5}\n',
    "pid as text": b'{"kind":"server","pid":"7","start_time":5}\n',
    "true as pid": b'{"kind":"tree","pids":[[true, 5]]}\n',
    "deep": b"[" * 100_000 + b"\n",
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_unreadable_journal_is_dirty_by_name_and_never_a_traceback(node: Node, name: str) -> None:
    path = node.home / "runs" / "run-1" / "journal.jsonl"
    path.parent.mkdir(parents=True)
    for folder in (node.home, node.home / "runs", path.parent):
        folder.chmod(0o700)
    path.write_bytes(BROKEN[name])
    with pytest.raises(AgentError) as error:
        stories.read(str(path))
    assert error.value.code == "dirty"
    assert str(path) in error.value.message
    assert path.read_bytes() == BROKEN[name]


def test_an_unreadable_journal_blocks_guard_and_restore_with_its_name(node: Node) -> None:
    path = node.home / "runs" / "run-1" / "journal.jsonl"
    path.parent.mkdir(parents=True)
    for folder in (node.home, node.home / "runs", path.parent):
        folder.chmod(0o700)
    path.write_bytes(b"garbage\n")
    client = node.client()
    with pytest.raises(Refused) as refused:
        node.guard(client, "run-2")
    assert refused.value.code == "dirty"
    assert str(path) in refused.value.message
    by_hand = node.by_hand("restore")
    assert by_hand.returncode == 70
    assert str(path) in by_hand.stdout
    assert "Traceback" not in by_hand.stdout + by_hand.stderr
    assert [item["path"] for item in client.ask("status")["journals"]] == [str(path)]


@pytest.mark.parametrize("cut", [1, 7, 40])
def test_a_torn_last_line_is_ignored(node: Node, dead: int, cut: int) -> None:
    path = node.home / "runs" / "run-1" / "journal.jsonl"
    path.write_bytes(path.read_bytes() + b'{"kind":"stopped","exit_code":null,"signal":null}\n'[:-cut])
    assert node.by_hand("restore").returncode == 0
    assert not alive(dead), "the torn record said that it was stopped; it never counted"
    assert node.journal()[-1]["kind"] == "close"


LINES = st.one_of(
    st.binary(max_size=60),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
        max_leaves=8,
    ).map(lambda value: json.dumps(value).encode()),
    st.fixed_dictionaries(
        {"kind": st.sampled_from([*stories._FOLDS, "odd"])},
        optional={
            name: st.none()
            | st.integers(-5, 5)
            | st.text(max_size=4)
            | st.lists(st.integers(-2, 9), max_size=3)
            for name in (
                "pid",
                "start_time",
                "pids",
                "path",
                "sha256",
                "files",
                "set",
                "mode",
                "copy",
                "state",
                "made",
            )
        },
    ).map(lambda value: json.dumps(value).encode()),
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(LINES, max_size=5), opened=st.booleans(), tail=st.binary(max_size=10))
def test_any_journal_is_read_or_refused_as_dirty(
    tmp_path: Path, lines: list[bytes], opened: bool, tail: bytes
) -> None:
    opening = {
        "kind": "open", "run_id": "r", "boot_id": "b", "workdir": "/w", "marker": "DYNSPEC_RUN=r.1", "machine_id": "x",
        "pid_namespace": "p", "holder": "h", "guardian": {"pid": 99, "start_time": 1}, "stop_s": 1,
    }  # fmt: skip
    path = tmp_path / "journal.jsonl"
    first = [json.dumps(opening).encode()] if opened else []
    path.write_bytes(b"".join(line + b"\n" for line in first + lines) + tail)
    story, refused = None, None
    try:
        story = stories.read(str(path))
    except AgentError as error:
        refused = error.code
    assert refused in (None, "dirty")
    assert story is None or all(pid > 1 for pid, _ in story.processes)
