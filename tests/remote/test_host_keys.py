"""Strict host keys against real sshds: what is accepted, and what a refusal tells."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from orchestrator.errors import ConnectionFailed, UsageError
from orchestrator.remote.host_key import HostKeyCheck
from orchestrator.remote.ssh_config import HostConfig
from orchestrator.remote.transport import open_transport
from tests.remote.stub import read_all
from tests.sshd import Sshd, make_key


def connects(node: Sshd, **settings: object) -> bool:
    transport = open_transport(node.name, node.settings(**settings))
    try:
        return read_all(transport.execute("echo in")) == b"in\n"
    finally:
        transport.close()


def refusal(node: Sshd, **settings: object) -> ConnectionFailed:
    with pytest.raises(ConnectionFailed) as refused:
        connects(node, **settings)
    return refused.value


def fingerprint(key: Path) -> str:
    done = subprocess.run(["ssh-keygen", "-lf", str(key)], capture_output=True, text=True, check=True)
    return done.stdout.split()[1]


def hash_names(file: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True)


@pytest.fixture(params=["ed25519", "ecdsa", "rsa"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_node_with_several_keys_is_known_by_whichever_is_on_file(make_sshd, kind: str) -> None:
    node = make_sshd(host_keys=("rsa", "ecdsa", "ed25519"))
    node.known_hosts.write_text(node.known_hosts_line(kind))
    assert connects(node)


def test_hashed_entries_with_a_port_and_two_types_are_known(make_sshd) -> None:
    node = make_sshd(host_keys=("rsa", "ed25519"))
    hash_names(node.known_hosts)
    assert f"{node.port}" not in node.known_hosts.read_text()
    assert connects(node)


def test_a_folder_in_the_place_of_the_file_is_told_as_one(tmp_path: Path) -> None:
    with pytest.raises(ConnectionFailed) as refused:
        HostKeyCheck.of(HostConfig("gpu-1", "gpu-1", 22, "ci"), str(tmp_path), None)
    assert refused.value.message == f"cannot read {tmp_path}: Is a directory"
    assert (
        refused.value.help == "a file of host keys is wanted there; correct node.known_hosts or --known-hosts"
    )


def test_a_file_of_a_user_that_is_not_here_is_an_absent_one() -> None:
    check = HostKeyCheck.of(HostConfig("gpu-1", "gpu-1", 22, "ci"), "~nobody-here/hosts", None)
    assert (check.files, check.entries) == (("~nobody-here/hosts",), ())


def test_a_host_key_alias_is_what_is_looked_for(make_sshd) -> None:
    node = make_sshd(client_options={"HostKeyAlias": "the-lab-node"})
    node.known_hosts.write_text(node.known_hosts_line(name="the-lab-node"))
    assert connects(node)
    node.trust()
    assert "looked for: the-lab-node in" in refusal(node).render()


def test_an_unknown_key_is_refused_with_its_fingerprint_and_the_line_to_add(node_sshd) -> None:
    node_sshd.known_hosts.write_text("")
    refused = refusal(node_sshd)
    assert refused.exit_code == 1
    assert refused.message == "the host key of testnode is unknown"
    assert fingerprint(node_sshd.host_key()) in refused.render()
    assert (
        f"looked for: [127.0.0.1]:{node_sshd.port} and 127.0.0.1 in {node_sshd.known_hosts}"
        in refused.render()
    )
    assert node_sshd.known_hosts.read_text() == ""  # nothing is added silently
    line = refused.help.partition(f"add to {node_sshd.known_hosts}: ")[2]
    node_sshd.known_hosts.write_text(line + "\n")
    assert connects(node_sshd)


def test_a_changed_key_is_refused_with_both_fingerprints_and_the_entry(node_sshd, tmp_path: Path) -> None:
    other = make_key(tmp_path / "other").with_suffix(".pub")
    node_sshd.known_hosts.write_text(f"# mine\n[127.0.0.1]:{node_sshd.port} {other.read_text()}")
    hash_names(node_sshd.known_hosts)
    refused = refusal(node_sshd)
    assert "has changed" in refused.message
    told = refused.render()
    assert f"{node_sshd.known_hosts} line 2 has ssh-ed25519 {fingerprint(other)}" in told
    assert f"it presented ssh-ed25519 {fingerprint(node_sshd.host_key())}" in told
    command = told.partition("only if that is right: ")[2].partition("\n")[0]
    subprocess.run(["sh", "-c", command], check=True, capture_output=True)
    assert "is unknown" in refusal(node_sshd).message


def test_a_key_of_a_type_that_is_not_on_file_is_refused_as_that(make_sshd, tmp_path: Path) -> None:
    node = make_sshd(host_keys=("ed25519",))
    make_key(tmp_path / "other", "ecdsa")
    node.known_hosts.write_text(f"[127.0.0.1]:{node.port} {(tmp_path / 'other.pub').read_text()}")
    refused = refusal(node)
    assert "a type that known_hosts does not have" in refused.message
    assert "ecdsa-sha2-nistp256" in refused.render()


def test_a_revoked_key_is_refused_although_it_is_known(node_sshd) -> None:
    line = node_sshd.known_hosts_line()
    node_sshd.known_hosts.write_text(f"{line}@revoked * {line.partition(' ')[2]}")
    assert "@revoked" in refusal(node_sshd).message


def test_a_host_certificate_authority_is_said_not_to_count(node_sshd) -> None:
    node_sshd.known_hosts.write_text(f"@cert-authority * {node_sshd.known_hosts_line().partition(' ')[2]}")
    told = refusal(node_sshd).render()
    assert f"{node_sshd.known_hosts} line 1 trusts a @cert-authority" in told
    assert "add the key itself" in told


def test_no_authentication_is_tried_before_the_key_is_known(node_sshd) -> None:
    node_sshd.known_hosts.write_text("")
    refusal(node_sshd)
    assert "publickey" not in node_sshd.log.read_text()


def test_the_experiments_own_file_stands_in_place_of_sshs(node_sshd, tmp_path: Path) -> None:
    own = tmp_path / "own hosts"
    own.write_text(node_sshd.known_hosts_line())
    node_sshd.known_hosts.write_text("")
    assert connects(node_sshd, known_hosts=str(own))
    node_sshd.trust()
    own.write_text("")
    assert "is unknown" in refusal(node_sshd, known_hosts=str(own)).message


def test_a_pinned_key_needs_no_file_and_excludes_any_other(make_sshd, tmp_path: Path) -> None:
    node = make_sshd(host_keys=("rsa", "ed25519"))
    node.known_hosts.write_text("")
    pin = node.known_hosts_line("rsa").partition(" ")[2].strip()
    assert connects(node, host_key=pin)
    node.trust()
    other = make_key(tmp_path / "other").with_suffix(".pub")
    refused = refusal(node, host_key=other.read_text().strip())
    assert "not the one that is pinned" in refused.message
    assert fingerprint(other) in refused.render()


def test_a_pin_that_is_no_key_is_a_usage_error(node_sshd) -> None:
    with pytest.raises(UsageError, match=r"SHA256:abc.* is no public key to pin"):
        connects(node_sshd, host_key="SHA256:abc")


def test_every_hop_is_checked_and_a_pin_is_for_the_target_only(make_sshd) -> None:
    jump, node = make_sshd(name="jump"), make_sshd(name="inner")
    config = node.folder / "both"
    config.write_text(jump.host_block() + node.host_block(ProxyJump="jump"))
    assert connects(node, ssh_config=str(config))
    jump.known_hosts.write_text("")
    pin = node.known_hosts_line().partition(" ")[2].strip()
    assert refusal(node, ssh_config=str(config), host_key=pin).message == "the host key of jump is unknown"
    jump.trust()
    node.known_hosts.write_text("")
    assert refusal(node, ssh_config=str(config)).message == "the host key of inner is unknown"
