"""Does a plain step keep what requests ask for? One server's answers to a fixed set of requests, and their comparison.

    behaviour_probe.py run --port P --out ARM.json [--pid SERVER] [--ready 240] [--phases plain,crossing,...]
    behaviour_probe.py compare REFERENCE.json ARM.json...

Phases, in this order; the small trained model decides its tokens by wide margins for about 150 tokens:
    plain      ten other requests keep the batch above a threshold of 6, so every decode step is plain: greedy, log
               probabilities (output, prompt, top 4), penalties, min_p, stop ids, chunked prefill, radix
               hits on a prompt and on tokens that plain steps wrote, abort, a client that goes away
    text       the same load; grammars and stop strings, where the server has a tokenizer (tests/gpu/byte_tokenizer.py)
    seeds      the same load; sampling with fixed seeds, where the server has --enable-deterministic-inference, the only
               mode in which SGLang reads `sampling_seed`
    crossing   no other load: requests that end one by one, so that each lives through plain and speculative steps
    switch     the threshold changes under load, where the server allows it; the same requests elsewhere
    retract    more requests than a small KV pool (--max-total-tokens) holds

`compare` prints a table. A first difference is a near-tie when the reference gave both tokens almost the same log
probability (NEAR_TIE); kernels of different shapes round differently. Values agree within `tolerance`, and bfloat16
logits come in steps of up to 0.25. `acts` counts the requests whose option changed the reference's greedy output: an
option that changes nothing proves nothing. Exit status 1 for a difference, a failed request or a failed check.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import http.client
import itertools
import json
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from behaviour_compare import NOTHING, Entry, compare
from behaviour_requests import (
    LOGPROBS,
    REGEX,
    Request,
    chunked_requests,
    crossing_grammars,
    penalty_requests,
    plain_requests,
    seed_requests,
    several,
    text_requests,
)
from switch_probe import TIMEOUT_S, call, prompt, stats, wait_ready

BALLAST = 10
# More than the steps of all requests with penalties: a prefill of another request would make SGLang miss a token in its
# counts (penalties.py), whether it speculates or not.
PENALTY_LOAD_TOKENS = 1200
SETTLE_S = 0.3
THRESHOLD_KEY = "speculative_disable_batch_threshold"


class Probe:
    """Sends requests to one server from threads, and keeps entries and checks by name."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.pool = concurrent.futures.ThreadPoolExecutor(max_workers=80)
        self.entries: dict[str, Entry] = {}
        self.checks: dict[str, str] = {}
        self.steps: dict[str, Any] = {}

    def start(self, requests: list[Request]) -> list[concurrent.futures.Future[None]]:
        return [self.pool.submit(self._send, request) for request in requests]

    def send(self, requests: list[Request]) -> None:
        """Send all at once and wait for them."""
        concurrent.futures.wait(self.start(requests))

    def check(self, name: str, fine: object, text: object = "") -> None:
        self.checks[name] = f"ok {text}".strip() if fine else f"FAILED {text}"

    def _send(self, request: Request) -> None:
        began = time.monotonic()
        try:
            entry = self._ended(request) if request.end else self._whole(request)
        except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
            entry = {"error": repr(error)[:300]}
        entry["s"] = round(time.monotonic() - began, 3)
        self.entries[request.key] = entry

    def _whole(self, request: Request) -> Entry:
        status, text = call(self.port, "POST", "/generate", request.body())
        if status != 200:
            raise ValueError(f"HTTP {status}: {text[:200]}")
        return entry_of(json.loads(text))

    def _ended(self, request: Request) -> Entry:
        """Stream until a few chunks have come, then abort the request or close the connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        try:
            body = json.dumps(request.body())
            connection.request("POST", "/generate", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            last, seen = {}, 0
            for line in answer:
                if not line.startswith(b"data: {"):
                    continue
                last, seen = json.loads(line[6:]), seen + 1
                if seen == request.until:
                    if request.end == "leave":
                        break
                    call(self.port, "POST", "/abort_request", {"rid": request.key})
            return entry_of(last)
        finally:
            connection.close()


def entry_of(answer: dict[str, Any]) -> Entry:
    """What is kept of an answer of /generate."""
    meta = answer["meta_info"]
    entry: Entry = {
        "ids": answer["output_ids"],
        "finish": (meta.get("finish_reason") or {}).get("type"),
        "cached": meta.get("cached_tokens"),
        "retractions": meta.get("total_retractions", 0),
    }
    if answer.get("text") is not None:
        entry["text"] = answer["text"]
    for name in ("input_token_logprobs", "output_token_logprobs"):
        if name in meta:
            entry[name] = [_value(pair[0]) for pair in meta[name]]
    for name in ("output_top_logprobs", "output_token_ids_logprobs"):
        if name in meta:
            entry[name] = [{str(pair[1]): _value(pair[0]) for pair in at or ()} for at in meta[name]]
    return entry


def _value(logprob: float | None) -> float:
    return NOTHING if logprob is None else max(float(logprob), NOTHING)


class Ballast:
    """Keeps BALLAST requests decoding while it is entered; the first token of each is awaited.

    `tokens`: of each request, 400 and more unless said; with many, none of them ends or begins meanwhile.
    """

    def __init__(self, probe: Probe, tokens: int | None = None) -> None:
        self.probe = probe
        self.tokens = tokens
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self._keep, args=(i,)) for i in range(BALLAST)]

    def __enter__(self) -> None:
        for thread in self.threads:
            thread.start()
        try:
            wait_until(lambda: load(self.probe.port)["running"] >= BALLAST, 30)
            self.before = stats(self.probe.port)
        except BaseException:
            self._end()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            self.after = stats(self.probe.port)
        finally:
            self._end()

    def _end(self) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def _keep(self, slot: int) -> None:
        for turn in itertools.count():
            if self.stop.is_set():
                return
            ids = prompt(9000 + 1000 * slot + turn)
            tokens = self.tokens or 400 + 40 * slot
            sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
            try:
                call(self.probe.port, "POST", "/generate", {"input_ids": ids, "sampling_params": sampling})
            except (OSError, http.client.HTTPException):
                return

    def check(self, phase: str) -> None:
        """Steps were plain under the load, but for a moment when several of it end together."""
        if "spec_steps" in self.after:
            grown = {name: self.after[name] - self.before[name] for name in ("plain_steps", "spec_steps")}
            few = grown["spec_steps"] <= grown["plain_steps"] / 50
            self.probe.check(f"{phase} phase had plain steps", few, grown)


def load(port: int) -> dict[str, int]:
    """Running and waiting requests and used KV slots.

    From `/get_load`: with --enable-metrics and the fastapi of the bundle, SGLang 0.5.11 answers 500 to `/v1/loads`.
    """
    status, text = call(port, "GET", "/get_load")
    if status != 200:
        raise ValueError(f"/get_load: HTTP {status}")
    rank = json.loads(text)[0]
    return {
        "running": rank["num_reqs"] - rank["num_waiting_reqs"],
        "waiting": rank["num_waiting_reqs"],
        "tokens": rank["num_tokens"] - rank["num_pending_tokens"],
    }


def wait_until(true: Callable[[], bool], limit_s: float) -> bool:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.02)
    return False


# The phases.


def plain(probe: Probe, info: dict[str, Any]) -> None:
    with (ballast := Ballast(probe)):
        probe.send(plain_requests(seeded=bool(info.get("enable_deterministic_inference"))))
        probe.send(chunked_requests())
        radix(probe)
        abort(probe)
    ballast.check("plain")
    with (ballast := Ballast(probe, tokens=PENALTY_LOAD_TOKENS)):
        for request in penalty_requests():
            probe.send([request])
    ballast.check("penalty")


def radix(probe: Probe) -> None:
    """A shared prompt, then a second turn on what plain steps wrote."""
    shared = (prompt(40) * 4)[:64]
    probe.send([Request("plain/radix prompt/first", tuple(shared), 48, extra=LOGPROBS)])
    probe.send(
        [
            Request(f"plain/radix prompt/{i}", (*shared, *prompt(41 + i)[:6]), 32, extra=LOGPROBS)
            for i in range(3)
        ]
    )
    said = probe.entries["plain/radix prompt/first"].get("ids", [])
    turn = (*shared, *said, *shared[:4])
    probe.send([Request("plain/radix output/second turn", turn, 16, extra=LOGPROBS)])


def abort(probe: Probe) -> None:
    """Two aborted, two left, four that must not notice."""
    began = probe.start(several("plain/beside abort", 4, first=30, tokens=80, extra=LOGPROBS))
    probe.send(
        [
            *several("plain/abort", 2, first=34, tokens=2000, end="abort"),
            *several("plain/leave", 2, first=36, tokens=2000, end="leave"),
        ]
    )
    concurrent.futures.wait(began)
    aborted = [probe.entries[f"plain/abort/{i}"] for i in range(2)]
    probe.check(
        "aborted requests end early as aborted",
        all(e.get("finish") == "abort" and len(e["ids"]) < 2000 for e in aborted),
        [(e.get("finish"), len(e.get("ids", ()))) for e in aborted],
    )
    gone = wait_until(lambda: load(probe.port)["running"] <= BALLAST, 10)
    probe.check("requests of a client that left are dropped", gone, load(probe.port))


def text(probe: Probe, info: dict[str, Any]) -> None:
    if info.get("skip_tokenizer_init"):
        return
    with (ballast := Ballast(probe)):
        probe.send(text_requests())
    ballast.check("text")
    got = {
        key: e for key, e in probe.entries.items() if key.startswith("text/") and e.get("finish") == "stop"
    }
    wrong = [key for key, entry in got.items() if not _obeys(key, entry["text"])]
    probe.check("grammars are obeyed", got and not wrong, wrong or f"{len(got)} ended by themselves")


def _obeys(key: str, said: str) -> bool:
    if "json schema" in key:
        try:
            return isinstance(json.loads(said), dict)
        except ValueError:
            return False
    return "regex" not in key or re.fullmatch(REGEX, said) is not None


def seeds(probe: Probe, info: dict[str, Any]) -> None:
    if not info.get("enable_deterministic_inference"):
        return
    with (ballast := Ballast(probe)):
        probe.send(seed_requests())
    ballast.check("seeds")


def crossing(probe: Probe, info: dict[str, Any]) -> None:
    before = stats(probe.port)
    for turn in range(2):
        first = 100 + 20 * turn
        probe.send(
            [
                Request(f"crossing/{name}/{turn}-{i}", tuple(prompt(first + i)), 10 * (i + 1), extra=extra)
                for name, extra in (("greedy", {}), ("logprobs", LOGPROBS))
                for i in range(9)
            ]
        )
        if not info.get("skip_tokenizer_init"):
            probe.send(crossing_grammars(turn))
    after = stats(probe.port)
    if after:
        grown = {name: after[name] - before[name] for name in ("transitions", "plain_steps", "spec_steps")}
        probe.check("crossing phase ran in both modes", all(grown.values()), grown)


def switch(probe: Probe, info: dict[str, Any]) -> None:
    """Four requests run while the threshold goes to 0, very high and back."""
    running = probe.start(several("switch/greedy", 4, first=150, tokens=120, extra=LOGPROBS))
    counters = stats(probe.port)
    if counters.get("switchable"):
        _switch_there_and_back(probe, counters["threshold"])
    concurrent.futures.wait(running)


def _switch_there_and_back(probe: Probe, threshold: int) -> None:
    def ask(value: object) -> tuple[object, dict[str, Any]]:
        body = {"server_args": {THRESHOLD_KEY: value}}
        said = json.loads(call(probe.port, "POST", "/set_internal_state", body)[1])
        return said, stats(probe.port)

    for value in (0, 1_000_000, 0, threshold):
        said, now = ask(value)
        probe.check(f"switch to {value}", said == [True] and now["threshold"] == value, f"{said} {now}")
    said, now = ask(-1)
    probe.check("a refused threshold is said", said == [False] and now["threshold"] == threshold, said)


def retract(probe: Probe, info: dict[str, Any]) -> None:
    if (info.get("max_total_num_tokens") or 1 << 30) > 4096:
        return
    probe.send(several("retract/greedy", 24, first=200, tokens=90, extra=LOGPROBS))
    count = sum(probe.entries[f"retract/greedy/{i}"].get("retractions", 0) for i in range(24))
    probe.check("requests were retracted", count > 0, count)


PHASES = {f.__name__: f for f in (plain, text, seeds, crossing, switch, retract)}


def idle(probe: Probe, settle_s: float) -> None:
    """Nothing runs and nothing is held; the server's own leak check, which ends it, has passed."""
    drained = wait_until(lambda: load(probe.port)["running"] + load(probe.port)["waiting"] == 0, 20)
    time.sleep(settle_s)  # the server looks for leaks when it has nothing to do
    held = load(probe.port)
    flushed = call(probe.port, "POST", "/flush_cache")[0]
    probe.check("idle server holds no KV slot", drained and held["tokens"] == 0, held)
    probe.check("cache flushed when idle", flushed == 200 and load(probe.port)["tokens"] == 0, flushed)
    probe.send([Request("after/greedy/0", tuple(prompt(0)))])
    status, metrics = call(probe.port, "GET", "/metrics")
    if stats(probe.port) and status == 200 and "sglang:" in metrics:
        probe.check("counters on /metrics", "sglang:dynspec_steps_total" in metrics)


def run(port: int, out: Path, phases: list[str], settle_s: float = SETTLE_S) -> int:
    began = time.monotonic()
    info = json.loads(call(port, "GET", "/server_info")[1])
    probe = Probe(port)
    for name in phases:
        try:
            PHASES[name](probe, info)
        except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
            probe.check(f"{name} phase", False, repr(error)[:300])
            break  # a server that is gone answers nothing more
        probe.steps[name] = stats(port)
    try:
        idle(probe, settle_s)
    except (OSError, ValueError, http.client.HTTPException) as error:
        probe.check("the server lives", False, repr(error)[:300])
    server = {
        name: info.get(name) for name in ("version", "page_size", "speculative_algorithm", THRESHOLD_KEY)
    }
    out.write_text(
        json.dumps({"server": server, "entries": probe.entries, "checks": probe.checks, "steps": probe.steps})
    )
    failed = [f"{key}: {e['error']}" for key, e in probe.entries.items() if "error" in e]
    failed += [f"{name}: {said}" for name, said in probe.checks.items() if said.startswith("FAILED")]
    print(
        f"{out.stem}: {len(probe.entries)} requests, {time.monotonic() - began:.1f} s, {len(failed)} failed"
    )
    for line in failed[:20]:
        print(f"  {line}")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    modes = parser.add_subparsers(dest="mode", required=True)
    runs = modes.add_parser("run")
    runs.add_argument("--port", type=int, required=True)
    runs.add_argument("--out", type=Path, required=True)
    runs.add_argument("--pid", type=int)
    runs.add_argument("--ready", type=float, default=240)
    runs.add_argument("--phases", type=lambda words: words.split(","), default=list(PHASES))
    compares = modes.add_parser("compare")
    compares.add_argument("reference", type=Path)
    compares.add_argument("others", type=Path, nargs="+")
    args = parser.parse_args()
    if args.mode == "compare":
        return compare(args.reference, args.others)
    wait_ready(args.port, args.pid, args.ready)
    return run(args.port, args.out, args.phases)


if __name__ == "__main__":
    sys.exit(main())
