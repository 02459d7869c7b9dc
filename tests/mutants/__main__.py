"""`make mutants`: each named fault in a copy of the tree, and the test that turns red. Survivors fail the command.

Words on the command line choose mutants whose name has them.
"""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from tests.mutants.table import ROOT, Mutant, mutants

WORKERS = 2
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".cache", "results", "__pycache__", ".*_cache")
RED, NOT_RUN = 1, (2, 3, 4, 5)  # pytest's exit codes
LIMIT_S = 240


class Copy:
    """A copy of the tree in which one mutant at a time is put and taken out."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        shutil.copytree(ROOT, self.root, ignore=LEFT_OUT, symlinks=True)
        (self.root / ".cache").symlink_to(ROOT / ".cache")

    def pytest(self, tests: tuple[str, ...], *words: str) -> tuple[int, str]:
        """Exit code, and the first test that failed."""
        argv = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "--tb=no",
            "-rf",
            *words,
        ]
        env = {"PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [*argv, *tests],
            cwd=self.root,
            env={**_environment(), **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        red = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return done.returncode, red[0].split(" - ")[0].split("::")[-1] if red else done.stdout[-2000:]

    def try_out(self, mutant: Mutant) -> tuple[bool, str]:
        """Whether it was caught, and by what."""
        originals = {file: (self.root / file).read_text() for file in mutant.files}
        try:
            for file, text in originals.items():
                (self.root / file).write_text(mutant.applied(file, text))
            code, what = self.pytest(mutant.tests)
        finally:
            for file, text in originals.items():
                (self.root / file).write_text(text)
        return code == RED, f"{what} (pytest exit code {code})" if code in NOT_RUN else what


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}


def main(words: list[str]) -> int:
    chosen = [mutant for mutant in mutants() if all(word in mutant.name for word in words)]
    began = time.monotonic()
    with ExitStack() as stack:
        free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for _ in range(WORKERS):
            free.put(Copy(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dynspec-mutants-")))))
        if not _green(free, sorted({test for mutant in chosen for test in mutant.tests})):
            return 2
        survivors = list(_tried(chosen, free))
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants caught, {time.monotonic() - began:.0f} s")
    return 1 if survivors else 0


def _green(free: queue.SimpleQueue[Copy], tests: list[str]) -> bool:
    """A test that is red without a mutant proves nothing."""
    copy = free.get()
    code, what = copy.pytest(tuple(tests), "-n", str(WORKERS))
    free.put(copy)
    if code:
        print(f"not green without a mutant: {what}")
    return code == 0


def _tried(chosen: list[Mutant], free: queue.SimpleQueue[Copy]) -> Iterator[Mutant]:
    """The survivors, told as they are found."""

    def work(mutant: Mutant) -> tuple[Mutant, bool, str, float]:
        copy = free.get()
        began = time.monotonic()
        try:
            return mutant, *copy.try_out(mutant), time.monotonic() - began
        finally:
            free.put(copy)

    with ThreadPoolExecutor(WORKERS) as pool:
        for mutant, caught, what, seconds in pool.map(work, chosen):
            print(
                f"{'caught  ' if caught else 'SURVIVED'} {seconds:5.1f} s  {mutant.name}: {what}", flush=True
            )
            if not caught:
                yield mutant


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
