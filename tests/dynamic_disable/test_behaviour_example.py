"""The committed answers of real servers still say what the pages claim: tables made anew from them are the same."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "results" / "examples" / "h200-behaviour-0.5.11"
PAIRS = {
    "one-gpu": [("none", "v2"), ("text", "text-v2"), ("small", "small-v2")],
    "two-gpus": [("none", "v2"), ("serial", "v1")],
}


@pytest.mark.parametrize("name", PAIRS)
def test_the_table_comes_from_the_answers_and_no_request_differs(name, tmp_path):
    with tarfile.open(EXAMPLE / f"{name}.tar.xz") as archive:
        for member in archive:
            (tmp_path / member.name).write_bytes(archive.extractfile(member).read())
    command = [sys.executable, str(ROOT / "tests" / "gpu" / "behaviour_probe.py"), "compare"]
    tables = [
        subprocess.run(
            [*command, *(str(tmp_path / f"{server}.json") for server in pair)],
            capture_output=True,
            text=True,
            check=True,  # it fails where a request differs or a check does
        ).stdout
        for pair in PAIRS[name]
    ]
    assert "".join(tables) == (EXAMPLE / f"{name}.txt").read_text()
