"""Ways to a node and failures on the way, against real sshds and sockets that misbehave."""

from __future__ import annotations

import getpass
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from orchestrator.errors import ConnectionFailed
from orchestrator.remote.transport import ConnectSettings, open_transport
from tests.remote.stub import read_all
from tests.sshd import Sshd, free_port


def says(target: str, settings: ConnectSettings, command: str = "echo in") -> str:
    transport = open_transport(target, settings)
    try:
        return read_all(transport.execute(command)).decode().strip()
    finally:
        transport.close()


def refusal(target: str, settings: ConnectSettings) -> ConnectionFailed:
    with pytest.raises(ConnectionFailed) as refused:
        says(target, settings)
    return refused.value


def settings_for(*blocks: str, folder, **changes: object) -> ConnectSettings:
    path = folder / "several"
    path.write_text("".join(blocks))
    return ConnectSettings(ssh_config=str(path), **changes)  # type: ignore[arg-type]


def came_from(node: Sshd) -> int:
    return node.log.read_text().count("Accepted publickey")


def test_an_sshd_without_an_algorithm_in_common_is_told_with_what_helps(make_sshd) -> None:
    node = make_sshd(options={"Ciphers": "chacha20-poly1305@openssh.com"})
    failed = refusal(node.name, node.settings())
    assert "no algorithm in common" in failed.message
    assert f"ssh -vv {node.name}" in failed.help


def test_a_chain_of_two_jump_hosts_is_walked_in_order(make_sshd, tmp_path) -> None:
    first, second, node = make_sshd(name="first"), make_sshd(name="second"), make_sshd(name="inner")
    settings = settings_for(
        first.host_block(), second.host_block(), node.host_block(ProxyJump="first,second"), folder=tmp_path
    )
    # Each hop is reached from the one before: what the target sees as the client's port is a socket of `second`.
    assert says("inner", settings, "echo $DYNSPEC_LOCK_NAME") == node.lock_name
    assert [came_from(hop) for hop in (first, second, node)] == [1, 1, 1]


def test_a_host_with_proxyjump_none_below_a_wildcard_is_reached_directly(make_sshd, tmp_path) -> None:
    jump, node = make_sshd(name="jump"), make_sshd(name="inner")
    wildcard = "Host *\n  ProxyJump jump\n"
    settings = settings_for(
        jump.host_block(ProxyJump="none"), node.host_block(ProxyJump="none"), wildcard, folder=tmp_path
    )
    assert says("inner", settings) == "in"
    assert came_from(jump) == 0


def test_a_proxy_command_carries_the_connection(make_sshd) -> None:
    node = make_sshd()
    relay = (
        "python3 -c \"import socket,sys,threading,os; s=socket.create_connection(('%h',%p));"
        "threading.Thread(target=lambda:[s.sendall(b) for b in iter(lambda:os.read(0,9999),b'')],daemon=True).start();"
        "[os.write(1,b) for b in iter(lambda:s.recv(9999),b'')]\""
    )
    node.ssh_config.write_text(node.host_block(ProxyCommand=relay))
    assert says("testnode", node.settings()) == "in"


def test_a_proxy_command_that_fails_is_quoted(node_sshd) -> None:
    node_sshd.ssh_config.write_text(node_sshd.host_block(ProxyCommand="echo no route to the lab >&2; exit 1"))
    assert "no route to the lab" in refusal("testnode", node_sshd.settings()).render()


def test_user_and_port_in_the_name_are_used(make_sshd) -> None:
    node = make_sshd()
    node.ssh_config.write_text(node.host_block(Port="1", User="nobody-here"))
    assert says(f"{getpass.getuser()}@testnode:{node.port}", node.settings()) == "in"


def test_an_ipv6_address_is_connected_and_looked_up_with_its_port(make_sshd) -> None:
    try:
        free_port("::1")
    except OSError:
        pytest.skip("no IPv6 loopback")
    node = make_sshd(address="::1")
    assert says("testnode", node.settings()) == "in"


def test_a_refused_connection_names_the_address(node_sshd) -> None:
    node_sshd.stop()
    refused = refusal("testnode", node_sshd.settings())
    assert f"port {node_sshd.port}) refused the connection" in refused.message
    assert "sshd" in refused.help


def test_a_name_that_does_not_resolve_is_said() -> None:
    refused = refusal("no-such-host.invalid", ConnectSettings())
    assert "no-such-host.invalid does not resolve" in refused.message


def test_a_jump_host_that_cannot_reach_the_node_is_told_apart(make_sshd, tmp_path) -> None:
    jump = make_sshd(name="jump")
    block = f"Host inner\n  HostName 127.0.0.1\n  Port {free_port()}\n  ProxyJump jump\n"
    refused = refusal("inner", settings_for(jump.host_block(), block, folder=tmp_path))
    assert "the jump host cannot reach inner" in refused.message


def test_a_jump_host_without_forwarding_is_told_apart(make_sshd, tmp_path) -> None:
    jump, node = make_sshd(name="jump", options={"AllowTcpForwarding": "no"}), make_sshd(name="inner")
    settings = settings_for(jump.host_block(), node.host_block(ProxyJump="jump"), folder=tmp_path)
    refused = refusal("inner", settings)
    assert "the jump host does not let connections through to inner" in refused.message
    assert "AllowTcpForwarding" in refused.help


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def web_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            link, _ = server.accept()
            with link:
                link.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                time.sleep(0.2)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]


def test_a_port_that_says_nothing_is_given_up_after_the_limit(silent_port: int) -> None:
    began = time.monotonic()
    refused = refusal(f"127.0.0.1:{silent_port}", ConnectSettings(timeout_s=1.0))
    assert "did not answer within 1 s" in refused.message
    assert time.monotonic() - began < 10


def test_a_port_that_is_no_ssh_server_is_told(web_port: int) -> None:
    assert "does not answer as an SSH server" in refusal(f"127.0.0.1:{web_port}", ConnectSettings()).message


def test_a_server_that_hangs_during_the_login_is_given_up_after_the_limit(make_sshd) -> None:
    slow = {"AuthorizedKeysFile": "none", "AuthorizedKeysCommand": "/bin/sleep 30"}
    node = make_sshd(options={**slow, "AuthorizedKeysCommandUser": getpass.getuser()})
    began = time.monotonic()
    refused = refusal("testnode", node.settings(timeout_s=1.0))
    assert "did not answer within 1 s" in refused.message
    assert time.monotonic() - began < 15


def test_nothing_is_printed_by_the_ssh_library_itself(node_sshd, capfd) -> None:
    node_sshd.known_hosts.write_text("")
    refusal("testnode", node_sshd.settings())
    node_sshd.stop()
    refusal("testnode", node_sshd.settings())
    assert capfd.readouterr() == ("", "")
