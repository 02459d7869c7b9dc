"""The embedded node: a real SSH server for real clients, a venv that serves, a GPU that is said to be simulated."""

from __future__ import annotations

import asyncio
import csv
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncssh
import paramiko
import pytest

from orchestrator.agent import gpus
from orchestrator.demo import processes
from orchestrator.demo.command import demo_node
from orchestrator.demo.node import DemoNode, NodeOptions

pytestmark = pytest.mark.wheels
needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="no OpenSSH client on this machine")
ENGINE_ENV = {"DYNSPEC_DEMO_SPEED": "8", "DYNSPEC_DEMO_LOAD_S": "0.4"}


@pytest.fixture(scope="module")
def node() -> Iterator[DemoNode]:
    with DemoNode(NodeOptions(engine_env=ENGINE_ENV, max_sessions=4)) as running:
        yield running


@pytest.fixture(scope="module")
def client(node: DemoNode) -> Iterator[paramiko.SSHClient]:
    with paramiko_client(node) as connected:
        yield connected


def paramiko_client(node: DemoNode) -> paramiko.SSHClient:
    connected = paramiko.SSHClient()
    connected.load_host_keys(str(node.known_hosts))
    key = paramiko.Ed25519Key.from_private_key_file(str(node.ssh_config.with_name("user_key")))
    connected.connect(
        "127.0.0.1", node.port, username="demo", pkey=key, allow_agent=False, look_for_keys=False
    )
    return connected


def run(client: paramiko.SSHClient, command: str, data: bytes = b"") -> tuple[int, bytes, bytes]:
    stdin, stdout, stderr = client.exec_command(command, timeout=20)
    with ThreadPoolExecutor(2) as pool:
        pool.submit(lambda: (stdin.write(data), stdin.channel.shutdown_write()))
        err = pool.submit(stderr.read)
        out = stdout.read()
    return stdout.channel.recv_exit_status(), out, err.result()


@needs_ssh
def test_the_openssh_client_connects_with_the_written_configuration_alone(node: DemoNode) -> None:
    done = subprocess.run(
        ["ssh", "-F", str(node.ssh_config), node.host, 'echo "$HOME"; echo noise >&2; exit 7'],
        capture_output=True,
        text=True,
        timeout=20,
        stdin=subprocess.DEVNULL,
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, f"{node.home}\n", "noise\n")


@needs_ssh
def test_a_changed_host_key_is_refused_by_the_client(node: DemoNode, tmp_path: Path) -> None:
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    known = tmp_path / "known_hosts"
    known.write_text(f"[127.0.0.1]:{node.port} {other}")
    done = subprocess.run(
        ["ssh", "-F", str(node.ssh_config), "-o", f"UserKnownHostsFile={known}", node.host, "true"],
        capture_output=True,
        text=True,
        timeout=20,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 255
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in done.stderr


def test_bytes_pass_untouched_both_ways_whatever_their_size(client: paramiko.SSHClient) -> None:
    data = os.urandom(6_000_000)
    code, out, err = run(client, "tee /dev/stderr", data)
    assert code == 0
    digest = hashlib.sha256(data).digest()
    assert (hashlib.sha256(out).digest(), hashlib.sha256(err).digest()) == (digest, digest)


def test_exit_codes_and_signals_come_back(node: DemoNode) -> None:
    async def ask() -> list[object]:
        async with asyncssh.connect(node.host, config=[str(node.ssh_config)]) as connection:
            codes: list[object] = []
            for command in ("exit 0", "exit 201", "kill -TERM $$"):
                done = await connection.run(command)
                codes.append(done.exit_signal[0] if done.exit_signal else done.exit_status)
            return codes

    assert asyncio.run(ask()) == [0, 201, "TERM"]


def test_a_slow_reader_holds_the_command_back(client: paramiko.SSHClient, node: DemoNode) -> None:
    marker = node.home / "written"
    command = f"head -c 40000000 /dev/zero; touch {marker}"
    _, stdout, _ = client.exec_command(command, timeout=30)
    time.sleep(0.7)
    assert not marker.exists()
    assert len(stdout.read()) == 40_000_000
    assert stdout.channel.recv_exit_status() == 0
    assert marker.exists()


def test_several_sessions_run_at_once_up_to_the_limit(node: DemoNode) -> None:
    with paramiko_client(node) as client:
        running = [client.exec_command("read line; echo $line")[:2] for _ in range(4)]
        code, _, err = run(client, "true")
        assert (code, err) == (254, b"no more than 4 sessions on a connection\n")
        for index, (stdin, _) in enumerate(running):
            stdin.write(f"{index}\n")
        assert [stdout.read() for _, stdout in running] == [b"0\n", b"1\n", b"2\n", b"3\n"]
        deadline = time.monotonic() + 5
        while run(client, "true")[0] != 0:
            assert time.monotonic() < deadline


def test_a_shell_is_refused_with_a_word(node: DemoNode) -> None:
    with paramiko_client(node) as client:
        channel = client.get_transport().open_session()
        channel.invoke_shell()
        assert b"simulated node" in channel.makefile_stderr("rb").read()


def test_ports_of_the_node_can_be_reached_through_the_connection(client: paramiko.SSHClient) -> None:
    program = (
        "import http.server as h, sys; s = h.HTTPServer(('127.0.0.1', 0), h.SimpleHTTPRequestHandler); "
        "print(s.server_port, flush=True); s.handle_request()"
    )
    _, stdout, _ = client.exec_command(f'python3 -c "{program}"', timeout=20)
    port = int(stdout.readline())
    channel = client.get_transport().open_channel("direct-tcpip", ("127.0.0.1", port), ("127.0.0.1", 1))
    channel.sendall(b"GET / HTTP/1.0\r\n\r\n")
    assert channel.makefile("rb").read().startswith(b"HTTP/1.0 200")


def test_only_loopback_can_be_reached(client: paramiko.SSHClient) -> None:
    with pytest.raises(paramiko.ChannelException):
        client.get_transport().open_channel("direct-tcpip", ("192.0.2.1", 80), ("127.0.0.1", 1))


def test_a_command_outlives_its_client_and_finds_its_pipes_closed(node: DemoNode) -> None:
    left, ended = node.home / "left", node.home / "ended"
    with paramiko_client(node) as client:
        pipes = client.exec_command(
            f"trap '' PIPE; cat; touch {left}; sleep 0.3; echo x; echo $? > {ended}; sleep 30"
        )
        time.sleep(0.3)
        assert not left.exists()
        assert pipes
    wait_for(left.exists)
    wait_for(lambda: ended.exists() and ended.read_text().strip() != "")
    assert ended.read_text().strip() != "0", "writing to a client that has gone must fail"


def test_the_serving_interpreter_loads_the_trees_own_sglang(
    client: paramiko.SSHClient, node: DemoNode
) -> None:
    code, out, _ = run(
        client,
        "cd ~/serve && ~/venv/bin/python3 -c 'import sglang; print(sglang.__file__, sglang.__version__)'",
    )
    assert code == 0
    assert out.decode().split() == [str(node.package / "__init__.py"), "0.5.11"]


def test_the_tree_is_the_wheels_own_source(node: DemoNode) -> None:
    from orchestrator.demo.wheel import wheel_tree

    ours = {"__init__.py", "launch_server.py"}
    real = wheel_tree("0.5.11")
    files = [file.relative_to(node.package) for file in node.package.rglob("*.py")]
    assert len(files) > 800
    differing = {
        str(file) for file in files if (node.package / file).read_bytes() != (real / file).read_bytes()
    }
    assert differing == ours


def test_the_record_lists_every_file_with_its_hash(node: DemoNode) -> None:
    site = node.package.parent
    with (site / "sglang-0.5.11.dist-info" / "RECORD").open(newline="") as record:
        listed = {row[0] for row in csv.reader(record)}
    on_disk = {
        str(file.relative_to(site))
        for folder in ("sglang", "sglang-0.5.11.dist-info")
        for file in (site / folder).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert on_disk <= listed


def test_gpu_memory_is_held_while_an_engine_runs(client: paramiko.SSHClient, node: DemoNode) -> None:
    assert [gpu.memory_used_mib for gpu in read_gpus(client).gpus] == [0]
    start = (
        "cd ~/serve; exec 3>&1; nohup ~/venv/bin/python3 -m sglang.launch_server --model-path /models/demo-8b "
        "--port 31411 >log 2>&1 </dev/null & echo $!"
    )
    _, out, _ = run(client, start.replace("exec 3>&1; ", ""))
    pid = int(out)
    log = node.home / "serve" / "log"
    wait_for(lambda: "fired up" in log.read_text())
    picture = read_gpus(client)
    assert picture.gpus[0].name == "Simulated H200"
    assert picture.gpus[0].memory_used_mib == int(143771 * 0.83)
    assert [(p.pid, p.kind) for p in picture.processes] == [(pid, "C")]
    assert node.engines() == [pid]
    _, out, _ = run(client, "nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader,nounits")
    assert out.decode() == f"{pid}, {int(143771 * 0.83)}\n"
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: read_gpus(client).gpus[0].memory_used_mib == 0)


def test_a_second_engine_on_a_full_gpu_runs_out_of_memory(client: paramiko.SSHClient, node: DemoNode) -> None:
    command = (
        "cd ~/serve; ~/venv/bin/python3 -m sglang.launch_server --model-path /models/demo-8b --port {0} "
        ">log-{0} 2>&1 </dev/null"
    )
    run(client, f"({command.format(31412)} & )")
    wait_for(lambda: "fired up" in (node.home / "serve" / "log-31412").read_text())
    code, _, _ = run(client, command.format(31413))
    assert code != 0
    assert "torch.OutOfMemoryError" in (node.home / "serve" / "log-31413").read_text()
    for pid in node.engines():
        os.kill(pid, signal.SIGKILL)


def test_more_ranks_than_gpus_do_not_start(client: paramiko.SSHClient) -> None:
    code, _, err = run(
        client, "~/venv/bin/python3 -m sglang.launch_server --model-path /models/demo-8b --tp-size 2"
    )
    assert code != 0
    assert b"TP1] Scheduler hit an exception: RuntimeError: CUDA error: invalid device ordinal" in err


def test_a_model_that_is_not_there_is_named(client: paramiko.SSHClient) -> None:
    code, _, err = run(client, "~/venv/bin/python3 -m sglang.launch_server --model-path /models/absent")
    assert code == 1
    assert b"Can't load the configuration of '/models/absent'" in err


def test_an_unknown_field_is_refused_as_by_the_real_tool(client: paramiko.SSHClient) -> None:
    code, _, err = run(client, "nvidia-smi --query-gpu=colour --format=csv")
    assert code == 2
    assert b'Field "colour" is not a valid field to query.' in err


def test_memory_can_stay_charged_after_the_process_is_gone() -> None:
    with (
        DemoNode(NodeOptions(engine_env=ENGINE_ENV, gpu_release_s=1.0)) as node,
        paramiko_client(node) as client,
    ):
        _, out, _ = run(
            client,
            "~/venv/bin/python3 -m sglang.launch_server --model-path /models/demo-8b --port 31414 "
            ">log 2>&1 </dev/null & echo $!",
        )
        wait_for(lambda: "fired up" in (node.home / "log").read_text())
        os.kill(int(out), signal.SIGKILL)
        wait_for(lambda: not node.engines())
        picture = read_gpus(client)
        assert picture.gpus[0].memory_used_mib
        assert picture.processes == []
        wait_for(lambda: read_gpus(client).gpus[0].memory_used_mib == 0)


def test_a_far_node_answers_later() -> None:
    with DemoNode(NodeOptions(delay_s=0.05)) as node:
        began = time.monotonic()
        with paramiko_client(node) as client:
            connected = time.monotonic()
            assert run(client, "echo far")[1] == b"far\n"
        assert connected - began > 0.5
        assert time.monotonic() - connected > 0.2


def test_leaving_ends_every_process_and_removes_the_folder() -> None:
    with demo_node() as running:
        node = running.node
        assert "SIMULATED" in running.notice
        assert set(running.overrides) == {
            "node.host",
            "node.ssh_config",
            "node.known_hosts",
            "server.port",
        }
        with paramiko_client(node) as client:
            client.exec_command(
                "setsid sleep 300 & setsid -f sh -c 'trap \"\" TERM; sleep 300; true'; sleep 300"
            )
            wait_for(lambda: len(processes.of_folder(node.root)) >= 5)
    assert processes.of_folder(node.root) == []
    assert not node.root.exists()


def test_a_killed_owner_leaves_neither_processes_nor_folder() -> None:
    program = (
        "import sys, time; from orchestrator.demo.node import DemoNode\n"
        "with DemoNode() as node:\n    print(node.root, flush=True); time.sleep(60)"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    root = Path(owner.stdout.readline().strip())
    assert root.exists()
    owner.kill()
    owner.wait()
    wait_for(lambda: not root.exists() and not processes.of_folder(root))


def read_gpus(client: paramiko.SSHClient) -> gpus.Picture:
    code, out, _ = run(client, "nvidia-smi -q -x")
    assert code == 0
    return gpus.parse(out.decode())


def wait_for(true: object, limit_s: float = 30.0) -> None:
    assert callable(true)
    deadline = time.monotonic() + limit_s
    while True:
        try:
            if true():
                return
        except FileNotFoundError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.03)
