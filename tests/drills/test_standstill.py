"""The drills of `make drills` hang on this: a command line that stops itself, and goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.e2e.node import process_state


def test_a_command_line_stands_still_once_it_has_said_a_text_and_goes_on() -> None:
    words = [sys.executable, "-m", "tests.drills.standstill", '"$schema"', "schema"]
    root = Path(__file__).parents[2]
    with subprocess.Popen(words, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 30
        while process_state(process.pid) != "T":
            assert process.poll() is None, "it ended without standing still"
            assert time.monotonic() < deadline
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGCONT)
        said, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert '"$schema"' in said
