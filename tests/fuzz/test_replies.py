"""A node that answers rubbish: whoever asked gets an error of ours in bounded time, and the terminal stays as it is."""

from __future__ import annotations

import dataclasses
import json
import queue
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import DynspecError, RemoteError
from orchestrator.model.facts import Facts
from orchestrator.plain_text import clean_tree
from orchestrator.remote import decoding, replies
from orchestrator.remote.channel import Channel
from tests.fuzz.budget import fuzzed
from tests.fuzz.strategies import ODD_TEXTS, damaged, json_value, json_values, seeded

SHAPES = [
    Facts,
    *(
        kind
        for kind in vars(replies).values()
        if dataclasses.is_dataclass(kind) and kind.__module__ == replies.__name__
    ),
]
FIELDS = sorted({field.name for kind in SHAPES for field in dataclasses.fields(kind)})
BOOT = b'DYNSPEC-BOOT {"have": [], "python": "3.11.7", "home": "/h", "executable": "/p"}\n'
AGENT = b'DYNSPEC-AGENT {"protocol": 1, "pid": 7}\n'
ANSWERS = (
    b'{"id": 1, "ok": {"a": 1}}\n{"event": "note", "data": {"text": "x"}}\n'
    b'{"id": 2, "error": {"code": "busy", "message": "m"}}\n'
)
PIECES = [
    *(text.encode("utf-8", "surrogatepass") for text in ODD_TEXTS),
    b'{"id": [], "ok": 1}\n',
    b'{"id": 1, "error": "x"}\n',
    b"[]\n",
    b'{"event": [], "data": 7}\n',
    b"DYNSPEC-BOOT {}\n",
    b"DYNSPEC-FAIL []\n",
    b'DYNSPEC-FAIL {"message": {}}\n',
    b"[" * 50_000 + b"\n",
]
ESCAPES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


class Said:
    """A pipe from which these bytes come, and then the end."""

    def __init__(self, data: bytes) -> None:
        self._parts: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        for part in (data, b""):
            self._parts.put(part)

    def read(self, size: int) -> bytes:
        return self._parts.get()

    def write(self, data: bytes) -> None: ...

    def close_stdin(self) -> None: ...

    def close(self) -> None: ...

    def stderr_tail(self) -> str:
        return ""

    def exit_status(self, timeout_s: float) -> int | None:
        return 1


def converse(data: bytes) -> None:
    events: list[object] = []
    lost: list[DynspecError] = []
    channel = Channel(Said(data), "node", on_event=events.append, on_lost=lost.append)
    asked = [channel.submit("a"), channel.submit("b")]
    for wait in (
        lambda: channel.boot(5),
        *(lambda future=future: channel.result(future, "a", 5) for future in asked),
    ):
        try:
            wait()
        except DynspecError as error:
            assert "no answer to" not in error.message, "whoever asked was left to wait"
            assert not ESCAPES.search(error.render())
    channel.close()


@fuzzed()
@given(
    damaged([BOOT + AGENT + ANSWERS, b"noise\n" + BOOT + AGENT + ANSWERS], PIECES) | st.binary(max_size=100)
)
def test_any_bytes_of_a_node_end_every_wait(data: bytes) -> None:
    converse(data)


@fuzzed()
@given(
    st.sampled_from(SHAPES),
    json_values() | seeded(lambda random: {field: json_value(random) for field in random.sample(FIELDS, 8)}),
)
def test_an_answer_of_any_shape_is_taken_or_an_error_of_the_node(kind: Any, value: object) -> None:
    try:
        decoding.decode(kind, value, "verb")
    except RemoteError as error:
        assert "the node's answer to 'verb' does not fit" in error.message


@fuzzed()
@given(json_values())
def test_nothing_in_an_answer_can_steer_the_terminal(value: object) -> None:
    cleaned = clean_tree(json.loads(json.dumps(value)))
    assert not [text for text in strings(cleaned) if ESCAPES.search(text)]


def strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for item in (*value, *value.values()) for text in strings(item)]
    return [text for item in value for text in strings(item)] if isinstance(value, list) else []


def test_packed_bytes_that_would_fill_the_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "MAX_UNPACKED_BYTES", 1000)
    with pytest.raises(RemoteError, match="come to more than 1000"):
        decoding.decode(replies.Tail, {**decoding.packed(b"a" * 1001), "offset": 0, "size": 0}, "tail")
    assert (
        decoding.decode(replies.Tail, {**decoding.packed(b"a" * 999), "offset": 0, "size": 0}, "tail").data
        == b"a" * 999
    )
