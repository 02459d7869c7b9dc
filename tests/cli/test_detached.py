"""`--detach` before the run goes on by itself: the terminal still decides."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

from tests.cli.command import COMMAND, ROOT, SILENT


def detached(tmp_path: Path, silent: socket.socket) -> subprocess.Popen[str]:
    (tmp_path / "e.yaml").write_text(SILENT.format(port=silent.getsockname()[1]))
    return subprocess.Popen(
        [*COMMAND, "run", "e.yaml", "--detach"],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_ctrl_c_while_the_node_does_not_answer_ends_the_run_that_would_have_gone_on(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        process = detached(tmp_path, silent)
        try:
            silent.settimeout(40)
            peer, _ = silent.accept()  # it is connecting
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=40)
            peer.close()
        finally:
            process.kill()
    assert process.returncode == 130, out + err
    assert out.endswith("interrupted; the node was not touched.\n"), out + err
    assert list((tmp_path / "results").iterdir()) == []


def test_a_run_that_is_refused_after_its_terminal_died_leaves_nothing_behind(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        process = detached(tmp_path, silent)
        silent.settimeout(40)
        peer, _ = silent.accept()
        assert [path.suffix for path in (tmp_path / "results").iterdir()] == [".log"]
        process.kill()
        process.communicate()
        peer.close()
    deadline = time.monotonic() + 40
    while list((tmp_path / "results").iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
