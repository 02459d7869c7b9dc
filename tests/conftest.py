"""What tests share: the real sshd. Where there is none its tests are skipped with a count; in CI that is a failure."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.sshd import Sshd, find_sshd

NO_SSHD = "no OpenSSH sshd on this machine (apt-get install openssh-server)"

MakeSshd = Callable[..., Sshd]


def require_sshd() -> None:
    if find_sshd() is not None:
        return
    if os.environ.get("CI"):
        pytest.fail(f"{NO_SSHD}; in CI these tests must run", pytrace=False)
    pytest.skip(NO_SSHD)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("sshd"):
        require_sshd()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = sum(NO_SSHD in str(report.longrepr) for report in terminalreporter.stats.get("skipped", []))
    if skipped:
        terminalreporter.section("tests that did NOT run", red=True, bold=True)
        terminalreporter.line(f"{skipped} tests need a real sshd and were skipped: {NO_SSHD}", red=True)


@pytest.fixture
def make_sshd(tmp_path: Path) -> Iterator[MakeSshd]:
    """`make_sshd(**arguments of Sshd)` starts one more node; all end with the test."""
    require_sshd()
    with ExitStack() as stack:

        def make(**arguments: object) -> Sshd:
            folder = tmp_path / str(arguments.get("name", "testnode"))
            folder.mkdir()
            return stack.enter_context(Sshd(folder, **arguments))  # type: ignore[arg-type]

        yield make


@pytest.fixture
def node_sshd(make_sshd: MakeSshd) -> Sshd:
    """A node behind a plain real sshd, with a fresh home."""
    return make_sshd()
