"""The server as a child of the guardian: how it starts, how its end is noticed, and that stopping proves it gone."""

from __future__ import annotations

import os
import signal
import socket
import stat
import sys
import time
from pathlib import Path

import pytest

from tests.agent.client import Client, Refused, alive, change, eventually
from tests.agent.conftest import BANNER, Node
from tests.e2e.node import process_state

SLEEP = "import time; print('up', flush=True); time.sleep(300)"


@pytest.fixture
def client(node: Node) -> Client:
    client = node.client()
    node.guard(client)
    return client


def stop(client: Client, timeout_s: float = 5.0) -> dict[str, object]:
    return client.ask("stop", timeout_s=timeout_s, gpu_free_s=1, gpus=None)


def said(node: Node, word: str) -> list[str]:
    """The words after `word` in the log, once there is such a line."""

    def find() -> list[str] | None:
        lines = node.log.read_text().splitlines() if node.log.exists() else []
        return next((line.split() for line in lines if line.startswith(word)), None)

    found: list[str] = eventually(find, what=f"a line {word!r} in the log")
    return found[1:]


# -- how it starts


def test_it_runs_in_a_session_of_its_own_with_no_channel_attached(node: Node, client: Client) -> None:
    pid = node.start(client, SLEEP)["pid"]
    said(node, "up")
    assert os.getsid(pid) == os.getpgid(pid) == pid
    links = {os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")}
    assert links == {"/dev/null", str(node.log)}, "neither lock, journal nor channel is inherited"
    assert stat.S_IMODE(node.log.stat().st_mode) == 0o600


def test_the_lock_is_free_when_the_guardian_is_killed_although_its_server_lives(
    node: Node, client: Client
) -> None:
    pid = node.start(client, SLEEP)["pid"]
    os.kill(node.guardian_pid(), signal.SIGKILL)
    client.event("guardian_lost")
    assert alive(pid)
    assert client.ask("status")["lock"] is None
    second = node.client()
    recovered = node.guard(second, "run-2")["recovered"]
    assert [(item["run_id"], item["stopped"]) for item in recovered] == [("run-1", [pid])]
    assert not alive(pid)


def test_start_returns_at_once_and_the_server_outlives_the_channel(node: Node, client: Client) -> None:
    before = time.monotonic()
    pid = node.start(client, SLEEP)["pid"]
    assert time.monotonic() - before < 10
    client.hang_up()
    assert alive(pid)
    second = node.client()
    assert second.ask("attach", run_id="run-1")["server"]["pid"] == pid


def test_environment_is_laid_over_and_never_written_down(node: Node, client: Client) -> None:
    node.start(
        client,
        "import os; print('got', os.environ['TOKEN'], os.environ.get('HOME'), sorted(k for k in os.environ"
        " if k.startswith('DYNSPEC_') or k == 'RUNNER_TRACKING_ID'), flush=True)",
        env={"TOKEN": "s3cret\nsecond-line", "HOME": None},
    )
    assert said(node, "got")[0] == "s3cret"
    eventually(lambda: "second-line None ['DYNSPEC_RUN']" in node.log.read_text())
    run = node.home / "runs" / "run-1"
    for path in (run / "journal.jsonl", run / "guardian.log"):
        assert "s3cret" not in path.read_text()
        assert "second-line" not in path.read_text()


def test_arguments_reach_the_server_byte_by_byte(node: Node, client: Client) -> None:
    hostile = ["a b", "'\"", "$(touch x)", "*", "--x=\n", "é\udcff", ""]
    node.start(client, "", argv=[sys.executable, "-c", "import sys; print(ascii(sys.argv[1:]))", *hostile])
    eventually(lambda: node.log.read_text() == ascii(hostile) + "\n")


def test_a_missing_program_is_named_and_nothing_is_left_running(node: Node, client: Client) -> None:
    with pytest.raises(Refused) as refused:
        node.start(client, "", argv=["/nowhere/python3", "-m", "x"])
    assert refused.value.code == "not_found"
    assert "/nowhere/python3" in refused.value.message
    assert stop(client)["exit_code"] is None
    node.start(client, SLEEP)


def test_a_program_without_execute_permission_is_named(node: Node, client: Client) -> None:
    plain = node.folder / "plain.txt"
    plain.write_text("no program")
    with pytest.raises(Refused) as refused:
        node.start(client, "", argv=[str(plain)])
    assert refused.value.code == "failed"
    assert "Permission denied" in refused.value.message


def test_a_missing_folder_is_named(node: Node, client: Client) -> None:
    with pytest.raises(Refused) as refused:
        node.start(client, SLEEP, cwd="/nowhere")
    assert refused.value.code == "not_found"
    assert "/nowhere" in refused.value.message


def test_a_port_in_use_is_refused_before_the_start_naming_its_holder(node: Node, client: Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(Refused) as refused:
            node.start(client, SLEEP, port=port)
    assert refused.value.code == "busy"
    assert f"port {port} is in use by pid {os.getpid()}" in refused.value.message


def test_files_are_not_changed_under_a_running_server(node: Node, client: Client) -> None:
    node.start(client, SLEEP)
    for verb, args in (
        ("apply", {"set": "s", "files": [change(node.banner, BANNER, b"x")]}),
        ("restore", {}),
    ):
        with pytest.raises(Refused) as refused:
            client.ask(verb, **args)
        assert refused.value.code == "busy"
    assert node.banner.read_bytes() == BANNER


def test_a_second_server_is_refused(node: Node, client: Client) -> None:
    node.start(client, SLEEP)
    with pytest.raises(Refused) as refused:
        node.start(client, SLEEP)
    assert refused.value.code == "busy"


# -- how its end is noticed


@pytest.mark.parametrize("code", [0, 3])
def test_an_exit_is_told_within_two_seconds_with_code_and_last_lines(
    node: Node, client: Client, code: int
) -> None:
    node.start(
        client,
        f"""
        import sys, time
        for number in range(30):
            print("line", number)
        print(time.monotonic())
        sys.exit({code})
        """,
    )
    event = client.event("server_exit")
    told = time.monotonic()
    assert (event["exit_code"], event["signal"]) == (code, None)
    *lines, ended = event["log_tail"]
    assert lines == [f"line {number}" for number in range(11, 30)]
    assert told - float(ended) < 2
    state = client.ask("server")
    assert (state["alive"], state["exit_code"]) == (False, code)
    assert stop(client)["exit_code"] == code


def test_a_server_killed_hard_keeps_its_unflushed_lines_in_the_log(node: Node, client: Client) -> None:
    pid = node.start(
        client,
        """
        import os, signal
        print("one"); print("two"); print("three")
        os.kill(os.getpid(), signal.SIGKILL)
        """,
    )["pid"]
    event = client.event("server_exit")
    assert (event["pid"], event["exit_code"], event["signal"]) == (pid, None, 9)
    assert event["log_tail"] == ["one", "two", "three"]


def test_bytes_that_are_no_text_reach_the_log_as_they_are(node: Node, client: Client) -> None:
    node.start(client, r"import os; os.write(1, b'\xff\xfe caf\xc3')")
    event = client.event("server_exit")
    assert node.log.read_bytes() == b"\xff\xfe caf\xc3"
    assert event["log_tail"] == ["\ufffd\ufffd caf\ufffd"]


def test_http_to_a_server_that_ends_meanwhile_fails_at_once(node: Node, client: Client) -> None:
    node.start(
        client,
        """
        import socket, sys, time
        listener = socket.create_server(("127.0.0.1", 0))
        print("port", listener.getsockname()[1], flush=True)
        connection, _ = listener.accept()
        time.sleep(0.5)
        import os; os._exit(4)
        """,
    )
    port = int(said(node, "port")[0])
    before = time.monotonic()
    with pytest.raises(Refused) as refused:
        client.ask("http", method="POST", port=port, path="/generate", body="{}", timeout_s=60)
    assert refused.value.code == "exited"
    assert time.monotonic() - before < 20


# -- that stopping proves it gone

DOUBLE_FORK = """
    import os, signal, socket, time
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            listener = socket.create_server(("127.0.0.1", 0))
            print("worker", os.getpid(), listener.getsockname()[1], flush=True)
            time.sleep(300)
        os._exit(0)
    time.sleep(300)
"""


def test_a_worker_that_left_the_tree_and_ignores_term_is_gone_after_stop(node: Node, client: Client) -> None:
    node.start(client, DOUBLE_FORK)
    worker, port = map(int, said(node, "worker"))
    assert os.getsid(worker) == os.getpgid(worker) != node.guardian_pid()
    stopped = stop(client)
    assert stopped["signal"] == signal.SIGTERM
    assert worker in stopped["stopped"]
    assert not alive(worker)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=1)
    node.start(client, SLEEP)


def test_workers_of_a_launcher_that_already_ended_are_stopped_too(node: Node, client: Client) -> None:
    node.start(client, DOUBLE_FORK.replace("\n    time.sleep(300)\n", "\n    time.sleep(0.5)\n"))
    worker = int(said(node, "worker")[0])
    assert client.event("server_exit")["exit_code"] == 0
    assert alive(worker)
    assert worker in stop(client)["stopped"]
    assert not alive(worker)


def test_a_server_that_ignores_term_is_killed_within_the_limit(node: Node, client: Client) -> None:
    node.start(
        client,
        """
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("deaf", flush=True)
        time.sleep(300)
        """,
    )
    said(node, "deaf")
    before = time.monotonic()
    assert stop(client, timeout_s=1)["signal"] == signal.SIGKILL
    assert time.monotonic() - before < 10


def test_a_stopped_process_is_killed_all_the_same(node: Node, client: Client) -> None:
    pid = node.start(client, SLEEP)["pid"]
    said(node, "up")
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: process_state(pid) == "T")  # of two signals that wait, the kernel takes SIGTERM first
    assert stop(client, timeout_s=2)["signal"] == signal.SIGKILL
    assert not alive(pid)


def test_a_server_that_ends_in_its_own_time_on_term_is_not_killed(node: Node, client: Client) -> None:
    node.start(
        client,
        """
        import signal, sys, time
        def leave(*_):
            time.sleep(0.5)
            print("saved", flush=True)
            sys.exit(7)
        signal.signal(signal.SIGTERM, leave)
        print("up", flush=True)
        time.sleep(300)
        """,
    )
    said(node, "up")
    assert stop(client)["exit_code"] == 7
    assert said(node, "saved") == []


def test_processes_born_while_stopping_are_met_too(node: Node, client: Client) -> None:
    node.start(
        client,
        """
        import os, signal, time
        def breed(*_):
            for _ in range(5):
                if os.fork() == 0:
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                    time.sleep(300)
        signal.signal(signal.SIGTERM, breed)
        print("up", flush=True)
        while True:
            time.sleep(1)
        """,
    )
    said(node, "up")
    assert len(stop(client, timeout_s=2)["stopped"]) == 6  # type: ignore[arg-type]
    assert [
        pid for pid in node.processes() if b"server.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ] == []


def test_stop_without_a_server_is_no_error(client: Client) -> None:
    stopped = stop(client)
    assert (stopped["exit_code"], stopped["signal"], stopped["survivors"]) == (None, None, [])


def test_adopted_zombies_are_reaped_and_bystanders_live(node: Node, client: Client) -> None:
    bystander = os.posix_spawn("/bin/sleep", ["sleep", "300"], {})
    node.start(
        client, DOUBLE_FORK.replace("time.sleep(300)\n        os._exit", "os._exit(0)\n        os._exit")
    )
    zombie = int(said(node, "worker")[0])
    eventually(lambda: not Path(f"/proc/{zombie}").exists(), what="the adopted zombie is reaped")
    stop(client)
    assert alive(bystander)
    os.kill(bystander, 9)
    os.waitpid(bystander, 0)
