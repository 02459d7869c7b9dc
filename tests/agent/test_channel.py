"""The channel itself: framing, bad requests, HTTP, load children, bulk files, and what the zipapp is made of."""

from __future__ import annotations

import ast
import hashlib
import http.server
import io
import json
import os
import random
import subprocess
import sys
import threading
import time
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.agent import pack, verbs, wire
from orchestrator.agent.wire import AgentError
from tests.agent.client import Client, Refused, alive, eventually, unz
from tests.agent.conftest import Node


@pytest.fixture
def client(node: Node) -> Client:
    return node.client()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, agent_file: Path) -> Iterator[Node]:
    """One node for requests that change nothing."""
    node = Node(tmp_path_factory.mktemp("shared"), agent_file)
    yield node
    node.close()


@pytest.fixture(scope="module")
def one(shared: Node) -> Client:
    return shared.client()


# -- framing


def test_it_says_who_it_is_first(client: Client) -> None:
    assert client.banner.startswith(b"DYNSPEC-AGENT ")
    assert json.loads(client.banner[14:]) == {"protocol": 1, "pid": client.process.pid}
    assert client.ask("hello")["uid"] == os.geteuid()


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"not json\n", "bad_request"),
        (b"[]\n", "bad_request"),
        (b"\xff\xfe\n", "bad_request"),
        (b"[" * 100_000 + b"\n", "bad_request"),
        (b'{"id": 9}\n', "bad_request"),
        (b'{"id": 9, "verb": "hello", "args": 3}\n', "bad_request"),
        (b'{"id": 9, "verb": "rm -rf /", "args": {}}\n', "unknown_verb"),
        (b'{"id": 9, "verb": ["hello"], "args": {}}\n', "bad_request"),
    ],
)
def test_a_bad_line_gets_one_error_and_the_channel_goes_on(one: Client, line: bytes, code: str) -> None:
    one.raw(line)
    assert one.events.get(timeout=20)["error"]["code"] == code
    assert one.ask("hello")["pid"] == one.process.pid


BAD_ARGS: list[tuple[str, dict[str, Any]]] = [
    ("guard", {}),
    ("guard", {"run_id": "../up", "workdir": "/w"}),
    ("guard", {"run_id": ".hidden", "workdir": "/w"}),
    ("guard", {"run_id": "r", "workdir": "relative/path"}),
    ("guard", {"run_id": "r", "workdir": "/w", "lease_s": "long"}),
    ("guard", {"run_id": "r", "workdir": "/w", "lease_s": -1}),
    ("guard", {"run_id": "r", "workdir": "/w", "lease_s": True}),
    ("read", {"paths": "x"}),
    ("read", {"paths": ["relative"]}),
    ("read", {"paths": ["/nul\0byte"]}),
    ("tail", {"path": 3}),
    ("http", {"port": 1, "path": "no-slash"}),
    ("http", {"port": 1, "path": "/a b"}),
    ("http", {"port": 1, "path": "/x\r\nEvil: 1"}),
    ("http", {"port": "1", "path": "/"}),
    ("facts", {"python": 1, "port": 1, "workdir": "/w"}),
    ("facts", {"python": "p", "port": 1, "workdir": "/w", "package": "toy", "env": {"A=B": "x"}}),
    ("facts", {"python": "p", "port": 1, "workdir": "/w", "gpus": ["0"]}),
    ("apply", {"set": "s", "files": []}),
    ("load", {"spec": {}, "name": "n"}),
    ("clean", {"run_id": "..", "workdir": "/w"}),
    ("recover", {"what": "everything"}),
    ("attach", {"run_id": 5}),
]


@pytest.mark.parametrize(("verb", "args"), BAD_ARGS)
def test_bad_arguments_are_one_clear_refusal(
    shared: Node, one: Client, verb: str, args: dict[str, Any]
) -> None:
    with pytest.raises(Refused) as refused:
        one.ask(verb, **args)
    assert refused.value.code in ("bad_request", "not_found")
    assert "Traceback" not in refused.value.message
    assert not shared.workdir.exists()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 10**12) | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
SAFE_VERBS = sorted(
    set(verbs.VERBS) - {"guard", "facts", "smoke", "status", "holders", "recover", "clean", "load"}
)


@settings(max_examples=200, deadline=None)
@given(verb=st.sampled_from(SAFE_VERBS), args=st.dictionaries(st.sampled_from(
    ["path", "paths", "port", "method", "timeout_s", "files", "set", "run_id", "offset", "max_bytes", "argv", "body"]
), JSON, max_size=5))  # fmt: skip
def test_any_request_gets_one_reply_with_a_known_code(verb: str, args: dict[str, Any]) -> None:
    context = verbs.Context(lambda name, data: None, lambda: False)
    reply = verbs.answer(context, {"id": 1, "verb": verb, "args": args})
    assert reply["id"] == 1
    assert "ok" in reply or reply["error"]["code"] in wire.CODES
    assert "Error:" not in reply.get("error", {}).get("message", ""), "an exception of Python is no message"


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=200))
def test_any_bytes_survive_packing_and_any_text_is_unpacked_or_refused(data: bytes) -> None:
    assert wire.unpack_text(wire.pack(data)["z"]) == data
    try:
        wire.unpack_text(data.decode("latin-1"))
        code = "bad_request"
    except AgentError as error:
        code = error.code
    assert code == "bad_request"


def test_a_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_UNPACKED_BYTES", 1000)
    with pytest.raises(AgentError) as refused:
        wire.unpack_text(wire.pack(b"\0" * 1001)["z"])
    assert "larger than 1000 bytes" in refused.value.message


def test_a_value_of_the_environment_is_never_in_an_error(one: Client) -> None:
    with pytest.raises(Refused) as refused:
        one.ask("facts", python="p", port=1, workdir="/w", package="toy", env={"TOKEN": ["s3cret"]})
    assert "TOKEN" in refused.value.message
    assert "s3cret" not in refused.value.message


def test_several_requests_are_under_way_at_once(node: Node, client: Client) -> None:
    may_end = node.folder / "may-end"
    node.fake_tool(f"until [ -e {may_end} ]; do sleep 0.05; done; exit 9")
    slow = client.submit("holders", gpus="all")
    client.ask("hello")
    assert not slow.done()
    may_end.touch()
    assert "exit status 9" in slow.result(10)["ok"]["problem"]


# -- reading


def test_files_are_read_whole_and_absent_ones_are_said(node: Node, client: Client) -> None:
    data = os.urandom(300_000)
    (node.folder / "big").write_bytes(data)
    big, none = client.ask("read", paths=["~/big", "~/none"])["files"]
    assert unz(big["z"]) == data
    assert (big["size"], big["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    assert (none["z"], none["sha256"]) == (None, None)
    with pytest.raises(Refused):
        client.ask("read", paths=["~/big"], max_bytes=100)


def test_a_tail_goes_on_where_it_stopped(node: Node, client: Client) -> None:
    log = node.folder / "log"
    log.write_bytes(b"0123456789")
    first = client.ask("tail", path=str(log), offset=0, max_bytes=4)
    assert (unz(first["z"]), first["offset"], first["size"]) == (b"0123", 4, 10)
    rest = client.ask("tail", path=str(log), offset=4, max_bytes=100)
    assert (unz(rest["z"]), rest["offset"]) == (b"456789", 10)
    assert unz(client.ask("tail", path=str(log), offset=-3, max_bytes=100)["z"]) == b"789"
    assert unz(client.ask("tail", path=str(log), offset=99, max_bytes=100)["z"]) == b""


# -- http


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/trickle":
            self.send_response(200)
            self.end_headers()
            try:
                for _ in range(100):
                    self.wfile.write(b"x")
                    self.wfile.flush()
                    time.sleep(0.1)
            except OSError:
                return
        elif self.path == "/silent":
            time.sleep(5)
        else:
            self.send_response(503)
            self.end_headers()
            self.wfile.write("näh \N{SNOWMAN}".encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body[::-1])

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def web() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def ask_http(client: Client, port: int, path: str, **args: Any) -> dict[str, Any]:
    return client.ask("http", port=port, path=path, **{"method": "GET", "body": None, "timeout_s": 5, **args})


def test_status_and_body_come_back_as_they_are(one: Client, web: int) -> None:
    reply = ask_http(one, web, "/")
    assert (reply["status"], reply["body"]) == (503, "näh \N{SNOWMAN}")
    assert ask_http(one, web, "/", method="POST", body="abc")["body"] == "cba"


@pytest.mark.parametrize("path", ["/trickle", "/silent"])
def test_one_limit_holds_for_the_whole_answer(one: Client, web: int, path: str) -> None:
    before = time.monotonic()
    with pytest.raises(Refused) as refused:
        ask_http(one, web, path, timeout_s=0.6)
    assert refused.value.code == "timeout"
    assert time.monotonic() - before < 4  # each read would have been in time, for five seconds and more


def test_nobody_there_is_a_failure_and_no_timeout(one: Client) -> None:
    with pytest.raises(Refused) as refused:
        ask_http(one, 1, "/health")
    assert refused.value.code == "failed"
    assert "refused" in refused.value.message


# -- load

LOADGEN = """
import json, os, shutil, sys, time
spec = json.load(open(sys.argv[1]))
for number in range(3):
    print(json.dumps({"done": number}), flush=True)
with open(sys.argv[2], "wb") as records:
    records.write(b'{"i": 0}\\n' * spec.get("records", 1))
if spec.get("hang"):
    print(json.dumps({"pid": os.getpid()}), flush=True)
    print(json.dumps({"pid": os.getpid()}), flush=True)
    time.sleep(300)
if spec.get("lose"):
    shutil.rmtree(os.path.dirname(os.path.dirname(sys.argv[2])))
if spec.get("fail"):
    print("no connection to the server", file=sys.stderr)
    sys.exit(3)
print(json.dumps({"summary": os.stat(sys.argv[1]).st_mode & 0o777}), flush=True)
"""


@pytest.fixture
def loader(node: Node) -> Client:
    client = node.client()
    node.guard(client)
    folder = node.home / "agent"
    folder.mkdir(mode=0o700)
    with zipfile.ZipFile(folder / "loadgen-1.pyz", "w") as archive:
        archive.writestr("__main__.py", LOADGEN)
    return client


def load(client: Client, timeout_s: float = 20, **spec: Any) -> dict[str, Any]:
    return client.ask("load", spec=spec, name="a-1-c8", timeout_s=timeout_s)


def test_progress_is_told_and_the_last_line_is_the_summary(node: Node, loader: Client) -> None:
    reply = load(loader, records=2)
    assert reply["summary"] == {"summary": 0o600}
    assert unz(reply["records"]["z"]) == b'{"i": 0}\n' * 2
    assert [loader.event("load_progress")["done"] for _ in range(3)] == [0, 1, 2]
    assert (node.workdir / "run-1" / "load" / "a-1-c8.jsonl").exists()


def test_a_generator_that_fails_says_why(loader: Client) -> None:
    with pytest.raises(Refused) as refused:
        load(loader, fail=True)
    assert refused.value.code == "failed"
    assert refused.value.details["log_tail"] == ["no connection to the server"]


def test_a_work_folder_that_vanishes_under_a_load_is_named(node: Node, loader: Client) -> None:
    with pytest.raises(Refused, match=r"node\.workdir has vanished: .*/run-1/load was removed") as refused:
        load(loader, lose=True, fail=True)
    assert refused.value.code == "failed"
    with pytest.raises(Refused, match=r"node\.workdir has vanished"):
        load(loader, lose=True)


def test_a_generator_has_a_limit(loader: Client) -> None:
    with pytest.raises(Refused) as refused:
        load(loader, timeout_s=1, hang=True)
    assert refused.value.code == "timeout"


def hanging(loader: Client) -> int:
    loader.submit("load", spec={"hang": True}, name="n", timeout_s=60)
    while True:
        progress = loader.event("load_progress")
        if "pid" in progress:
            pid: int = progress["pid"]
            return pid


def test_a_generator_ends_with_its_channel(loader: Client) -> None:
    pid = hanging(loader)
    loader.hang_up()
    eventually(lambda: not alive(pid), 3)


def test_a_generator_ends_even_when_the_agent_is_killed(loader: Client) -> None:
    pid = hanging(loader)
    loader.kill()
    eventually(lambda: not alive(pid), 3)


def test_an_older_generator_is_taken_when_it_is_named(node: Node, loader: Client) -> None:
    with zipfile.ZipFile(node.home / "agent" / "loadgen-2.pyz", "w") as archive:
        archive.writestr("__main__.py", "raise SystemExit(9)")
    with pytest.raises(Refused):
        load(loader)
    done = loader.ask("load", spec={}, name="n", timeout_s=20, loadgen="loadgen-1.pyz")
    assert done["summary"] == {"summary": 0o600}


# -- bulk files


def fetch(node: Node, *files: dict[str, Any]) -> list[tuple[dict[str, Any], bytes, str | None]]:
    """(head, bytes, digest) of each file."""
    argv = [sys.executable, "-I", "-S", str(node.agent), "fetch"]
    request = json.dumps({"files": list(files)}).encode() + b"\n"
    done = subprocess.run(argv, env=node.environ, input=request, capture_output=True, check=True)
    stream = io.BytesIO(done.stdout)
    answers = []
    for _ in files:
        head = json.loads(stream.readline())
        data, opener, digest = b"", zlib.decompressobj(), None
        while "error" not in head:
            part = json.loads(stream.readline())
            if part["n"] == 0:
                digest = part["sha256"]
                break
            data += opener.decompress(stream.read(part["n"]))
        answers.append((head, data, digest))
    assert stream.read() == b""
    return answers


def test_files_arrive_to_the_byte_from_any_offset(node: Node) -> None:
    data = random.Random(5).randbytes(700_000) + b"x" * 300_000
    (node.folder / "log").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    offsets = (0, 1, 262_144, 700_001, len(data))
    for offset, answer in zip(
        offsets, fetch(node, *({"path": "~/log", "offset": at} for at in offsets)), strict=True
    ):
        assert answer == ({"path": "~/log", "size": len(data), "offset": offset}, data[offset:], digest)


def test_a_file_that_cannot_be_read_is_said_and_the_next_one_follows(node: Node) -> None:
    (node.folder / "log").write_bytes(b"abc")
    missing, log = fetch(node, {"path": "~/none"}, {"path": "~/log", "offset": 99})
    assert missing[0]["error"] == "No such file or directory"
    assert (log[0]["offset"], log[1]) == (0, b"abc"), "an offset beyond the end begins again"


# -- the zipapp


def test_the_same_sources_give_the_same_bytes() -> None:
    first = pack.build_zipapp()
    pack.build_zipapp.cache_clear()
    assert pack.build_zipapp() == first
    assert pack.name() == f"agent-{hashlib.sha256(first).hexdigest()[:16]}.pyz"


@pytest.mark.parametrize("name", [name for name in pack.sources() if name.endswith(".py")])
def test_every_module_is_python_3_8_of_the_standard_library_alone(name: str) -> None:
    tree = ast.parse(pack.sources()[name], feature_version=(3, 8))
    imported = set()
    for found in ast.walk(tree):
        if isinstance(found, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in found.names}
        elif isinstance(found, ast.ImportFrom) and found.level == 0:
            imported.add((found.module or "").partition(".")[0])
    assert imported <= set(sys.stdlib_module_names) | {pack.PACKAGE}


def test_run_without_a_command_it_explains_itself(node: Node) -> None:
    done = node.by_hand("--help")
    assert done.returncode == 0
    assert "restore [--force]" in node.by_hand("nonsense").stderr


def test_it_leaves_nothing_in_the_home_of_a_node_it_only_looked_at(node: Node, client: Client) -> None:
    client.ask("hello")
    client.ask("status")
    assert node.by_hand("status").returncode == 0
    assert node.by_hand("restore").returncode == 0
    assert not Path(node.home).exists()
