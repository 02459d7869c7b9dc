"""What a server of a GPU run logs when something stops it: tests/gpu/sitecustomize.py in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

GPU = Path(__file__).resolve().parents[1] / "gpu"


def logged(program: str, **limits: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(GPU), **limits}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    return done.stderr


def test_a_wait_and_a_collection_are_logged_with_their_length_and_place() -> None:
    wait = "import gc, time\ndef wait(): time.sleep(0.12)\nwait()\ngc.collect()\ntime.sleep(0.03)"
    said = logged(wait, STALL_LOG_MS="50", GC_LOG_MS="0.001")
    assert "in wait <string>:2 < <module> <string>:3" in said
    assert "gc: generation 2" in said


def test_without_limits_nothing_is_watched() -> None:
    assert logged("import threading, gc; assert threading.active_count() == 1 and not gc.callbacks") == ""
