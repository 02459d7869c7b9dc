"""The behaviour probe of tests/gpu against a small HTTP server that answers as SGLang does, and its comparison."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import behaviour_compare
import behaviour_probe
import byte_tokenizer
import pytest

OTHER = 1000  # what a wrong server says instead


class Engine:
    """Tokens that depend on the prompt and the options; counters that move as the batch size says."""

    def __init__(self, *, patched: bool, **traits: Any) -> None:
        self.patched, self.traits = patched, traits
        self.running: dict[str, threading.Event] = {}
        self.threshold = 6
        self.counters = {"transitions": 0, "plain_steps": 0, "spec_steps": 0, "switchable": True}

    def token(self, ids: list[int], at: int, sampling: dict[str, Any]) -> int:
        asked = sum(
            1 for name in sampling if name.endswith("penalty") and name not in self.traits.get("ignores", ())
        )
        wrong = OTHER if self.traits.get("wrong", lambda ids, at: False)(ids, at) else 0
        return (sum(ids) + at + (3 * asked if at > 4 else 0)) % 500 + wrong

    def answer(self, body: dict[str, Any], until: int | None = None) -> dict[str, Any]:
        ids, sampling = body["input_ids"], body["sampling_params"]
        count = sampling["max_new_tokens"] if until is None else until
        out = [self.token(ids, at, sampling) for at in range(count)]
        kind = "length"
        if sampling.get("stop_token_ids"):
            out, kind = out[:5], "stop"
        meta: dict[str, Any] = {"finish_reason": {"type": kind}, "cached_tokens": 0, "total_retractions": 1}
        if body.get("return_logprob"):
            gap = self.traits.get("gap", 3.0)
            meta["output_token_logprobs"] = [[-0.1 - self.traits.get("off", 0), token, None] for token in out]
            meta["output_top_logprobs"] = [
                [[-0.1, token, None], [-0.1 - gap, token + OTHER, None], [None, 5, None]] for token in out
            ]
        said = {"text": self.traits["says"](body)} if "says" in self.traits else {}
        return {"output_ids": out, "meta_info": meta, **said}

    def mode(self) -> None:
        loaded = any(rid.isdigit() for rid in tuple(self.running))  # the load never leaves altogether
        plain = loaded or len(self.running) > self.threshold
        self.counters["plain_steps" if plain else "spec_steps"] += 1
        self.counters["transitions"] += 1

    def info(self) -> dict[str, Any]:
        state = {"dynspec_stats": {**self.counters, "threshold": self.threshold}} if self.patched else {}
        return {
            "skip_tokenizer_init": "says" not in self.traits,
            "enable_deterministic_inference": True,
            "max_total_num_tokens": 2048,
            "internal_states": [state],
        }

    def set_threshold(self, body: dict[str, Any]) -> list[bool]:
        value = body["server_args"][behaviour_probe.THRESHOLD_KEY]
        if value >= 0:
            self.threshold = value
        return [value >= 0]


def handler_of(engine: Engine) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        wbufsize = -1

        def log_message(self, *_: Any) -> None:
            pass

        def send(self, text: str) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def do_GET(self) -> None:
            loads = {"num_reqs": len(engine.running), "num_waiting_reqs": 0, "num_pending_tokens": 100}
            loads["num_tokens"] = 100 + engine.traits.get("leak", 0)
            answers = {
                "/server_info": json.dumps(engine.info()),
                "/get_load": json.dumps([loads]),
                "/metrics": "sglang:dynspec_steps_total 1",
            }
            self.send(answers[self.path])

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or "{}")
            if self.path == "/set_internal_state":
                self.send(json.dumps(engine.set_threshold(body)))
            elif self.path == "/abort_request":
                engine.running[body["rid"]].set()
                self.send("")
            elif self.path == "/flush_cache":
                self.send("flushed")
            else:
                self.generate(body)

        def generate(self, body: dict[str, Any]) -> None:
            rid = body.get("rid", str(id(body)))
            engine.running[rid] = threading.Event()
            try:
                engine.mode()
                if rid.startswith("crossing"):  # a step alone, then one beside the others
                    engine.running[rid].wait(0.05)
                    engine.mode()
                if body.get("stream"):
                    self.stream(body, engine.running[rid])
                    return
                if "rid" not in body:  # the load: ends when the rest is over, or after a while
                    engine.running[rid].wait(0.1 + 0.01 * (len(body["input_ids"]) % 10))
                self.send(json.dumps(engine.answer(body)))
            finally:
                del engine.running[rid]

        def stream(self, body: dict[str, Any], aborted: threading.Event) -> None:
            self.send_response(200)
            self.end_headers()
            for size in range(1, 2000):
                answer = engine.answer(body, until=size)
                answer["meta_info"]["finish_reason"] = {"type": "abort"} if aborted.is_set() else None
                try:
                    self.wfile.write(b"data: " + json.dumps(answer).encode() + b"\n\n")
                    self.wfile.flush()
                except OSError:
                    return
                if aborted.wait(0.002) and answer["meta_info"]["finish_reason"]:
                    return

    return Handler


@contextmanager
def served(engine: Engine) -> Iterator[int]:
    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, *_: Any) -> None:
            """A client that left, which is what it is meant to do."""

    with Server(("127.0.0.1", 0), handler_of(engine)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def probed(
    folder: Path, name: str, phases: str = "plain,crossing,switch,retract", **traits: Any
) -> tuple[int, Path]:
    with served(Engine(patched=name != "reference", **traits)) as port:
        out = folder / f"{name}.json"
        return behaviour_probe.run(port, out, phases.split(","), settle_s=0.01), out


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    status, out = probed(tmp_path_factory.mktemp("reference"), "reference")
    assert status == 0
    return out


def test_a_server_that_agrees_passes_all_checks_and_all_comparisons(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out = probed(tmp_path, "arm")
    said = capsys.readouterr().out
    assert status == 0, said
    assert behaviour_compare.compare(reference, [out]) == 0
    rows = {line[2:30].strip(): line.split() for line in capsys.readouterr().out.splitlines()}
    assert rows["plain/frequency penalty"][-2] == "4"  # acts
    assert rows["plain/logprobs"][2:5] == ["8", "0", "0"]
    checks = json.loads(out.read_text())["checks"]
    assert checks["switch to 0"].startswith("ok")
    assert checks["a refused threshold is said"].startswith("ok")
    assert checks["aborted requests end early as aborted"].startswith("ok")


def test_a_leaked_slot_fails_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert probed(tmp_path, "arm", "retract", leak=3)[0] == 1
    assert "idle server holds no KV slot: FAILED" in capsys.readouterr().out


def changed(reference: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    data = json.loads(reference.read_text())
    change(data["entries"])
    out = tmp_path / "arm.json"
    out.write_text(json.dumps(data))
    return out


def second_choice(entries: dict[str, Any], key: str) -> None:
    entries[key]["ids"][7] += OTHER


@pytest.mark.parametrize(
    ("gap", "key", "status", "word"),
    [
        (0.1, "plain/logprobs/3", 0, "near-tie"),
        (3.0, "plain/logprobs/3", 1, "different"),
        (0.1, "plain/greedy/3", 0, "near-tie"),  # judged by its twin with log probabilities
    ],
)
def test_only_a_close_second_choice_is_a_near_tie(
    reference: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    gap: float,
    key: str,
    status: int,
    word: str,
) -> None:
    def closer(entries: dict[str, Any]) -> None:
        for at in entries["plain/logprobs/3"]["output_top_logprobs"]:
            for token in at:
                if int(token) >= OTHER:
                    at[token] = -0.1 - gap

    def both(entries: dict[str, Any]) -> None:
        closer(entries)
        second_choice(entries, key)

    judge = changed(reference, tmp_path, closer).rename(tmp_path / "judge.json")
    assert behaviour_compare.compare(judge, [changed(reference, tmp_path, both)]) == status
    assert f"  {word} {key}: token 7" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda e: e["plain/logprobs/0"]["output_token_logprobs"].__setitem__(2, -1.0),
            "log probabilities",
        ),
        (lambda e: e["plain/radix prompt/0"].update(cached=64), "cached tokens 0 -> 64"),
        (lambda e: e["plain/stop ids/0"].update(finish="length"), "finish stop length"),
        (lambda e: e["switch/greedy/0"]["ids"].pop(), "token 119"),
        (lambda e: e.update({"retract/greedy/0": {"error": "HTTP 500"}}), "HTTP 500"),
    ],
)
def test_a_difference_in_anything_kept_is_said(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Any, said: str
) -> None:
    assert behaviour_compare.compare(reference, [changed(reference, tmp_path, change)]) == 1
    assert said in capsys.readouterr().out


def test_an_aborted_request_is_compared_as_far_as_both_went(reference: Path, tmp_path: Path) -> None:
    shorter = changed(reference, tmp_path, lambda e: e["plain/abort/0"]["ids"].pop())
    assert behaviour_compare.compare(reference, [shorter]) == 0


def test_texts_that_break_their_grammar_fail_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert probed(tmp_path, "arm", "text", says=lambda body: "abcd", stops=True)[0] == 1
    assert "grammars are obeyed: FAILED" in capsys.readouterr().out


def test_each_id_of_the_tokenizer_is_a_token_of_its_own() -> None:
    model: Any = byte_tokenizer.tokenizer()["model"]
    assert sorted(model["vocab"].values()) == list(range(1024))
    assert model["vocab"]["A"] == 16 + ord("A")
    assert byte_tokenizer.token_text(16 + ord("A")) == "A"
    assert byte_tokenizer.token_text(1023) == "w1023"


def test_a_tokenizer_that_servers_may_be_reading_is_replaced_whole(tmp_path):
    place, reader = tmp_path / "tokenizer.json", tmp_path / "reader"
    place.write_text("as it was")
    reader.hardlink_to(place)
    byte_tokenizer.write(tmp_path)
    assert reader.read_text() == "as it was"
    assert json.loads(place.read_text())["version"] == "1.0"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "reader",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
