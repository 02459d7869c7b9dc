"""The real agent and guardian over a real sshd: every typed call is decoded from what they really answer."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from orchestrator.agent import pack
from orchestrator.errors import ConnectionLost, NodeBusy, RemoteError
from orchestrator.load import pack as load_pack
from orchestrator.model.experiment import Node as Choice
from orchestrator.model.facts import Tree
from orchestrator.remote.bootstrap import Blob
from orchestrator.remote.channel import Event
from orchestrator.remote.fetch import FetchFile
from orchestrator.remote.node import Node
from orchestrator.remote.refusals import before_acting
from tests.sshd import Sshd, free_port

BLOBS = [Blob(pack.name(), pack.build_zipapp()), Blob.of("loadgen", load_pack.build_zipapp())]
ORIGINAL = "LIMIT = 1\n"
PATCHED = "LIMIT = 2\n"
RUN_ID = "20260101-000000-test-0001"


class Site:
    """A node with a toy package, and the arguments that point at it."""

    def __init__(self, sshd: Sshd) -> None:
        self.sshd = sshd
        self.folder = sshd.home / "site"
        self.file = self.folder / "toyserve/limits.py"
        self.file.parent.mkdir(parents=True)
        (self.folder / "toyserve/__init__.py").write_text("__version__ = '7'\n")
        self.file.write_text(ORIGINAL)
        self.workdir = str(sshd.home / "work")
        self.port = free_port()

    def connect(self, **settings: object) -> Node:
        return Node.connect(
            self.sshd.name, settings=self.sshd.settings(**settings), blobs=BLOBS, python=sys.executable
        )

    @property
    def place(self) -> dict[str, object]:
        return {"python": sys.executable, "cwd": str(self.folder), "env": {}, "package": "toyserve"}

    def tree(self, node: Node) -> Tree:
        facts = node.facts(**self.place, files=["limits.py"], port=self.port, workdir=self.workdir)
        assert facts.tree is not None, facts.tree_problem
        return facts.tree

    def guard(self, node: Node, lease_s: float = 60) -> None:
        node.guard(run_id=RUN_ID, holder="tests", workdir=self.workdir, lease_s=lease_s)

    def change(self) -> Mapping[str, object]:
        return {
            "path": str(self.file),
            "before_sha256": hashlib.sha256(ORIGINAL.encode()).hexdigest(),
            "after_sha256": hashlib.sha256(PATCHED.encode()).hexdigest(),
            "data": PATCHED.encode(),
        }

    def start(self, node: Node, *argv: str) -> int:
        log = f"{self.workdir}/{RUN_ID}/logs/arm-1.log"
        return node.start(argv, cwd="~", env={}, log=log, port=self.port, arm="arm", boot=1).pid


@pytest.fixture
def site(node_sshd) -> Iterator[Site]:
    made = Site(node_sshd)
    yield made
    with made.connect() as node:  # whatever the test left is put back, so that no guardian outlives it
        node.recover("restore", force=True)
    assert made.file.read_text() == ORIGINAL


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def wait_until(done, limit_s: float = 10.0) -> bool:
    deadline = time.monotonic() + limit_s
    while not done() and time.monotonic() < deadline:
        time.sleep(0.02)
    return done()


def test_facts_hello_and_status_are_typed(site) -> None:
    with site.connect() as node:
        assert node.hello().uid == os.getuid()
        tree = site.tree(node)
        assert (tree.package, tree.version) == ("toyserve", "7")
        assert tree.files[0].sha256 == hashlib.sha256(ORIGINAL.encode()).hexdigest()
        status = node.status()
        assert (status.lock, status.journals, status.server) == (None, (), None)
        assert node.holders().holders == status.holders


def test_file_contents_are_read_once_a_digest(site) -> None:
    with site.connect() as node:
        tree = site.tree(node)
        assert node.contents(tree.files) == {tree.files[0].absolute: ORIGINAL.encode()}
        site.file.unlink()  # gone; but what has that digest is known
        assert node.contents(tree.files) == {tree.files[0].absolute: ORIGINAL.encode()}
        site.file.write_text("LIMIT = 3\n")
        changed = site.tree(node).files
        site.file.write_text("LIMIT = 4\n")
        with pytest.raises(RemoteError) as refused:
            node.contents(changed)
        assert refused.value.code == "changed"
        assert node.read_files([str(site.folder / "none")])[0].data is None
    site.file.write_text(ORIGINAL)


def test_a_whole_run_by_typed_calls(site) -> None:
    with site.connect() as node:
        tree = site.tree(node)
        site.guard(node)
        smoke = node.smoke(
            **site.place,
            workdir=site.workdir,
            run_id=RUN_ID,
            package_path=tree.path,
            files={"limits.py": PATCHED.encode(), "new.py": b"print('hello')\n", "old.py": None},
            modules=["toyserve.limits", "toyserve.new"],
        )
        assert [item.state for item in smoke.imports] == ["loaded", "loaded"]
        assert all(item.ok for item in smoke.compile)
        assert node.apply("one", [site.change()]).changed == (str(site.file),)
        assert [file.state for file in node.verify()] == ["patched"]
        assert node.free(policy="own", rules=[], gpus="all", timeout_s=10).stopped == ()
        pid = site.start(node, sys.executable, "-m", "http.server", str(site.port), "--bind", "127.0.0.1")
        assert wait_until(lambda: answers(node, site.port))
        assert node.http("GET", site.port, "/nothing-here").status == 404
        state = node.server()
        assert (state.pid, state.alive, state.exit_code) == (pid, True, None)
        node.sample(1.0, f"{site.workdir}/{RUN_ID}/gpu.csv")
        node.sample(1.0, None)
        log = f"{site.workdir}/{RUN_ID}/logs/arm-1.log"
        assert b"nothing-here" in node.tail(log, 0).data
        assert wait_until(lambda: node.last_beat is not None and node.last_beat.server is not None)
        stopped = node.stop(timeout_s=10, gpu_free_s=5)
        assert stopped.signal == signal.SIGTERM
        assert not alive(pid)
        assert node.restore().restored == (str(site.file),)
        unwound = node.unwind(stop_s=5, reason="done")
        assert unwound.verified
        node.goodbye()
        got: list[bytes] = []
        (fetched,) = node.fetch([FetchFile(log)], lambda path, block: got.append(block))
        assert hashlib.sha256(b"".join(got)).hexdigest() == fetched.sha256
        node.clean(run_id=RUN_ID, workdir=site.workdir)
        assert node.status().lock is None


def answers(node: Node, port: int) -> bool:
    try:
        return node.http("GET", port, "/").status == 200
    except RemoteError:
        return False


def test_a_launch_returns_at_once_and_the_server_outlives_the_connection(site) -> None:
    node = site.connect()
    site.guard(node)
    began = time.monotonic()
    pid = site.start(node, "sh", "-c", "echo out; echo err >&2; sleep 300")
    assert time.monotonic() - began < 10
    node.close()
    with site.connect() as again:
        assert alive(pid)
        assert os.getsid(pid) == pid
        assert os.readlink(f"/proc/{pid}/fd/0") == "/dev/null"
        assert os.readlink(f"/proc/{pid}/fd/1") == os.readlink(f"/proc/{pid}/fd/2")
        attached = again.attach(holder="tests again")
        assert (attached.run_id, attached.server and attached.server.pid) == (RUN_ID, pid)
        assert again.unwind(stop_s=5, reason="done").stopped
        assert not alive(pid)


def test_the_end_of_the_server_is_an_event_with_its_code_and_last_lines(site) -> None:
    with site.connect() as node:
        site.guard(node)
        site.start(node, "sh", "-c", "printf 'bad \\377 byte\\n'; echo last words; exit 3")
        event = node.events.get(timeout=10)
        assert isinstance(event, Event)
        assert (event.name, event.data["exit_code"], event.data["log_tail"][-1]) == (
            "server_exit",
            3,
            "last words",
        )
        node.unwind(stop_s=5, reason="done")


def test_a_live_holder_is_busy_for_another_connection(site) -> None:
    with site.connect() as node, site.connect() as other:
        site.guard(node)
        with pytest.raises(RemoteError) as refused:
            other.guard(run_id="20260101-000000-test-0002", holder="other", workdir=site.workdir, lease_s=60)
        refusal = before_acting(refused.value, Choice("testnode", ""))
        assert isinstance(refusal, NodeBusy)
        assert RUN_ID in refusal.message
        node.unwind(stop_s=5, reason="done")


def test_a_node_that_froze_mid_run_is_put_back_over_a_new_connection(site) -> None:
    node = site.connect(lease_s=2.0, silence_s=1.5)
    site.guard(node)
    node.apply("one", [site.change()])
    pid = site.start(node, "sleep", "300")
    frozen = site.sshd.freeze()
    assert isinstance(node.events.get(timeout=10), ConnectionLost)
    with pytest.raises(ConnectionLost):
        node.server()
    with site.connect() as again:
        done = again.recover("restore", force=True)
        assert [(run.run_id, run.restored) for run in done.recovered] == [(RUN_ID, (str(site.file),))]
    assert not alive(pid)
    assert site.file.read_text() == ORIGINAL
    for session in frozen:
        os.kill(session, signal.SIGKILL)


def test_a_real_load_generator_goes_up_and_runs(site) -> None:
    with site.connect() as node:
        site.guard(node)
        site.start(node, sys.executable, "-m", "http.server", str(site.port), "--bind", "127.0.0.1")
        assert wait_until(lambda: answers(node, site.port))
        spec = {
            "schema": 1,
            "host": "127.0.0.1",
            "port": site.port,
            "endpoint": "/v1/completions",
            "requests": {"bodies": [{"prompt": "x", "stream": True}] * 3},
            "load": {"kind": "closed"},
            "concurrency": 1,
        }
        reply = node.load(spec, "point-1", 30)
        assert reply.records.count(b"\n") == 3
        assert (
            reply.records.count(b'"ok": false') + reply.records.count(b'"ok":false') == 3
        )  # no such endpoint there
        node.unwind(stop_s=5, reason="done")


def test_the_command_to_restore_by_hand_works_as_printed(site) -> None:
    import subprocess

    node = site.connect()
    site.guard(node)
    node.apply("one", [site.change()])
    command = node.restore_by_hand
    node.close()
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert site.file.read_text() == ORIGINAL
