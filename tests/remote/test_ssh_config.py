"""Hosts and hops as the user's ssh configuration says, resolved by the real `ssh -G`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from orchestrator.errors import ConnectionFailed, UsageError
from orchestrator.model.target import Target
from orchestrator.remote.ssh_config import HostConfig, account_home, parse_options, resolve

needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="no OpenSSH client")


@pytest.fixture
def hops(tmp_path: Path):
    def read(config: str, target: str) -> tuple[HostConfig, ...]:
        path = tmp_path / "config"
        path.write_text(config)
        return resolve(Target.parse(target), str(path))

    return read


def route(hosts: tuple[HostConfig, ...]) -> str:
    return " ".join(f"{host.user}@{host.hostname}:{host.port}" for host in hosts)


@needs_ssh
def test_an_alias_gives_host_user_port_and_keys(hops) -> None:
    (host,) = hops(
        "Host gpu\n HostName 10.0.0.7\n User ann\n Port 2222\n IdentityFile ~/.ssh/lab_%r\n IdentitiesOnly yes\n"
        " CertificateFile ~/.ssh/lab-cert.pub\n HostKeyAlias lab\n UserKnownHostsFile /tmp/a /tmp/b\n",
        "gpu",
    )
    assert (host.alias, host.hostname, host.user, host.port) == ("gpu", "10.0.0.7", "ann", 2222)
    assert host.identities == (f"{account_home()}/.ssh/lab_ann",)
    assert host.identities_chosen
    assert host.identities_only
    assert host.certificates == (f"{account_home()}/.ssh/lab-cert.pub",)
    assert host.host_key_alias == "lab"
    assert host.known_hosts[:2] == ("/tmp/a", "/tmp/b")


@needs_ssh
def test_what_the_user_writes_beats_the_configuration(hops) -> None:
    (host,) = hops("Host *\n User ann\n Port 2222\n", "bob@gpu:7")
    assert (host.user, host.port) == ("bob", 7)


@needs_ssh
def test_included_files_and_match_blocks_count(hops, tmp_path: Path) -> None:
    (tmp_path / "more").write_text("Host gpu\n User included\n")
    (host,) = hops(f"Include {tmp_path}/more\nMatch host gpu\n Port 2200\n", "gpu")
    assert (host.user, host.port) == ("included", 2200)


@needs_ssh
def test_without_an_identity_file_the_keys_are_sshs_own_list(hops) -> None:
    (host,) = hops("", "gpu")
    assert not host.identities_chosen
    assert f"{account_home()}/.ssh/id_ed25519" in host.identities


@needs_ssh
def test_a_home_elsewhere_does_not_move_the_keys_since_ssh_reads_the_account(hops, monkeypatch) -> None:
    monkeypatch.setenv("HOME", "/github/home")
    (host,) = hops("Host gpu\n IdentityFile ~/.ssh/lab\n", "gpu")
    assert host.identities == (f"{account_home()}/.ssh/lab",)


@needs_ssh
@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("Host node\n ProxyJump a,b\n", "u@a:22 u@b:22 u@node:22"),
        ("Host node\n ProxyJump ann@a:2200\nHost a\n HostName 10.0.0.1\n", "ann@10.0.0.1:2200 u@node:22"),
        # A jump host's own jump comes first; a list on the way replaces the later hops' own.
        ("Host node\n ProxyJump b\nHost b\n ProxyJump a\n", "u@a:22 u@b:22 u@node:22"),
        (
            "Host node\n ProxyJump a,b\nHost b\n ProxyJump elsewhere\nHost a\n ProxyJump z\n",
            "u@z:22 u@a:22 u@b:22 u@node:22",
        ),
        # fabric and paramiko take `none` for a host of that name.
        ("Host node\n ProxyJump none\nHost *\n ProxyJump bastion\n", "u@node:22"),
        ("Host bastion\n ProxyJump none\nHost *\n ProxyJump bastion\n", "u@bastion:22 u@node:22"),
        ("Host node\n ProxyJump ssh://ann@a:2200\n", "ann@a:2200 u@node:22"),
    ],
)
def test_hops_come_in_sshs_order(hops, config: str, expected: str) -> None:
    assert route(hops(f"{config}\nHost *\n User u\n", "node")) == expected


@needs_ssh
def test_a_jump_host_that_jumps_over_itself_is_named_with_the_cure(hops) -> None:
    with pytest.raises(ConnectionFailed) as refused:
        hops("Host *\n ProxyJump bastion\n", "node")
    assert "circle" in refused.value.message
    assert "Host bastion" in refused.value.help
    assert "ProxyJump none" in refused.value.help


@needs_ssh
def test_a_proxy_command_is_read_with_its_tokens(hops) -> None:
    (host,) = hops(
        "Host gpu\n HostName 10.0.0.7\n Port 2222\n User ann\n ProxyCommand relay %h %p %r %n 100%%\n", "gpu"
    )
    assert host.proxy_command == "relay 10.0.0.7 2222 ann gpu 100%"


@needs_ssh
def test_a_broken_configuration_is_shown_in_sshs_words(hops) -> None:
    with pytest.raises(UsageError) as refused:
        hops("Host gpu\n Porrt 22\n", "gpu")
    assert "porrt" in refused.value.render().lower()


def test_a_configuration_that_does_not_exist_is_named() -> None:
    with pytest.raises(UsageError, match="/nowhere/config does not exist"):
        resolve(Target("gpu"), "/nowhere/config")


def test_without_an_openssh_client_paramikos_reader_answers(hops, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    node = "Host node\n HostName 10.0.0.7\n User ann\n Port 2222\n IdentityFile ~/.ssh/lab\n ProxyJump a\n"
    jump, host = hops(f"{node}Host a\n ProxyJump none\n", "node")
    assert (jump.hostname, host.hostname, host.user, host.port) == ("a", "10.0.0.7", "ann", 2222)
    assert host.identities == (f"{account_home()}/.ssh/lab",)
    assert host.known_hosts[0] == f"{account_home()}/.ssh/known_hosts"
    assert not jump.identities_chosen


@pytest.mark.parametrize(
    ("line", "expected"),
    [("none", "none"), ("SSH_AUTH_SOCK", None), ("$MY_AGENT", "/run/mine"), ("/run/a", "/run/a")],
)
def test_the_agents_socket_may_be_set_in_the_configuration(
    line: str, expected: str | None, monkeypatch
) -> None:
    monkeypatch.setenv("MY_AGENT", "/run/mine")
    assert HostConfig.of(Target("gpu"), parse_options(f"identityagent {line}\n")).identity_agent == expected


def test_identity_none_means_the_default_list() -> None:
    assert not HostConfig.of(Target("gpu"), parse_options("identityfile none\n")).identities_chosen


def test_a_known_hosts_path_with_blanks_is_one_path_when_it_exists(tmp_path: Path) -> None:
    file = tmp_path / "known hosts"
    file.touch()
    options = parse_options(f"userknownhostsfile {file}\nglobalknownhostsfile /a /b\n")
    assert HostConfig.of(Target("gpu"), options).known_hosts == (str(file), "/a", "/b")


def test_a_known_hosts_path_that_cannot_be_looked_at_is_taken_as_it_is() -> None:
    path = f"/{'x' * 300}"
    options = {"userknownhostsfile": (path,)}
    assert HostConfig.of(Target("h"), options).known_hosts == (path,)


def test_environment_variables_in_paths_are_filled_in(monkeypatch) -> None:
    monkeypatch.setenv("KEYS", "/mnt/keys")
    assert HostConfig.of(Target("gpu"), parse_options("identityfile ${KEYS}/lab\n")).identities == (
        "/mnt/keys/lab",
    )
    assert os.environ["KEYS"] == "/mnt/keys"
