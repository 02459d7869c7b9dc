"""`dynspec demo --node-only` says what to type, and a signal ends it without a trace."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.config import load_experiment
from orchestrator.demo.node import DemoNode, NodeOptions
from orchestrator.errors import DynspecError, UsageError
from tests.cli.command import COMMAND, ROOT


def test_without_its_ssh_server_nothing_is_built_and_no_index_is_asked_for_dynspec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "asyncssh", None)  # as where it is not installed
    node = DemoNode(NodeOptions())
    with pytest.raises(UsageError) as refused, node:
        pass
    assert refused.value.help.startswith("pip install asyncssh, or dynspec's wheel file")
    assert not node.root.exists()


def test_a_node_whose_ssh_server_was_killed_says_so_with_its_last_words() -> None:
    node = DemoNode(NodeOptions())
    log = node.root / "sshserver.log"
    node._server = subprocess.Popen(
        ["/bin/sh", "-c", f"echo out of memory > {log}; kill -9 $$"], stdin=subprocess.PIPE, text=True
    )
    try:
        with pytest.raises(DynspecError, match=r"the embedded SSH server has ended \(SIGKILL\)") as ended:
            node.wait()
    finally:
        node.close()
    assert ended.value.details == ("out of memory",)
    assert not node.root.exists()


def lines_until(start: str, node: subprocess.Popen[str]) -> Iterator[str]:
    assert node.stdout is not None
    for line in node.stdout:
        yield line
        if line.startswith(start):
            return


def test_a_node_to_try_things_on_says_what_to_type_and_ends_with_a_signal(tmp_path: Path) -> None:
    command = [*COMMAND, "demo", "--node-only"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=env) as node:
        try:
            told = "".join(lines_until("  dynspec run FILE", node))
            copied = re.search(r"^  cp (\S+) mine\.yaml", told, re.M)
            assert copied, told
            text = Path(copied[1]).read_text()
            experiment = load_experiment(text, name=copied[1]).experiment
        finally:
            node.send_signal(signal.SIGTERM)
        assert node.stdout is not None
        rest = node.stdout.read()
    assert f"dynspec status {experiment.node.host} --ssh-config {experiment.node.ssh_config}" in told
    assert "--set" not in text
    assert text.splitlines()[1].startswith("schema: 1")
    assert node.returncode == 0
    assert "its files are gone" in rest
    assert not Path(copied[1]).exists()


START = """\
import os, signal, sys
class Finder:
    def find_spec(self, name, *more):
        if name == "asyncssh":  # the first thing that a node needs once its folder is made
            print(*os.listdir(os.environ["TMPDIR"]), flush=True)
            os.kill(os.getpid(), signal.SIGTERM)
sys.meta_path.insert(0, Finder())
from orchestrator.cli import main
main()
"""


@pytest.mark.parametrize("words", [(), ("--node-only",)])
def test_a_signal_ends_a_node_without_a_trace_while_it_still_starts(
    words: tuple[str, ...],
) -> None:
    command = [sys.executable, "-c", START, "demo", *words]
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a longer name would not be used
        env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": folder}
        ended = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env)
        left = os.listdir(folder)
    assert ended.stdout.startswith("dynspec-demo-")
    assert (ended.returncode, ended.stderr) == (143, "dynspec: interrupted; the node was not touched\n")
    assert left == []
