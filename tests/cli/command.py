"""The real command as a process of its own: what a person types, and what comes back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMAND = (sys.executable, "-c", "from orchestrator.cli import main; main()")
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def value(self) -> Any:
        return json.loads(self.out)


def dynspec(*words: object, cwd: Path = ROOT, **env: str) -> Done:
    """Runs to its end; `cwd` is where it is typed."""
    done = subprocess.run(
        [*COMMAND, *map(str, words)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return Done(done.returncode, done.stdout, done.stderr)


# An experiment on a node of this machine; a test that listens at `port` decides what it answers.
SILENT = """\
schema: 1
name: silent
node: {{host: "ann@127.0.0.1:{port}", python: /usr/bin/python3}}
server: {{args: {{model-path: /models/m}}}}
arms: {{plain: {{}}}}
sweep: {{concurrency: [1]}}
"""
