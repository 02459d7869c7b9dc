"""A whole node for every test of this folder: shared as long as it is given back as it was, which is what is tested."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import require_sshd
from tests.e2e.controller import Place
from tests.e2e.node import Foreign, NodeShelf, SshNode

Measured = Callable[[str, float, float], None]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeShelf]:
    require_sshd()
    with NodeShelf(lambda: tmp_path_factory.mktemp("sshd")) as made:
        yield made


@pytest.fixture
def node(shelf: NodeShelf) -> Iterator[SshNode]:
    """A node that is as it was found. The test that leaves it otherwise fails; the next one gets a fresh node."""
    taken = shelf.take()
    yield taken
    shelf.give_back(taken)


@pytest.fixture
def foreign(node: SshNode) -> Iterator[Foreign]:
    """Somebody else's process; it must outlive the test."""
    other = Foreign(node)
    try:
        yield other
        assert other.alive, "a process that is not ours was ended"
    finally:
        other.close()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Where the test types its commands."""
    return Place(tmp_path / "here")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Place:
    """Another folder, another home, no results."""
    return Place(tmp_path / "elsewhere")


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> Measured:
    """`measured(what, seconds, bar)`: printed, kept in the report, and checked against the bar."""

    def check(what: str, seconds: float, bar: float) -> None:
        record_property(what, round(seconds, 3))
        print(f"measured: {what}: {seconds:.2f} s (bar {bar:g} s)")
        assert seconds <= bar, f"{what}: {seconds:.2f} s, the bar is {bar:g} s"

    return check


@pytest.fixture
def fresh_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., SshNode]]:
    """`fresh_node(options)`: a node of the test's own."""
    require_sshd()
    with ExitStack() as stack:
        yield lambda *options: stack.enter_context(SshNode(tmp_path_factory.mktemp("sshd"), *options))
