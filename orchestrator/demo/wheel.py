"""SGLang's source tree from its wheel: fetched once by pip, unpacked once, never installed.

Nothing of it is imported here; the tree is what patches are tried on where there is no GPU node. It needs
none of SGLang's dependencies, and the platform tags are given, so that it works on any machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from orchestrator.errors import DynspecError

_TAGS = ("manylinux_2_34_x86_64", "manylinux_2_28_x86_64", "manylinux2014_x86_64", "any")
_ABIS = ("cp312", "abi3", "none")


def default_cache() -> Path:
    """`.cache` of a checkout, else the user's cache folder."""
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "pyproject.toml").is_file():
        return checkout / ".cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dynspec"


def wheel_tree(version: str, cache: Path | None = None, *, timeout_s: float = 300.0) -> Path:
    """The unpacked `sglang` package folder of that release. Shared by all callers: copy it before changing it.

    Raises DynspecError when pip cannot get the wheel.
    """
    root = cache or default_cache()
    tree = root / "trees" / version
    if not (tree / "sglang").is_dir():
        _unpack(fetch_wheel(version, root, timeout_s=timeout_s), tree)
    return tree / "sglang"


def fetch_wheel(version: str, cache: Path | None = None, *, timeout_s: float = 300.0) -> Path:
    """The wheel file of `sglang==version` in the cache, downloaded if it is not there."""
    folder = (cache or default_cache()) / "wheels"
    # The version is a whole field of the name: 0.5.12 must not find 0.5.12.post1.
    if found := sorted(folder.glob(f"sglang-{version}-*.whl")):
        return found[0]
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as scratch:
        _pip_download(version, Path(scratch), timeout_s)
        (wheel,) = Path(scratch).glob("*.whl")
        return Path(shutil.move(wheel, folder / wheel.name))


def download_argv(version: str, folder: Path) -> tuple[str, ...]:
    """The words of the pip command that downloads the wheel alone into `folder`."""
    tags = [word for tag in _TAGS for word in ("--platform", tag)]
    abis = [word for abi in _ABIS for word in ("--abi", abi)]
    return (
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp"),
        *(*abis, *tags, "--dest", str(folder), f"sglang=={version}"),
    )


def _pip_download(version: str, folder: Path, timeout_s: float) -> None:
    try:
        done = subprocess.run(
            download_argv(version, folder),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise DynspecError(f"pip did not get sglang {version} within {timeout_s:.0f} s") from error
    if done.returncode != 0:
        raise DynspecError(
            f"pip could not get the wheel of sglang {version} (exit {done.returncode})",
            details=tuple(done.stderr.strip().splitlines()[-5:]),
            help=f"check that pip reaches its index; the wheel may also be put into {folder.parent} by hand",
        )


def _unpack(wheel: Path, tree: Path) -> None:
    """Unpack beside `tree` and move into place at once, so that a tree that is there is a whole one."""
    tree.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=tree.parent, prefix=f".{tree.name}-"))
    try:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(scratch)
        try:
            scratch.rename(tree)
        except OSError:
            # Another process was first; its tree is the same.
            if not (tree / "sglang").is_dir():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
