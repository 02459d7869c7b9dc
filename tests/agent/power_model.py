"""What a disk may hold after a power cut: only what was synced is sure, the rest may be there or not.

The recorder listens to the calls that change folders and to fsync, and keeps two pictures: what the processes see, and
what is sure to be on the disk. At every moment it can tell the pictures that a cut may leave: nothing of what is
pending, all of it (names without their unsynced bytes), or any one pending change alone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

Picture = dict[str, tuple[bytes, int] | None]  # path -> (bytes, mode); None is a folder


@dataclass
class Inode:
    """`synced` is what is sure of a file: its bytes and mode at the last fsync. None for a folder."""

    synced: tuple[bytes, int] | None


@dataclass
class PendingChange:
    """A change of names in one folder that no fsync of that folder has made sure yet."""

    folder: str
    links: dict[str, Inode]
    unlinks: tuple[str, ...]

    def apply(self, names: dict[str, Inode]) -> None:
        for path in self.unlinks:
            names.pop(path, None)
        names.update(self.links)


@dataclass
class Recorder:
    root: str
    live: dict[str, Inode] = field(default_factory=dict)
    sure: dict[str, Inode] = field(default_factory=dict)
    pending: list[PendingChange] = field(default_factory=list)
    moments: list[tuple[str, list[Picture]]] = field(default_factory=list)

    @classmethod
    def of(cls, root: Path) -> Recorder:
        """Everything that lies under `root` now is sure."""
        recorder = cls(str(root))
        for path in sorted(root.rglob("*")):
            inode = Inode(None if path.is_dir() else (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)))
            recorder.live[str(path)] = recorder.sure[str(path)] = inode
        return recorder

    def linked(self, path: str, inode: Inode, *unlinks: str) -> None:
        self.change(PendingChange(os.path.dirname(path), {path: inode}, unlinks))

    def unlinked(self, path: str) -> None:
        self.change(PendingChange(os.path.dirname(path), {}, (path,)))

    def change(self, change: PendingChange) -> None:
        change.apply(self.live)
        self.pending.append(change)
        self.moment(f"{sorted(change.links)} in, {change.unlinks} out")

    def synced(self, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        info = os.fstat(descriptor)
        if stat.S_ISDIR(info.st_mode):
            for change in [item for item in self.pending if item.folder == path]:
                change.apply(self.sure)
                self.pending.remove(change)
        elif path in self.live:
            self.live[path].synced = (Path(path).read_bytes(), stat.S_IMODE(info.st_mode))
        self.moment(f"synced {path}")

    def moment(self, what: str) -> None:
        """The pictures that a cut right here may leave."""
        choices = [[], self.pending, *([change] for change in self.pending)]
        self.moments.append((what, [self._picture(chosen) for chosen in choices]))

    def _picture(self, chosen: list[PendingChange]) -> Picture:
        names = dict(self.sure)
        for change in chosen:
            change.apply(names)
        return {path: names[path].synced for path in sorted(names) if self._reachable(path, names)}

    def _reachable(self, path: str, names: dict[str, Inode]) -> bool:
        folder = os.path.dirname(path)
        return folder == self.root or (folder in names and self._reachable(folder, names))

    def pictures(self) -> Iterator[tuple[str, Picture]]:
        """Each different picture once, with the moment it belongs to."""
        seen = set()
        for what, pictures in self.moments:
            for picture in pictures:
                key = tuple(picture.items())
                if key not in seen:
                    seen.add(key)
                    yield what, picture


@contextlib.contextmanager
def recording(root: Path, patch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """Listens to this process's calls of `os` on paths under `root`."""
    recorder = Recorder.of(root)
    with patch.context() as patched:

        def listen(name: str, around: Callable[..., Any]) -> None:
            real = getattr(os, name)

            def call(*args: Any, **options: Any) -> Any:
                return around(real, *args, **options)

            patched.setattr(os, name, call)

        def place(path: Any, dir_fd: int | None = None) -> str:
            base = os.getcwd() if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}")
            return os.path.join(base, os.fspath(path))

        def inside(path: str) -> bool:
            return path.startswith(recorder.root + "/")

        def opening(real: Any, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            full = place(path, dir_fd)
            fresh = flags & os.O_CREAT and inside(full) and not os.path.lexists(full)
            descriptor: int = real(path, flags, mode, dir_fd=dir_fd)
            if fresh:
                recorder.linked(full, Inode((b"", 0o600)))
            return descriptor

        def making(real: Any, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
            real(path, mode, dir_fd=dir_fd)
            if inside(place(path, dir_fd)):
                recorder.linked(place(path, dir_fd), Inode(None))

        def replacing(real: Any, source: Any, target: Any) -> None:
            real(source, target)
            if inside(place(target)):
                recorder.linked(place(target), recorder.live[place(source)], place(source))

        def removing(real: Any, path: Any, *, dir_fd: int | None = None) -> None:
            full = place(path, dir_fd)
            real(path, dir_fd=dir_fd)
            if inside(full):
                recorder.unlinked(full)

        def syncing(real: Any, descriptor: int) -> None:
            real(descriptor)
            recorder.synced(descriptor)

        for name, around in (
            ("open", opening),
            ("mkdir", making),
            ("replace", replacing),
            ("unlink", removing),
            ("rmdir", removing),
            ("fsync", syncing),
        ):
            listen(name, around)
        yield recorder


def put(root: Path, picture: Picture) -> None:
    """Makes the files under `root` exactly the picture."""
    for path in root.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name, content in picture.items():
        path = Path(name)
        if content is None:
            path.mkdir(mode=0o700)
        else:
            path.write_bytes(content[0])
            path.chmod(content[1])
