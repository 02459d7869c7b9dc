"""Names of nodes as people write them."""

from __future__ import annotations

import pytest

from orchestrator.errors import UsageError
from orchestrator.model.target import Target


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("blackwell-1", Target("blackwell-1")),
        ("local", Target("local")),
        ("ann@gpu.example.org", Target("gpu.example.org", "ann")),
        ("ann@gpu:2222", Target("gpu", "ann", 2222)),
        ("gpu:22", Target("gpu", None, 22)),
        ("ssh://ann@gpu:2222", Target("gpu", "ann", 2222)),
        ("::1", Target("::1")),
        ("[fe80::1%eth0]:2222", Target("fe80::1%eth0", None, 2222)),
        ("ann@[::1]", Target("::1", "ann")),
    ],
)
def test_a_target_is_read_as_ssh_users_write_it(text: str, target: Target) -> None:
    assert Target.parse(text) == target


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a b",
        "-oProxyCommand=evil",
        "-l@host",
        "host:",
        "host:port",
        "host:0",
        "host:70000",
        "@host",
        "a@b@c",
    ],
)
def test_what_names_no_host_is_refused_before_anything_runs(text: str) -> None:
    with pytest.raises(UsageError):
        Target.parse(text)


@pytest.mark.parametrize("text", ["gpu", "ann@gpu:2222", "[::1]:22", "ann@[::1]"])
def test_a_target_prints_as_it_was_written(text: str) -> None:
    assert str(Target.parse(text)) == text


def test_local_with_a_user_or_port_is_a_host_of_that_name() -> None:
    assert Target.parse("local").is_local
    assert not Target.parse("ann@local").is_local
    assert not Target.parse("local:22").is_local
