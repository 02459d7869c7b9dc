"""A server of some hundred short-lived processes: their ends come to the guardian all at once."""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.agent.pack import build_zipapp
from orchestrator.remote.bootstrap import Blob
from orchestrator.remote.node import Node
from tests.e2e.node import gone_at, process_state
from tests.sshd import Sshd, free_port

pytestmark = pytest.mark.sshd

RUN_ID = f"20260101-000000-storm-{secrets.token_hex(4)}"  # unique: its processes are told by it
WAVES, CHILDREN = 2, 400
STREAM_S = 4.0

# Processes that left the server's tree, so that the guardian adopts them: some hundred that end in one instant, and
# then one after the other as fast as they can be made, which is what makes handlers of a signal interrupt each other.
SERVER = f"""
import os, sys, time
def stream(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if os.fork() == 0:
            for _ in range(20):
                if os.fork() == 0:
                    os._exit(0)
            os._exit(0)
        os.wait()
def wave(count):
    hold_read, hold_write = os.pipe()
    if os.fork() == 0:
        os.close(hold_write)
        for _ in range(count):
            if os.fork() == 0:
                os.read(hold_read, 1)
                os._exit(0)
        os._exit(0)
    os.wait()
    os.close(hold_read)
    return hold_write
for number in range({WAVES}):
    held = wave({CHILDREN})
    time.sleep(0.3)
    os.close(held)
    time.sleep(0.3)
stream({STREAM_S})
last = wave({CHILDREN})
print("holding", flush=True)
time.sleep(600)
"""


def _start(node: Node, sshd: Sshd) -> int:
    node.guard(run_id=RUN_ID, holder="tests", workdir=str(sshd.home / "work"), lease_s=60)
    log = f"{sshd.home}/work/{RUN_ID}/logs/storm-1.log"
    argv = (sys.executable, "-c", SERVER)
    return node.start(argv, cwd="~", env={}, log=log, port=free_port(), arm="storm", boot=1).pid


def _left() -> list[int]:
    """Living processes of the run, told by the mark in their environment."""
    mark = f"DYNSPEC_RUN={RUN_ID}.".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in entry.read_bytes() and process_state(int(entry.parent.name)) not in ("", "Z"):
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Whatever the test left is ended, so that a guardian that failed does not fill the machine."""
    yield
    for pid in _left():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


@pytest.mark.usefixtures("nothing_left")
def test_the_guardian_survives_hundreds_of_children_that_end_at_once(node_sshd: Sshd) -> None:
    settings = node_sshd.settings()
    blob = Blob.of("agent", build_zipapp())
    with Node.connect(node_sshd.name, settings=settings, blobs=[blob], python=sys.executable) as node:
        server = _start(node, node_sshd)
        deadline = time.monotonic() + 60
        while "holding" not in node.server().log_tail:  # answered throughout the storm
            assert time.monotonic() < deadline
            time.sleep(0.1)
        guardian = node.status().lock
        assert guardian is not None
        assert len(_left()) > CHILDREN
        os.kill(server, signal.SIGKILL)  # its end ends the last wave too: whoever held the pipe is gone
        gone_at(server)
        state = node.server()
        assert (state.alive, state.signal) == (False, signal.SIGKILL)
        began = time.monotonic()
        done = node.unwind(stop_s=10, reason="done")
        print(f"measured: unwind after the storm: {time.monotonic() - began:.2f} s")
        assert done.verified
        gone_at(guardian.guardian_pid)
    journal = node_sshd.dynspec_home / "runs" / RUN_ID / "journal.jsonl"
    assert json.loads(journal.read_text().splitlines()[-1])["kind"] == "close"
    assert _left() == []
    log = (node_sshd.dynspec_home / "runs" / RUN_ID / "guardian.log").read_text()
    assert "Traceback" not in log
