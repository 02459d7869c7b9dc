"""The probe of tests/gpu against small HTTP servers that answer as SGLang does with `skip_tokenizer_init`."""

from __future__ import annotations

import http.server
import importlib.util
import json
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).resolve().parents[1] / "gpu" / "switch_probe.py"
SPEC = importlib.util.spec_from_file_location("switch_probe", FILE)
assert SPEC is not None
assert SPEC.loader is not None
probe = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(probe)

Choose = Callable[[list[int], int], int]


def first_choice(ids: list[int], at: int) -> int:
    return (sum(ids) + at) % 1000


def wrong_at(position: int, shift: int) -> Choose:
    """A server that gives another token at `position` to prompts of an even sum."""
    return lambda ids, at: first_choice(ids, at) + (shift if at == position and sum(ids) % 2 == 0 else 0)


@contextmanager
def served(choose: Choose, gap: float = 3.0) -> Iterator[int]:
    """A server whose second choice is always the first plus one, `gap` nats behind."""

    class Handler(http.server.BaseHTTPRequestHandler):
        wbufsize = -1  # one write an answer

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            self._send(
                json.dumps({"internal_states": [{"dynspec_stats": {"transitions": 4, "plain_graph_bs": []}}]})
            )

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path != "/generate":
                self._send("flushed")
                return
            body = json.loads(raw)
            ids = body["input_ids"]
            out = [choose(ids, at) for at in range(body["sampling_params"]["max_new_tokens"])]
            meta: dict[str, Any] = {"spec_verify_ct": len(out) // 2, "id": "x"}
            if body.get("return_logprob"):
                meta["output_top_logprobs"] = [
                    [[-0.1, token, None], [-0.1 - gap, token + 1, None]] for token in out
                ]
            if not body.get("stream"):
                self._send(json.dumps({"output_ids": out, "meta_info": meta}))
                return
            step = max(2, len(out) // 16)
            ends = [1, *range(2, len(out), step), len(out)]
            chunks = [json.dumps({"output_ids": out[:end], "meta_info": meta}) for end in ends]
            self._send("".join(f"data: {chunk}\n\n" for chunk in [*chunks, "[DONE]"]))

        def _send(self, text: str) -> None:
            data = text.encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    class Server(http.server.ThreadingHTTPServer):
        request_queue_size = 64

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One round of each of three servers."""
    folder = tmp_path_factory.mktemp("outputs")
    servers = {"reference": first_choice, "second": wrong_at(5, 1), "other": wrong_at(5, 7)}
    files = {}
    for name, choose in servers.items():
        files[name] = folder / f"{name}.json"
        with served(choose) as port:
            assert probe.run(port, files[name], seconds=0.01) == 0
    return files


def test_a_round_keeps_the_ids_of_every_request_and_the_sizes_of_streamed_chunks(
    outputs: dict[str, Path],
) -> None:
    data = json.loads(outputs["reference"].read_text())
    assert data["rounds"] == 1
    assert len(data["requests"]) == 4 + 5 * 12 + 10 + 6 + 12
    assert all(len(entry["ids"]) == entry["tokens"] for entry in data["requests"].values())
    assert data["requests"]["000/staircase/0"]["chunks"] == [1, 1, *[2] * 14]
    assert data["stats"] == [{"transitions": 4}]


def test_equal_outputs_pass(outputs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert probe.compare(outputs["reference"], [outputs["reference"]], None) == 0
    assert "92 compared, 0 differ" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arm", "gap", "status", "word"),
    [
        ("second", 0.1, 0, "near-tie"),
        ("second", 3.0, 1, "differs"),
        ("other", 0.1, 1, "differs"),
    ],
)
def test_only_a_close_second_choice_is_a_near_tie(
    outputs: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
    arm: str,
    gap: float,
    status: int,
    word: str,
) -> None:
    with served(first_choice, gap) as port:
        assert probe.compare(outputs["reference"], [outputs[arm]], port) == status
    lines = [line for line in capsys.readouterr().out.splitlines() if f"  {word} " in line]
    assert lines
    assert all("at 5 of " in line and f"gap {gap:.3f} nats" in line for line in lines)
    assert any("tokens a chunk [1, 1] [" in line for line in lines)


def test_a_reference_that_answers_otherwise_the_second_time_explains_nothing(
    outputs: dict[str, Path],
) -> None:
    with served(wrong_at(2, 1), math.inf) as port:
        assert probe.compare(outputs["reference"], [outputs["second"]], port) == 1


def test_a_server_that_fails_a_request_fails_the_run(tmp_path: Path) -> None:
    def refuse(ids: list[int], at: int) -> int:
        raise OSError

    with served(refuse) as port:
        assert probe.run(port, tmp_path / "arm.json", seconds=0.01) == 1
