"""What may happen to the machine under a run: a disk without space, a file system that became read-only, a clock that
jumps, a reboot. Mounts need root and the clock a C compiler: a cell that lacks one says so, and fails in CI.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Self

import pytest

from orchestrator.demo import processes
from orchestrator.demo.node import NodeOptions
from tests.e2e.node import NodeShelf, SshNode

DISK = "640m"  # a run asks for some 500 MiB
NO_MOUNT = "small file systems cannot be mounted here (needs root and CAP_SYS_ADMIN)"
NO_COMPILER = "no C compiler on this machine (apt-get install gcc libc6-dev)"


def require(found: object, why: str) -> None:
    if not found:
        if os.environ.get("CI"):
            pytest.fail(f"{why}; in CI these tests must run", pytrace=False)
        pytest.skip(why)


@cache
def can_mount() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        if _mount("-t", "tmpfs", "-o", "size=64k", "dynspec-test", folder):
            return _umount(folder)
    return False


def _mount(*words: str) -> bool:
    return subprocess.run(["mount", *words], capture_output=True, check=False).returncode == 0


def _umount(path: str | Path) -> bool:
    return subprocess.run(["umount", "-l", str(path)], capture_output=True, check=False).returncode == 0


class OddShelf(NodeShelf):
    """One node of a kind for many tests."""

    def __init__(self, make: Callable[[], SshNode]) -> None:
        super().__init__(Path)
        self._make = make

    def take(self) -> SshNode:
        if self._node is None:
            self._node = self._make().__enter__()
        return self._node


class SmallDiskNode(SshNode):
    """All of the node lies on a file system of its own: tree, registry, work folder, GPU notes."""

    def __enter__(self) -> Self:
        assert _mount("-t", "tmpfs", "-o", f"size={DISK},mode=0700", "dynspec-test", str(self.demo.root))
        return super().__enter__()

    def __exit__(self, *words: object) -> None:
        super().__exit__(*words)
        assert _umount(self.demo.root)
        self.demo.root.rmdir()

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """Not one byte is left, at once: the disk shrinks to what lies on it."""
        for _ in range(100):  # while somebody writes, what is used grows before the size is set
            if _mount("-o", f"remount,size={self._used_bytes()}", str(self.demo.root)):
                break
        else:
            raise AssertionError("the disk cannot be made smaller")
        try:
            yield
        finally:
            assert _mount("-o", f"remount,size={DISK}", str(self.demo.root))

    def _used_bytes(self) -> int:
        disk = os.statvfs(self.demo.root)
        return (disk.f_blocks - disk.f_bfree) * disk.f_frsize

    @contextlib.contextmanager
    def read_only(self) -> Iterator[None]:
        """The serving tree, by a mount over itself."""
        assert _mount("--bind", str(self.package), str(self.package))
        assert _mount("-o", "remount,ro,bind", str(self.package))
        try:
            yield
        finally:
            assert _umount(self.package)


class ClockNode(SshNode):
    """Every process of a login sees the wall clock as many seconds off as were set at that moment."""

    def __init__(self, folder: Path) -> None:
        self.clock = folder / "clock"
        self.set_clock(0)
        shim = build_wallclock(folder)
        super().__init__(
            folder, NodeOptions(env={"LD_PRELOAD": str(shim), "WALLCLOCK_FILE": str(self.clock)})
        )

    def set_clock(self, offset_s: int) -> None:
        data = struct.pack("=q", offset_s)
        if self.clock.exists():
            with self.clock.open("r+b") as stream:  # in place: it is mapped
                stream.write(data)
        else:
            self.clock.write_bytes(data)


def compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc")


def build_wallclock(folder: Path) -> Path:
    shim = folder / "wallclock.so"
    source = Path(__file__).with_name("wallclock.c")
    subprocess.run([str(compiler()), "-shared", "-fPIC", "-O1", "-o", shim, source, "-ldl"], check=True)
    return shim


def go_down(node: SshNode) -> None:
    """As a machine does: the SSH server and every process of ours at once. Files stay."""
    for process in processes.of_folder(node.demo.root):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    node.sshd.stop()


def come_up(node: SshNode) -> None:
    """Another boot of the same machine."""
    node.sshd.start_again(DYNSPEC_TEST_BOOT_ID=secrets.token_hex(8))


def original_of(node: SshNode, path: Path) -> bytes | None:
    """The backup that the open run has of a file, None when it has none."""
    for records in node.journals().values():
        copies = [record["copy"] for record in records if record.get("path") == str(path)]
        if records[-1]["kind"] != "close" and copies:
            return Path(copies[0]).read_bytes()
    return None
