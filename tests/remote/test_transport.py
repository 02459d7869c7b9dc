"""The contract of a transport: the same cases over a local shell and over a real sshd."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from orchestrator.errors import ConnectionFailed, ConnectionLost
from orchestrator.remote.transport import ConnectSettings, Transport, open_transport
from tests.remote.stub import read_all
from tests.sshd import descendants

EVERY_BYTE = bytes(range(256))


@pytest.fixture(params=["local", "sshd"])
def transport(request: pytest.FixtureRequest) -> Iterator[Transport]:
    if request.param == "local":
        opened = open_transport("local", ConnectSettings())
    else:
        node = request.getfixturevalue("node_sshd")
        opened = open_transport(node.name, node.settings())
    yield opened
    opened.close()


def test_a_command_runs_in_a_shell_and_its_output_ends_with_it(transport: Transport) -> None:
    pipe = transport.execute("echo one; echo two >&2; exit 3")
    assert read_all(pipe) == b"one\n"
    assert pipe.stderr_tail() == "two\n"
    assert pipe.exit_status(5) == 3


def test_every_byte_goes_through_both_ways_unchanged(transport: Transport) -> None:
    data = EVERY_BYTE * 8192
    pipe = transport.execute("cat")
    writer = threading.Thread(target=lambda: (pipe.write(data), pipe.close_stdin()))
    writer.start()
    assert read_all(pipe) == data
    writer.join()
    assert pipe.exit_status(5) == 0


def test_read_returns_what_there_is_without_waiting_for_more(transport: Transport) -> None:
    pipe = transport.execute("printf ab; sleep 30")
    began = time.monotonic()
    assert pipe.read(100) == b"ab"
    assert time.monotonic() - began < 15
    pipe.close()


def test_a_flood_on_stderr_does_not_hold_the_command_up(transport: Transport) -> None:
    pipe = transport.execute("head -c 5000000 /dev/zero | tr '\\0' x >&2; echo done")
    assert read_all(pipe) == b"done\n"
    assert set(pipe.stderr_tail()) == {"x"}


def test_closing_stdin_ends_a_command_that_reads_it(transport: Transport) -> None:
    pipe = transport.execute("cat; echo end")
    pipe.close_stdin()
    assert read_all(pipe) == b"end\n"


def test_a_status_is_not_known_before_the_end(transport: Transport) -> None:
    pipe = transport.execute("sleep 30")
    assert pipe.exit_status(0.05) is None
    pipe.close()


def test_reading_after_close_is_the_end(transport: Transport) -> None:
    pipe = transport.execute("cat")
    pipe.close()
    assert pipe.read(10) == b""


def test_close_frees_a_thread_that_is_reading(transport: Transport) -> None:
    pipe = transport.execute("cat")
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read(10)))
    reader.start()
    transport.close()
    reader.join(10)
    assert got == [b""]


def test_writing_to_a_command_that_has_ended_is_a_lost_connection(transport: Transport) -> None:
    pipe = transport.execute("exec 0<&-; echo ended")
    read_all(pipe)
    with pytest.raises(ConnectionLost):
        pipe.write(b"x" * 5_000_000)


def test_several_commands_run_at_once(transport: Transport) -> None:
    pipes = [transport.execute(f"read line; echo {number} $line") for number in range(4)]
    for number, pipe in enumerate(pipes):
        pipe.write(b"%d\n" % (number * 10))
    assert [read_all(pipe) for pipe in pipes] == [b"0 0\n", b"1 10\n", b"2 20\n", b"3 30\n"]


def test_a_forwarded_port_reaches_the_loopback_of_the_node(transport: Transport) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as far,
        transport.forward(far.getsockname()[1]) as port,
        socket.create_connection(("127.0.0.1", port), timeout=5) as near,
    ):
        near.sendall(EVERY_BYTE)
        near.shutdown(socket.SHUT_WR)
        served, _ = far.accept()
        with served:
            received = b""
            while block := served.recv(1000):
                received += block
            served.sendall(received[::-1])
        returned = b""
        while block := near.recv(1000):
            returned += block
    assert received == EVERY_BYTE
    assert returned == EVERY_BYTE[::-1]


def test_a_forwarded_port_that_nobody_serves_closes_the_connection(transport: Transport) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        unused = server.getsockname()[1]
    with transport.forward(unused) as port:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as near:
                assert near.recv(1) == b""
        except ConnectionRefusedError:
            pass  # local: there is no port of ours in between


def test_a_forward_ends_with_its_context(node_sshd) -> None:
    transport = open_transport(node_sshd.name, node_sshd.settings())
    with transport.forward(9) as port:
        pass
    time.sleep(0.1)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    transport.close()


def test_a_closed_ssh_transport_says_so(node_sshd) -> None:
    transport = open_transport(node_sshd.name, node_sshd.settings())
    transport.close()
    with pytest.raises(ConnectionLost, match="testnode: the connection has ended"):
        transport.execute("true")


def test_closing_the_local_transport_ends_even_a_command_that_ignores_its_stdin() -> None:
    transport = open_transport("local", ConnectSettings())
    transport.execute("trap '' TERM; sleep 300 & wait; sleep 300")
    deadline = time.monotonic() + 5
    while not descendants(os.getpid()) and time.monotonic() < deadline:
        time.sleep(0.01)
    transport.close()
    assert not descendants(os.getpid())


def running() -> set[int]:
    """Pids that are no zombies."""
    listed = subprocess.run(
        ["ps", "-e", "-o", "pid=,stat="], capture_output=True, text=True, check=True
    ).stdout
    return {int(line.split()[0]) for line in listed.splitlines() if not line.split()[1].startswith("Z")}


def test_closing_the_local_transport_ends_what_the_command_left_in_its_group() -> None:
    transport = open_transport("local", ConnectSettings())
    pipe = transport.execute("sh -c \"trap '' TERM; echo \\$\\$; while :; do sleep 1; done\" & wait")
    pid = int(pipe.read(20))
    transport.close()
    assert pid not in running()


def test_local_keeps_out_of_the_terminals_signals_and_of_a_runners_orphan_clean_up(monkeypatch) -> None:
    monkeypatch.setenv("RUNNER_TRACKING_ID", "github_123")
    transport = open_transport("local", ConnectSettings())
    pipe = transport.execute('echo "[$RUNNER_TRACKING_ID]"; ps -o sid= -p $$')
    tracking, session = read_all(pipe).split()
    assert tracking == b"[]"
    assert int(session) != os.getsid(0)
    transport.close()


def test_local_imports_no_ssh_library() -> None:
    program = (
        "import sys\n"
        "from orchestrator.remote.transport import ConnectSettings, open_transport\n"
        "import orchestrator.remote.node\n"
        "pipe = open_transport('local', ConnectSettings()).execute('echo hi')\n"
        "assert pipe.read(10) == b'hi\\n'\n"
        "print(sorted({'fabric', 'paramiko', 'invoke', 'cryptography'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_node_with_one_session_a_connection_is_told_which_setting_that_is(make_sshd) -> None:
    node = make_sshd(options={"MaxSessions": "1"})
    transport = open_transport(node.name, node.settings())
    first = transport.execute("cat")
    with pytest.raises(ConnectionFailed) as refused:
        transport.execute("true")
    assert "MaxSessions" in refused.value.render()
    assert "testnode" in refused.value.message
    first.close()
    transport.close()
