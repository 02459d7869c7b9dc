"""What a channel may send: every line gets one reply with a code of the protocol, and the agent lives on."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.agent import pack, story, verbs, wire
from tests.agent.client import Client, Json, alive, change
from tests.agent.conftest import BANNER, Node
from tests.fuzz.budget import fuzzed
from tests.fuzz.strategies import ODD_TEXTS, json_values, name, number, with_odd_values

EXCEPTION = re.compile(r"(\w*Error|Exception|Traceback)\b")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    agent = tmp_path_factory.mktemp("agent") / pack.name()
    agent.write_bytes(pack.build_zipapp())
    made = Node(tmp_path_factory.mktemp("node"), agent)
    made.environ["PATH"] = str(made.bin)  # a drawn word must not be a program
    yield made
    made.close()


@pytest.fixture(scope="module")
def client(node: Node) -> Client:
    return node.client()


def check_reply(reply: Json) -> None:
    if "ok" in reply:
        return
    error = reply["error"]
    assert error["code"] in wire.CODES
    assert error["message"].strip()
    assert not EXCEPTION.search(error["message"]), f"an exception of Python is no message: {error}"


def answer_to(client: Client, line: bytes) -> Json:
    """The reply to a line that may have no id."""
    client.raw(line)
    return client.events.get(timeout=20)


def test_a_line_beyond_the_limit_is_refused_and_the_next_one_is_answered(node: Node) -> None:
    client = node.client()
    client.raw(b'{"id":1,"verb":"hello","args":{"x":"' + b"a" * wire.MAX_LINE_BYTES)
    client.raw(b"a" * wire.MAX_LINE_BYTES + b'"}}\n')
    refused = client.events.get(timeout=20)["error"]
    assert refused["code"] == "bad_request"
    assert str(wire.MAX_LINE_BYTES) in refused["message"]
    assert client.ask("hello")["pid"] == client.process.pid


@fuzzed(0.4)
@given(
    line=st.binary(max_size=200).map(lambda data: data.replace(b"\n", b""))
    | json_values().map(lambda value: json.dumps(value).encode())
)
def test_any_line_gets_one_reply_and_the_agent_lives(client: Client, line: bytes) -> None:
    if line.strip():
        reply = answer_to(client, line + b"\n")
        check_reply(reply)
        assert "ok" not in reply or b'"verb"' in line
    assert client.process.poll() is None


# Words that stay inside the test's own node: a drawn path must lead nowhere else.
WORDS = [text for text in ODD_TEXTS if not text.startswith("/")]


def word(random: Random) -> str:
    return random.choice(WORDS) if random.random() < 0.5 else name(random, 12).replace("/", "")


def odd(random: Random) -> Any:
    words = [word(random) for _ in range(random.randint(0, 3))]
    values = [
        None,
        random.random() < 0.5,
        number(random),
        word(random),
        words,
        dict.fromkeys(words, word(random)),
    ]
    return random.choice(values)


def requests(node: Node) -> dict[str, Json]:
    """A good request for each verb of the agent, in a node that nobody holds."""
    place = {"python": sys.executable, "cwd": str(node.folder), "env": {"A": "b", "C": None}}
    inside = {"workdir": str(node.workdir), "run_id": "run-1"}
    tree = {"package": "toy", "package_path": str(node.package)}
    files = [{"path": "banner.py", **wire.pack(b"x = 1\n")}]
    known: dict[str, Json] = {
        "read": {"paths": [str(node.banner)], "max_bytes": 100},
        "tail": {"path": str(node.banner), "offset": 0, "max_bytes": 10},
        "http": {"method": "GET", "port": 9, "path": "/health", "body": None, "timeout_s": 0.2},
        "facts": {
            **place,
            "package": "toy",
            "files": ["banner.py"],
            "port": 9,
            "workdir": inside["workdir"],
            "gpus": [],
        },
        "smoke": {
            **place,
            **inside,
            **tree,
            "files": files,
            "modules": ["toy.banner"],
            "argvs": {"a": ["--x"]},
            "timeout_s": 5,
        },
        "load": {**inside, "spec": {}, "name": "p-1", "timeout_s": 1, "loadgen": "loadgen-0.pyz"},
        "recover": {"what": "restore", "force": False, "keep_foreign": False},
        "attach": {"run_id": "run-1", "holder": "h", "force": False},
        "goodbye": {"detach": False},
        "unwind": {"stop_s": 1, "reason": "r"},
        "guard": {**inside, "holder": "h", "lease_s": 1, "lock_wait_s": 0},
    }
    general = {**place, **inside, **tree, "files": files, "gpus": [0], "timeout_s": 1}
    return {verb: known.get(verb, general) for verb in sorted(set(verbs.VERBS) - verbs.FORWARDED)}


@fuzzed(0.3)
@given(drawn=st.data())
def test_odd_arguments_get_one_reply_and_change_nothing(
    node: Node, client: Client, drawn: st.DataObject
) -> None:
    verb, good = drawn.draw(st.sampled_from(list(requests(node).items())))
    args = drawn.draw(with_odd_values([good], odd))
    if verb == "guard" and isinstance(args, dict):
        args["lease_s"] = "never"  # one that stands is tested below
    before = node.files()
    check_reply(reply_to(client, verb, args))
    assert node.files() == before
    assert client.process.poll() is None


def reply_to(client: Client, verb: str, args: Any) -> Json:
    return client.submit_any(verb, args).result(timeout=30)


AFTER = b'BANNER = "patched"\n'


@pytest.fixture(scope="module")
def run(node: Node) -> Iterator[Client]:
    """A run with a patched file and a server, on a channel of its own; given back at the end, clean."""
    before = node.files()
    client = node.client()
    node.guard(client, lease_s=600, stop_s=5)
    client.ask("apply", set="banner", files=[change(node.banner, BANNER, AFTER)])
    yield client
    done = client.ask("unwind", stop_s=5)
    assert done["verified"]
    assert node.files() == before
    assert node.journal()[-1] == {"kind": "close", "state": "clean"}, "the journal can be read to its end"


def deeds(node: Node) -> dict[str, Json]:
    """A request for each verb of the guardian. None is whole: one that is would change what the next ones meet."""
    log = str(node.log)
    known: dict[str, Json] = {
        "apply": {
            "set": "",
            "files": [change(node.banner, BANNER, AFTER)],
            "bytecode_prefixes": ["relative"],
        },
        "free": {"policy": "nobody", "rules": [{"user": "x", "command": "y"}], "gpus": [0], "timeout_s": 0.1},
        "start": {
            "argv": ["/nonexistent"],
            "cwd": str(node.folder),
            "env": {},
            "log": log,
            "port": 9,
            "arm": "a",
            "boot": 1,
        },
        "stop": {"timeout_s": 1, "gpu_free_s": 0, "gpus": None},
        "sample": {"interval_s": 1, "path": None},
    }
    return {verb: known.get(verb, {}) for verb in sorted(verbs.FORWARDED - {"restore"})}


@fuzzed(0.3)
@given(drawn=st.data())
def test_odd_deeds_are_refused_in_words_and_the_guardian_lives(
    node: Node, run: Client, drawn: st.DataObject
) -> None:
    verb, good = drawn.draw(st.sampled_from(list(deeds(node).items())))
    args = drawn.draw(with_odd_values([good], odd))
    others = {path: found for path, found in node.files().items() if path != str(node.banner)}
    check_reply(reply_to(run, verb, args))
    files = node.files()
    assert files.pop(str(node.banner))[0] in (BANNER, AFTER)  # a set without files is one: the original
    assert files == others
    assert alive(node.guardian_pid())


def test_a_set_without_a_name_is_refused_before_it_is_noted(node: Node, run: Client) -> None:
    applied = [record["set"] for record in node.journal() if record["kind"] in ("intend", "applied")]
    reply = reply_to(
        run, "apply", {"set": "", "files": [change(node.worker, node.worker.read_bytes(), b"x = 1\n")]}
    )
    assert reply["error"]["code"] == "bad_request"
    assert [record["set"] for record in node.journal() if record["kind"] in ("intend", "applied")] == applied


def test_a_record_that_could_not_be_read_back_is_not_written() -> None:
    opening = {
        "boot_id": "b",
        "machine_id": "",
        "pid_namespace": "p",
        "holder": "h",
        "workdir": "/w",
        "stop_s": 1,
    }
    guardian, marker = {"pid": 7, "start_time": 1}, "DYNSPEC_RUN=r.1"
    with pytest.raises(wire.AgentError, match="cannot be noted"):
        story.Story().check(
            {"kind": "open", "run_id": "r", **opening, "guardian": guardian, "marker": marker}
        )
    story.Story().check(
        {"kind": "open", "run_id": "r", **opening, "machine_id": "m", "guardian": guardian, "marker": marker}
    )
