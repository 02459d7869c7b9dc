"""Lock, lease and controllers: one holder a node, live never stolen, abandoned given back by itself."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.agent import guardlink
from orchestrator.agent.wire import AgentError
from tests.agent.client import Client, Refused, alive, change, eventually
from tests.agent.conftest import BANNER, Node

PATCHED = b"patched\n"
SLEEP = "import time; time.sleep(300)"


@pytest.fixture
def client(node: Node) -> Client:
    return node.client()


def busy(node: Node, client: Client, **args: object) -> Refused:
    with pytest.raises(Refused) as refused:
        node.guard(client, "run-2", **args)
    assert refused.value.code == "busy"
    return refused.value


def changed_and_serving(node: Node, client: Client, **args: object) -> int:
    """A run with a patched file and a server; the guardian's pid."""
    guardian: int = node.guard(client, **args)["guardian_pid"]
    client.ask("apply", set="s", files=[change(node.banner, BANNER, PATCHED)])
    node.start(client, SLEEP)
    return guardian


def given_back(node: Node, guardian: int, timeout_s: float = 10.0) -> None:
    """The guardian cleaned up by itself: its journal is closed, file and processes are as before."""
    eventually(lambda: not alive(guardian), timeout_s, "guardian gone")
    assert node.banner.read_bytes() == BANNER
    assert node.journal()[-1] == {"kind": "close", "state": "clean"}
    assert [pid for pid in node.processes() if "serve" not in command(pid)] == []


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


# -- the lock


def test_a_live_holder_is_never_stolen_and_is_named(node: Node, client: Client) -> None:
    guardian = changed_and_serving(node, client)
    before = time.monotonic()
    refused = busy(node, node.client())
    assert time.monotonic() - before < 10
    assert refused.details["run_id"] == "run-1"
    assert refused.details["controller"] == "ann@laptop:7"
    assert refused.details["guardian_pid"] == guardian
    assert refused.details["state"] == "live"
    assert node.banner.read_bytes() == PATCHED
    assert client.ask("server")["alive"]


def test_who_waits_for_the_lock_gets_it_when_it_is_free(node: Node, client: Client) -> None:
    node.guard(client)
    second = node.client()
    waiting = second.submit(
        "guard", run_id="run-2", holder="b", workdir=str(node.workdir), lease_s=60, lock_wait_s=20
    )
    time.sleep(0.3)
    assert not waiting.done()
    client.ask("unwind", stop_s=2, reason="done")
    assert second.result(waiting)["recovered"] == []
    assert second.ask("status")["lock"]["run_id"] == "run-2"


def test_waiting_for_the_lock_has_an_end(node: Node, client: Client) -> None:
    node.guard(client)
    before = time.monotonic()
    busy(node, node.client(), lock_wait_s=0.5)
    assert 0.5 <= time.monotonic() - before < 10


def test_force_takes_the_node_from_a_live_holder_and_gives_it_back_first(node: Node, client: Client) -> None:
    changed_and_serving(node, client)
    recovered = node.guard(node.client(), "run-2", force=True)["recovered"]
    assert [(item["run_id"], item["restored"]) for item in recovered] == [("run-1", [str(node.banner)])]
    client.event("guardian_lost")
    assert node.banner.read_bytes() == BANNER
    with pytest.raises(Refused) as refused:  # what the run that was ended asks next
        client.ask("unwind", stop_s=2, reason="failed")
    assert (refused.value.code, refused.value.message) == (
        "lost",
        "this channel has lost the guardian of run run-1",
    )


def test_two_that_start_at_once_get_one_lock(node: Node) -> None:
    clients = [node.client() for _ in range(4)]
    asked = [
        each.submit("guard", run_id=f"run-{number}", holder="x", workdir=str(node.workdir), lease_s=60)
        for number, each in enumerate(clients)
    ]
    replies = [future.result(20) for future in asked]
    assert sorted("ok" in reply for reply in replies) == [False, False, False, True]
    assert {reply["error"]["code"] for reply in replies if "error" in reply} == {"busy"}


def test_a_stranger_on_the_lock_is_told_by_pid(node: Node, client: Client) -> None:
    with socket.socket(socket.AF_UNIX) as squatter:
        squatter.bind("\0" + node.lock_name)
        squatter.listen()
        refused = busy(node, client)
        assert refused.details["guardian_pid"] == os.getpid()
        assert refused.details["phase"] == "does not answer"


def test_anyone_who_connects_to_the_lock_is_told_who_holds_it(node: Node, client: Client) -> None:
    node.guard(client)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect("\0" + node.lock_name)
        fact = json.loads(sock.makefile().readline())
    assert fact["run_id"] == "run-1"
    assert fact["lease_left_s"] > 50


@pytest.fixture
def stranger(node: Node) -> Iterator[Client]:
    """Another user on the same node."""
    if os.geteuid() != 0:
        pytest.skip("another user needs root")
    home = Path("/tmp") / f"dynspec-stranger-{os.getpid()}"
    home.mkdir(mode=0o755)
    agent = home / node.agent.name
    agent.write_bytes(node.agent.read_bytes())
    os.chown(home, 65534, 65534)
    environ = {**node.environ, "HOME": str(home), "DYNSPEC_HOME": str(home / ".dynspec")}

    def become() -> None:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)

    client = Client(agent, environ, become, python="/usr/bin/python3")
    yield client
    client.close()
    subprocess.run(["rm", "-rf", str(home)], check=True)


def test_another_user_cannot_take_attach_or_force_but_sees_who_holds(
    node: Node, client: Client, stranger: Client
) -> None:
    node.guard(client)
    asked = {"run_id": "run-2", "holder": "b", "workdir": "~/work", "lease_s": 60, "force": True}
    for verb, args in (
        ("guard", asked),
        ("attach", {"run_id": "run-1", "force": True}),
        ("recover", {"force": True}),
    ):
        with pytest.raises(Refused) as refused:
            stranger.ask(verb, **args)
        assert refused.value.code == "busy"
        assert refused.value.details["run_id"] == "run-1"
    client.hang_up()
    assert stranger.ask("status")["lock"]["state"] == "orphaned"
    with pytest.raises(Refused):
        stranger.ask("guard", **asked)


def test_the_runs_socket_obeys_only_its_user(node: Node, client: Client) -> None:
    if os.geteuid() != 0:
        pytest.skip("another user needs root")
    node.guard(client)
    path = node.home / "runs" / "run-1" / "guardian.sock"
    for folder in path.parents:
        if folder.stat().st_mode & 0o001 == 0:
            folder.chmod(0o711)
    path.chmod(0o666)  # even so
    source = f"""
import os, socket
os.setgid(65534); os.setuid(65534)
sock = socket.socket(socket.AF_UNIX); sock.connect({str(path)!r})
sock.sendall(b'{{"id": 1, "verb": "unwind", "args": {{"force": true}}}}\\n')
print(sock.recv(100))
"""
    done = subprocess.run(["/usr/bin/python3", "-c", source], capture_output=True, text=True, check=False)
    assert (
        done.stdout.strip() == "b''" or "ConnectionResetError" in done.stderr or "BrokenPipe" in done.stderr
    )
    assert client.ask("status")["lock"]["state"] == "live"


@pytest.mark.parametrize("verb", ["restore", "stop", "unwind"])
def test_a_deed_past_the_channel_that_is_attached_is_busy(
    node: Node, client: Client, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Of the same user, straight at the run's socket."""
    node.guard(client)
    monkeypatch.setenv("DYNSPEC_HOME", str(node.home))
    with pytest.raises(AgentError) as refused:
        guardlink.ask_once("run-1", verb, {}, 10)
    assert refused.value.code == "busy"
    assert client.ask("status")["lock"]["state"] == "live"


# -- the lease


def test_a_silent_controller_loses_the_node_when_the_lease_ends(node: Node, client: Client) -> None:
    guardian = changed_and_serving(node, client, lease_s=1.5)
    given_back(node, guardian)
    client.event("guardian_lost")


def test_beats_keep_the_lease(node: Node, client: Client) -> None:
    node.guard(client, lease_s=2)
    for _ in range(6):
        time.sleep(0.4)
        assert client.ask("beat")["lease_left_s"] > 1.7
    assert client.ask("status")["lock"]["state"] == "live"


def test_a_frozen_channel_ends_with_the_lease(node: Node, client: Client) -> None:
    guardian = changed_and_serving(node, client, lease_s=1.5)
    os.kill(client.process.pid, signal.SIGSTOP)
    given_back(node, guardian)
    os.kill(client.process.pid, signal.SIGCONT)


def test_the_lease_survives_a_killed_channel_and_then_ends(node: Node, client: Client) -> None:
    guardian = changed_and_serving(node, client, lease_s=2)
    client.kill()
    assert alive(guardian)
    given_back(node, guardian)


# -- orphans and handovers


def test_a_new_controller_attaches_to_an_orphan_at_once(node: Node, client: Client) -> None:
    changed_and_serving(node, client)
    client.hang_up()
    second = node.client()
    state = second.ask("attach", run_id="run-1", holder="bob@desk:8")
    assert state["set"] == "s"
    assert state["files_changed"] == [str(node.banner)]
    assert state["server"]["alive"]
    assert second.ask("status")["lock"]["controller"] == "bob@desk:8"
    assert second.ask("unwind", stop_s=3, reason="done")["verified"]


def test_a_new_run_has_an_orphan_give_the_node_back_first(node: Node, client: Client) -> None:
    changed_and_serving(node, client)
    client.kill()
    eventually(lambda: node.client().ask("status")["lock"]["state"] == "orphaned")
    recovered = node.guard(node.client(), "run-2")["recovered"]
    assert [(item["run_id"], item["restored"]) for item in recovered] == [("run-1", [str(node.banner)])]


def test_attach_to_a_live_run_is_busy_unless_forced(node: Node, client: Client) -> None:
    node.guard(client)
    second = node.client()
    with pytest.raises(Refused) as refused:
        second.ask("attach", run_id="run-1")
    assert refused.value.code == "busy"
    second.ask("attach", run_id="run-1", force=True, holder="bob@desk:8")
    assert client.event("note")["text"] == "taken over by bob@desk:8"
    client.event("guardian_lost")
    with pytest.raises(Refused) as refused:
        client.ask("apply", set="s", files=[])
    assert refused.value.code == "lost"


def test_attach_where_nobody_holds_the_node_says_so(client: Client) -> None:
    with pytest.raises(Refused) as refused:
        client.ask("attach", run_id=None)
    assert refused.value.code == "not_found"


def test_goodbye_with_detach_leaves_server_and_lease_running(node: Node, client: Client) -> None:
    changed_and_serving(node, client)
    client.ask("goodbye", detach=True)
    client.hang_up()
    second = node.client()
    lock = second.ask("status")["lock"]
    assert lock["state"] == "detached"
    assert lock["lease_left_s"] > 50
    busy(node, second)
    assert second.ask("attach", run_id="run-1")["server"]["alive"]


def test_a_detached_run_still_ends_with_its_lease(node: Node, client: Client) -> None:
    guardian = changed_and_serving(node, client, lease_s=2)
    client.ask("goodbye", detach=True)
    client.hang_up()
    given_back(node, guardian)


def test_goodbye_without_detach_gives_the_node_back(node: Node, client: Client) -> None:
    guardian = changed_and_serving(node, client)
    client.ask("goodbye", detach=False)
    client.hang_up()
    given_back(node, guardian)


# -- signals, and what the guardian is made of


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_makes_the_guardian_give_the_node_back(node: Node, client: Client, signum: int) -> None:
    guardian = changed_and_serving(node, client)
    os.kill(guardian, signum)
    given_back(node, guardian)


def test_it_is_detached_from_channel_session_and_ci_runner(node: Node) -> None:
    client = node.client(RUNNER_TRACKING_ID="github_1")
    guardian = node.guard(client)["guardian_pid"]
    assert os.getsid(guardian) != os.getsid(client.process.pid)
    assert "RUNNER_TRACKING_ID" not in started_with(guardian)
    log = node.home / "runs" / "run-1" / "guardian.log"
    channel = {os.readlink(f"/proc/{client.process.pid}/fd/{number}") for number in "01"}

    def let_go() -> bool:  # a moment after it has answered through what it lets go
        try:
            links = {entry.name: os.readlink(entry.path) for entry in os.scandir(f"/proc/{guardian}/fd")}
        except FileNotFoundError:
            return False
        standard = [links.get(number) for number in "012"]
        return standard == ["/dev/null", str(log), str(log)] and not channel & set(links.values())

    eventually(let_go)  # the SSH channel must not stay open for the guardian's sake


def started_with(pid: int) -> str:
    return Path(f"/proc/{pid}/environ").read_bytes().decode()


def test_everything_it_keeps_is_private(node: Node, client: Client) -> None:
    changed_and_serving(node, client)
    for folder in (node.home, node.workdir / "run-1"):
        assert folder.stat().st_mode & 0o777 == 0o700
        for path in folder.rglob("*"):
            assert path.stat().st_mode & 0o077 == 0, path


def test_a_work_folder_that_others_can_write_in_is_refused(node: Node, client: Client) -> None:
    (node.workdir / "run-1").mkdir(parents=True)
    (node.workdir / "run-1").chmod(0o777)
    with pytest.raises(Refused) as refused:
        node.guard(client)
    assert refused.value.code == "not_writable"
    assert client.ask("status")["lock"] is None


def test_a_link_in_the_place_of_the_run_folder_is_refused(node: Node, client: Client) -> None:
    node.workdir.mkdir()
    (node.workdir / "run-1").symlink_to(node.folder)
    with pytest.raises(Refused) as refused:
        node.guard(client)
    assert refused.value.code == "not_writable"


def test_one_deed_at_a_time_while_looking_is_always_possible(node: Node, client: Client) -> None:
    may_end = node.folder / "may-end"
    node.fake_tool(f"until [ -e {may_end} ]; do sleep 0.05; done")
    node.guard(client)
    freeing = client.submit("free", policy="own", rules=[], gpus=None, timeout_s=5)
    eventually(lambda: client.ask("beat")["lock"]["phase"] == "free")
    with pytest.raises(Refused) as refused:
        client.ask("restore")
    assert refused.value.code == "busy"
    assert "free" in refused.value.message
    may_end.touch()
    freeing.result(30)
    assert client.ask("restore")["verified"]


def test_an_unwind_does_not_wait_for_a_deed_that_waits(node: Node, client: Client) -> None:
    node.fake_nvidia_smi(
        "<nvidia_smi_log><gpu><uuid>GPU-1</uuid><fb_memory_usage><total>10 MiB</total><used>9 MiB</used>"
        f"</fb_memory_usage><processes><process_info><pid>{os.getpid()}</pid><type>C</type>"
        "<used_memory>9 MiB</used_memory></process_info></processes></gpu></nvidia_smi_log>"
    )
    node.guard(client)
    client.submit("free", policy="wait", rules=[], gpus=None, timeout_s=60)
    time.sleep(0.3)
    before = time.monotonic()
    assert client.ask("unwind", stop_s=2, reason="stop it")["verified"]
    assert time.monotonic() - before < 20


def test_a_second_unwind_joins_the_first(node: Node, client: Client) -> None:
    changed_and_serving(node, client)
    both = [client.submit("unwind", stop_s=3, reason="a"), client.submit("unwind", stop_s=3, reason="b")]
    assert [client.result(future)["verified"] for future in both] == [True, True]


def test_who_comes_while_the_node_is_given_back_waits_for_that(node: Node, client: Client) -> None:
    node.guard(client)
    node.start(
        client, "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf'); time.sleep(300)"
    )
    eventually(lambda: client.ask("server")["log_tail"])
    unwinding = client.submit("unwind", stop_s=3, reason="done")
    second = node.client()
    eventually(lambda: second.ask("status")["lock"]["state"] == "unwinding")
    assert [item["run_id"] for item in node.guard(second, "run-2")["recovered"]] == ["run-1"]
    assert client.result(unwinding)["verified"]


def test_the_servers_umask_is_the_users(node: Node, client: Client) -> None:
    node.guard(client)
    before = os.umask(0)
    os.umask(before)
    node.start(client, "import os; print(os.umask(0))")
    assert client.event("server_exit")["log_tail"] == [str(before)]


def test_the_node_is_free_the_moment_unwind_answers(node: Node, client: Client) -> None:
    for number in range(3):
        node.guard(client, f"run-{number}")
        client.ask("unwind", stop_s=2, reason="done")
        assert client.ask("status")["lock"] is None


def test_a_thousand_children_that_end_at_once_do_not_disturb_it(node: Node, client: Client) -> None:
    guardian = node.guard(client)["guardian_pid"]
    node.start(
        client,
        """
        import os, time
        for _ in range(300):
            if os.fork() == 0:
                if os.fork() == 0:
                    time.sleep(1)
                os._exit(0)
        print("bred", flush=True)
        time.sleep(300)
        """,
    )
    eventually(lambda: "bred" in client.ask("server")["log_tail"], 20)
    time.sleep(1.2)
    assert client.ask("beat")["server"]["alive"]
    assert client.ask("unwind", stop_s=5, reason="done")["verified"]
    eventually(lambda: not alive(guardian))


def test_the_log_of_deeds_holds_no_secret(node: Node, client: Client) -> None:
    node.guard(client)
    node.start(
        client, SLEEP, argv=[sys.executable, "-c", SLEEP, "--api-key", "s3cret"], env={"TOKEN": "t0ken"}
    )
    client.ask("unwind", stop_s=3, reason="done")
    run = node.home / "runs" / "run-1"
    text = (run / "guardian.log").read_text() + (run / "journal.jsonl").read_text()
    assert "started server pid" in text
    assert "s3cret" not in text
    assert "t0ken" not in text


def test_hours_of_beats_and_questions_leave_memory_handles_and_threads_flat(
    node: Node, client: Client
) -> None:
    guardian = node.guard(client)["guardian_pid"]
    node.start(client, SLEEP)

    def usage(pid: int) -> tuple[int, int, int]:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return int(status["VmRSS"].split()[0]), len(os.listdir(f"/proc/{pid}/fd")), int(status["Threads"])

    def ask_around(times: int) -> None:
        for _ in range(times):
            pending = [client.submit(verb) for verb in ("beat", "server", "verify", "status")]
            for future in pending:
                client.result(future)

    ask_around(30)
    before = [usage(pid) for pid in (guardian, client.process.pid)]
    ask_around(150)
    for (memory, handles, threads), pid in zip(before, (guardian, client.process.pid), strict=True):
        now = usage(pid)
        assert now[0] < memory + 2048, "KiB"
        assert now[1] <= handles + 2
        assert now[2] <= threads + 2
    assert (node.home / "runs" / "run-1" / "journal.jsonl").stat().st_size < 4096
    assert (node.home / "runs" / "run-1" / "guardian.log").stat().st_size < 4096
