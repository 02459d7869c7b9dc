"""What spoils a measurement on a GPU: somebody else's process there, and errors of the driver."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.agent import trouble

GPU, OTHER = "GPU-11111111-aaaa", "GPU-22222222-bbbb"


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], None]:
    """A `nvidia-smi` that lists these processes."""

    def lists(lines: list[str]) -> None:
        path = tmp_path / "nvidia-smi"
        path.write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(lines) + "\nEND\n")
        path.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return lists


def test_another_process_counts_where_ours_computes_and_nowhere_else(tool) -> None:
    mine, not_mine = os.getpid(), os.getppid()
    tool([f"{GPU}, {mine}", f"{GPU}, {not_mine}", f"{GPU}, 2999999999", "a warning line"])
    assert trouble.foreign_pids() == [not_mine]  # the last pid is not seen here, so it says nothing
    tool([f"{GPU}, {mine}", f"{OTHER}, {not_mine}"])
    assert trouble.foreign_pids() == []
    tool(["No running processes found"])
    assert trouble.foreign_pids() == []


def test_new_driver_errors_are_read_once_and_those_of_others_left_out(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("3,100,1,-;NVRM: Xid (PCI:0000:3b:00): 48, an old one\n")
    log = trouble.KernelLog(str(path))
    assert (log.readable, log.xids()) == (True, [])
    with path.open("a") as stream:
        stream.write("6,101,2,-;usb 1-1: new device\n")
        stream.write(
            "3,102,3,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off\n"
        )
        stream.write(
            f"3,103,4,-;NVRM: Xid (PCI:0000:3b:00): 31, pid={os.getpid()}, name=python3, Ch 00000008\n"
        )
        stream.write("3,104,5,-;NVRM: Xid (PCI:0000:5e:00): 13, pid=1, name=theirs, Graphics Exception\n")
        stream.write("3,105,6,-;NVRM: Xid (PCI:0000:3b:00): 63, Row Remapper\n")
    assert log.xids() == [79, 31, 63]
    assert log.xids() == []
    log.close()


def test_a_kernel_log_that_may_not_be_read_says_nothing(tmp_path: Path) -> None:
    log = trouble.KernelLog(str(tmp_path / "none"))
    assert (log.readable, log.xids()) == (False, [])
