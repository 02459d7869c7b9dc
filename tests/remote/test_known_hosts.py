"""known_hosts as OpenSSH reads it, with ssh-keygen as the judge of what a line means."""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.remote.known_hosts import HostKey, judge, known_kinds, names_to_look_for, parse_known_hosts


def key(kind: str, seed: bytes) -> HostKey:
    blob = len(kind).to_bytes(4, "big") + kind.encode() + len(seed).to_bytes(4, "big") + seed
    return HostKey(kind, blob)


A, B = key("ssh-ed25519", b"a" * 32), key("ssh-ed25519", b"b" * 32)
RSA, ECDSA = key("ssh-rsa", b"r" * 32), key("ecdsa-sha2-nistp256", b"e" * 32)


@pytest.mark.parametrize(
    ("lines", "host", "port", "presented", "state"),
    [
        (f"gpu {A}", "gpu", 22, A, "known"),
        (f"gpu {A} a comment", "GPU", 22, A, "known"),
        (f"other,gpu {A}", "gpu", 22, A, "known"),
        (f"gpu {A}", "gpu", 22, B, "changed"),
        (f"gpu {A}\ngpu {B}", "gpu", 22, B, "known"),  # a key in rotation: both stand
        (f"gpu {A}", "gpu", 22, RSA, "other_type"),
        (f"gpu {A}\ngpu {RSA}", "gpu", 22, RSA, "known"),
        (f"gpu {A}", "gpu2", 22, A, "unknown"),
        (f"gp {A}", "gpu", 22, A, "unknown"),
        ("", "gpu", 22, A, "unknown"),
        (f"# gpu {A}", "gpu", 22, A, "unknown"),
        ("gpu ssh-ed25519", "gpu", 22, A, "unknown"),
        ("gpu ssh-ed25519 !!!", "gpu", 22, A, "unknown"),
        (f"gpu ssh-rsa {str(A).split()[1]}", "gpu", 22, A, "unknown"),  # type and key disagree
        (f"[gpu]:2222 {A}", "gpu", 2222, A, "known"),
        (f"[gpu]:2222 {A}", "gpu", 2222, B, "changed"),
        (f"[gpu]:2222 {A}", "gpu", 22, A, "unknown"),
        (f"gpu {A}", "gpu", 2222, A, "known"),  # ssh looks without the port when it has no entry with it
        (f"[gpu]:2222 {A}\ngpu {B}", "gpu", 2222, B, "changed"),  # and only then
        (f"*.lab {A}", "gpu.lab", 22, A, "known"),
        (f"gpu? {A}", "gpu1", 22, A, "known"),
        (f"*.lab,!old.lab {A}", "old.lab", 22, A, "unknown"),
        (f"!old.lab,*.lab {A}", "old.lab", 22, A, "unknown"),
        (f"[*]:2222 {A}", "gpu", 2222, A, "known"),
        (f"gpu {A}\n@revoked * {A}", "gpu", 22, A, "revoked"),
        (f"gpu {A}\n@revoked other {A}", "gpu", 22, A, "known"),
        (
            f"@cert-authority gpu {A}",
            "gpu",
            22,
            A,
            "unknown",
        ),  # vouches for certificates, is no host key itself
    ],
)
def test_the_verdict_on_a_presented_key(
    lines: str, host: str, port: int, presented: HostKey, state: str
) -> None:
    assert judge(parse_known_hosts(lines, "kh"), names_to_look_for(host, port), presented).state == state


def test_an_alias_stands_alone_whatever_the_port() -> None:
    assert names_to_look_for("gpu", 2222, "Cluster") == ("cluster",)


def test_the_types_to_ask_for_are_those_of_the_name_that_is_known_first() -> None:
    entries = parse_known_hosts(f"gpu {A}\n[gpu]:2222 {RSA}\n[gpu]:2222 {ECDSA}\n@revoked gpu {B}", "kh")
    assert known_kinds(entries, names_to_look_for("gpu", 2222)) == ("ssh-rsa", "ecdsa-sha2-nistp256")
    assert known_kinds(entries, names_to_look_for("gpu", 22)) == ("ssh-ed25519",)
    assert known_kinds(entries, names_to_look_for("new", 22)) == ()


def test_a_verdict_names_the_lines_that_decided_it() -> None:
    entries = parse_known_hosts(f"x {B}\n\ngpu {A}\n", "/home/ann/.ssh/known_hosts")
    (entry,) = judge(entries, ("gpu",), B).entries
    assert entry.where == "/home/ann/.ssh/known_hosts line 3"


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no OpenSSH client")
@pytest.mark.parametrize("name", ["gpu", "[gpu]:2222", "[::1]:2222", "10.0.0.7"])
def test_names_that_ssh_keygen_hashed_are_found_and_fingerprints_agree(tmp_path: Path, name: str) -> None:
    file = tmp_path / "known_hosts"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    public = (tmp_path / "key.pub").read_text()
    file.write_text(f"{name} {public}")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True)
    text = file.read_text()
    assert name not in text
    presented = HostKey.parse(public)
    assert presented is not None
    assert judge(parse_known_hosts(text, "kh"), (name,), presented).state == "known"
    assert judge(parse_known_hosts(text, "kh"), ("another",), presented).state == "unknown"
    shown = subprocess.run(
        ["ssh-keygen", "-lf", str(tmp_path / "key.pub")], capture_output=True, text=True, check=True
    )
    assert presented.fingerprint == shown.stdout.split()[1]


@pytest.mark.parametrize(
    "name", ["|1|", "|1|a|b", "|2|AAAA|AAAA", "|1|%%|%%", f"|1|{base64.b64encode(b'salt').decode()}|"]
)
def test_a_damaged_hash_matches_nothing(name: str) -> None:
    assert judge(parse_known_hosts(f"{name} {A}", "kh"), ("gpu",), A).state == "unknown"


@pytest.mark.parametrize(
    "text", ["", "ssh-ed25519", "ssh-ed25519 AAAA", "ssh-rsa !", str(A).replace("ssh-ed25519", "x")]
)
def test_text_that_is_no_key_is_none(text: str) -> None:
    assert HostKey.parse(text) is None


def test_a_key_reads_back_what_it_prints() -> None:
    assert HostKey.parse(f"{A} ann@laptop") == A
