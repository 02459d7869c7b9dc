"""A signal ends a command in words, from the first import to the last look at a node."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import errors
from orchestrator.cli.app import app
from orchestrator.runner.signals import WATCHED
from tests.cli.command import COMMAND, ROOT, SILENT

UNTOUCHED = "dynspec: interrupted; the node was not touched\n"
EARLY = """\
import os, signal, sys
class Finder:
    def find_spec(self, name, *more):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from orchestrator.cli import main
main()
"""


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ("smoke e.yaml", signal.SIGTERM),
        ("plan e.yaml", signal.SIGINT),
        ("doctor ann@127.0.0.1:{port}", signal.SIGTERM),
        ("status ann@127.0.0.1:{port}", signal.SIGHUP),
    ],
)
def test_a_command_that_only_reads_says_that_the_node_was_not_touched(
    words: str, number: int, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        (tmp_path / "e.yaml").write_text(SILENT.format(port=port))
        process = subprocess.Popen(
            [*COMMAND, *words.format(port=port).split()],
            cwd=tmp_path,
            env={**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # the tests may run under nohup
        )
        try:
            silent.settimeout(10)
            peer, _ = silent.accept()  # it is connecting, and never answered
            process.send_signal(number)
            _, err = process.communicate(timeout=20)
            peer.close()
        finally:
            process.kill()
    assert (process.returncode, err) == (128 + number, UNTOUCHED)


def test_ctrl_c_while_python_still_imports_is_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EARLY, "--version"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, "dynspec: interrupted\n")


def test_the_exit_code_of_every_signal_that_ends_a_run_is_listed_wherever_exit_codes_are() -> None:
    texts = {
        "README.md": (ROOT / "README.md").read_text(encoding="utf-8"),
        "docs/ci.md": (ROOT / "docs" / "ci.md").read_text(encoding="utf-8"),
        "--help": str(app.info.epilog),
        "errors.py": str(errors.__doc__),
    }
    codes = [str(128 + number) for number in WATCHED]
    missing = [(where, code) for where, text in texts.items() for code in codes if code not in text]
    assert missing == []
