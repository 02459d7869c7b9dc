"""A set that fails half way leaves the tree as it was, at once and not only at the end of the run."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from orchestrator.agent import apply, journal, places, procs
from orchestrator.agent.wire import AgentError
from tests.agent.client import change
from tests.agent.conftest import BANNER, WORKER, Node

LIMIT_BYTES = 256 * 1024


@contextmanager
def no_file_larger_than(limit: int) -> Iterator[None]:
    """What this process writes beyond it fails, as on a disk that fills up in that moment."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_fails_after_others_leaves_no_staged_file_and_no_change(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNSPEC_HOME", str(node.home))
    before = node.files()
    opened = journal.Journal.create(
        "run-1",
        boot_id=procs.boot_id(),
        machine_id=procs.machine_id(),
        pid_namespace=procs.pid_namespace(),
        guardian={"pid": 4_000_000, "start_time": 1},
        holder="ann@laptop:7",
        workdir=str(node.workdir),
        stop_s=5.0,
        marker="DYNSPEC_RUN=run-1.undo",
    )
    places.private_folder(places.work_folder(str(node.workdir), "run-1"))
    small = change(node.banner, BANNER, b"small\n")
    large = change(node.worker, WORKER, b"#" * (2 * LIMIT_BYTES))
    fresh = change(node.package / "new" / "fresh.py", None, b"fresh\n")
    with no_file_larger_than(LIMIT_BYTES), pytest.raises(AgentError) as refused:
        apply.apply(opened, "set", apply.parse([fresh, small, large]), [])
    opened.close_file()
    assert "cannot write beside" in refused.value.message
    assert node.files() == before
    assert not (node.package / "new").exists()
