"""Which key is offered when, against real sshds and a real ssh-agent; never a prompt."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.errors import ConnectionFailed
from orchestrator.remote.identities import candidates
from orchestrator.remote.ssh_config import HostConfig
from orchestrator.remote.transport import open_transport
from tests.remote.stub import read_all
from tests.sshd import SshAgent, Sshd, make_key


@pytest.fixture
def agent(tmp_path: Path, monkeypatch) -> Iterator[SshAgent]:
    with SshAgent(tmp_path) as running:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(running.socket))
        yield running


@pytest.fixture(autouse=True)
def no_agent_of_the_developer(monkeypatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


def connects(node: Sshd, **settings: object) -> bool:
    transport = open_transport(node.name, node.settings(**settings))
    try:
        return read_all(transport.execute("echo in")) == b"in\n"
    finally:
        transport.close()


def refusal(node: Sshd) -> str:
    with pytest.raises(ConnectionFailed) as refused:
        connects(node)
    return refused.value.render()


def write_config(node: Sshd, **options: str) -> None:
    node.ssh_config.write_text(node.host_block(**options))


def accepted_after(node: Sshd) -> int:
    """How many keys sshd refused before it took one."""
    return node.log.read_text().count("Failed publickey")


def test_the_given_key_comes_before_seven_useless_keys_of_the_agent(node_sshd, agent, tmp_path) -> None:
    agent.add(*(make_key(tmp_path / f"useless{number}") for number in range(7)))
    assert connects(node_sshd)
    assert accepted_after(node_sshd) == 0


def test_without_a_given_key_the_agents_keys_use_up_the_tries_and_the_message_lists_them(
    node_sshd, agent, tmp_path
) -> None:
    agent.add(*(make_key(tmp_path / f"useless{number}") for number in range(7)))
    write_config(node_sshd, IdentityFile="none")
    told = refusal(node_sshd)
    assert "accepted no key" in told
    assert "agent key useless0 (SHA256:" in told
    assert "MaxAuthTries" in told
    assert "IdentityFile" in told


def test_identities_only_leaves_the_agents_other_keys_out(node_sshd, agent, tmp_path) -> None:
    useless = make_key(tmp_path / "useless")
    agent.add(make_key(tmp_path / "other"))
    write_config(node_sshd, IdentityFile=str(useless), IdentitiesOnly="yes")
    told = refusal(node_sshd)
    assert "useless (SHA256:" in told
    assert "agent key" not in told


def test_the_agents_keys_follow_when_the_given_key_is_refused(node_sshd, agent, tmp_path) -> None:
    agent.add(node_sshd.client_key)
    write_config(node_sshd, IdentityFile=str(make_key(tmp_path / "useless")))
    assert connects(node_sshd)
    assert accepted_after(node_sshd) == 1


def test_keys_are_offered_in_the_order_of_the_configuration(node_sshd, tmp_path) -> None:
    first, second = make_key(tmp_path / "first"), make_key(tmp_path / "second", "ecdsa")
    block = node_sshd.host_block(IdentityFile=str(first))
    node_sshd.ssh_config.write_text(
        f"{block}  IdentityFile {second}\n  IdentityFile {node_sshd.client_key}\n"
    )
    assert connects(node_sshd)
    assert accepted_after(node_sshd) == 2


@pytest.mark.parametrize("kind", ["rsa", "ecdsa", "ed25519"])
def test_every_kind_of_key_opens(node_sshd, tmp_path, kind: str) -> None:
    key = make_key(tmp_path / "mine", kind)
    node_sshd.authorize(key.with_suffix(".pub"))
    write_config(node_sshd, IdentityFile=str(key))
    assert connects(node_sshd)


def test_a_key_with_a_passphrase_is_left_out_by_name_and_nobody_is_asked(node_sshd, tmp_path) -> None:
    key = make_key(tmp_path / "locked", passphrase="secret")
    node_sshd.authorize(key.with_suffix(".pub"))
    write_config(node_sshd, IdentityFile=str(key))
    told = refusal(node_sshd)
    assert "locked: needs its passphrase; unlock it with ssh-add first" in told


def test_a_key_with_a_passphrase_opens_through_the_agent(node_sshd, agent, tmp_path) -> None:
    key = make_key(tmp_path / "mine")
    node_sshd.authorize(key.with_suffix(".pub"))
    agent.add(key)
    subprocess.run(
        ["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(key)], check=True, capture_output=True
    )
    write_config(node_sshd, IdentityFile=str(key), IdentitiesOnly="yes")
    assert connects(node_sshd)


def test_a_public_file_names_the_agents_key_to_use(node_sshd, agent, tmp_path) -> None:
    agent.add(*(make_key(tmp_path / f"useless{number}") for number in range(7)), node_sshd.client_key)
    public = tmp_path / "only.pub"
    public.write_text(node_sshd.client_key.with_suffix(".pub").read_text())
    write_config(node_sshd, IdentityFile=str(public))
    assert connects(node_sshd)
    assert accepted_after(node_sshd) == 0


def test_the_configurations_own_agent_is_asked(node_sshd, agent, monkeypatch) -> None:
    agent.add(node_sshd.client_key)
    monkeypatch.delenv("SSH_AUTH_SOCK")
    write_config(node_sshd, IdentityFile="none", IdentityAgent=str(agent.socket))
    assert connects(node_sshd)


def test_an_agent_that_is_gone_is_said_and_the_files_still_work(node_sshd, monkeypatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/nowhere/agent.sock")
    assert connects(node_sshd)
    write_config(node_sshd, IdentityFile="none")
    assert "agent at /nowhere/agent.sock" in refusal(node_sshd)


def test_a_key_file_that_does_not_exist_is_named(node_sshd) -> None:
    write_config(node_sshd, IdentityFile="/nowhere/key")
    assert "/nowhere/key: no such file" in refusal(node_sshd)


def test_a_key_file_that_cannot_be_looked_at_is_named_and_the_others_are_offered(node_sshd) -> None:
    host = HostConfig(
        "gpu-1",
        "gpu-1",
        22,
        "ci",
        identities=(f"/{'x' * 300}", str(node_sshd.client_key)),
        identities_chosen=True,
    )
    lost, good = candidates(host, ())
    assert (lost.key, lost.problem) == (None, "File name too long")
    assert good.key is not None


def test_a_file_that_is_no_key_is_named(node_sshd, tmp_path) -> None:
    (tmp_path / "text").write_text("hello")
    write_config(node_sshd, IdentityFile=str(tmp_path / "text"))
    assert "text: cannot be used" in refusal(node_sshd)


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    return make_key(tmp_path / "authority")


def certify(authority: Path, key: Path, principal: str) -> Path:
    command = [
        "ssh-keygen",
        "-q",
        "-s",
        str(authority),
        "-I",
        "test",
        "-n",
        principal,
        str(key.with_suffix(".pub")),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return key.with_name(f"{key.name}-cert.pub")


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
def test_a_certificate_beside_the_key_is_used(make_sshd, authority, tmp_path, kind: str) -> None:
    node = make_sshd(options={"TrustedUserCAKeys": str(authority.with_suffix(".pub"))})
    key = make_key(tmp_path / "mine", kind)
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    certify(authority, key, user)
    write_config(node, IdentityFile=str(key))
    assert connects(node)
    assert accepted_after(node) == 0


def test_a_certificate_file_is_used_with_the_key_that_it_certifies(make_sshd, authority, tmp_path) -> None:
    node = make_sshd(options={"TrustedUserCAKeys": str(authority.with_suffix(".pub"))})
    other, key = make_key(tmp_path / "other"), make_key(tmp_path / "mine")
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    certificate = certify(authority, key, user).rename(tmp_path / "elsewhere.pub")
    block = node.host_block(IdentityFile=str(other), CertificateFile=str(certificate))
    node.ssh_config.write_text(f"{block}  IdentityFile {key}\n")
    assert connects(node)
    assert accepted_after(node) == 1  # the other key without a certificate


def test_a_certificate_in_the_agent_is_used(make_sshd, agent, authority, tmp_path) -> None:
    node = make_sshd(options={"TrustedUserCAKeys": str(authority.with_suffix(".pub"))})
    key = make_key(tmp_path / "mine")
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    certify(authority, key, user)
    agent.add(key)
    write_config(node, IdentityFile="none")
    assert connects(node)


def test_a_server_that_takes_no_keys_says_what_it_takes(make_sshd) -> None:
    node = make_sshd(options={"PubkeyAuthentication": "no", "KbdInteractiveAuthentication": "yes"})
    told = refusal(node)
    assert "the server takes: keyboard-interactive" in told
    assert "never asks for passwords" in told


def test_a_server_that_asks_for_more_than_a_key_is_named(make_sshd) -> None:
    node = make_sshd(
        options={
            "AuthenticationMethods": "publickey,keyboard-interactive",
            "KbdInteractiveAuthentication": "yes",
        }
    )
    assert "accepted, but the server asks for keyboard-interactive as well" in refusal(node)


def test_nothing_reads_stdin_or_needs_a_terminal(node_sshd) -> None:
    program = (
        "import sys\n"
        "from orchestrator.remote.transport import ConnectSettings, open_transport\n"
        f"transport = open_transport('testnode', ConnectSettings(ssh_config={str(node_sshd.ssh_config)!r}))\n"
        "pipe = transport.execute('echo in')\n"
        "sys.stdout.write(pipe.read(10).decode())\n"
        "transport.close()\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for options in ({"stdin": subprocess.DEVNULL}, {"preexec_fn": lambda: os.close(0)}):
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            env=env,
            start_new_session=True,
            **options,
        )
        assert (done.stdout, done.stderr) == ("in\n", "")
