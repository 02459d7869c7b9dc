"""Drive a server through changes of mode, keep every output, and tell a defect from a near-tie.

    switch_probe.py run --port P --out ARM.json [--seconds 40] [--pid SERVER] [--ready 240]
    switch_probe.py compare REFERENCE.json ARM.json... [--port P_OF_REFERENCE]

Each round sends three scenarios made for a threshold of 6; prompts and lengths depend on the round's number alone:
    waves      4 requests of 600 to 780 tokens speculate while waves of 12 short ones come and go five times
    staircase  10 requests that start together and end one by one, each with its own length: plain, then speculation
    hover      6 requests at the threshold, and a seventh slot that short requests enter and leave
`run` writes {"requests": {key: {"ids", "chunks", "meta"}}, "rounds", "stats", "idle"}; `chunks` holds the tokens that
each streamed chunk brought (1 for a plain step, more for most speculative ones, as far as the client keeps up).

`compare` looks at requests that both files have. Two kernels round differently, so where the two best tokens are
almost equally likely the choice may differ without a defect: with --port the reference server is asked again, with log
probabilities, for each request that differs, and a first difference is a near-tie when the other arm took the
reference's second choice and its gap is at most NEAR_TIE nats. Anything else is unexplained: exit status 1.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import http.client
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

VOCAB = 1024
NEAR_TIE = 0.25
AROUND = 4
TIMEOUT_S = 60
SETTLE_S = 0.5  # an idle server checks its own memory well within that

Requests = dict[str, dict[str, Any]]


def prompt(number: int) -> list[int]:
    """Token ids with a period of 4 to 24, two to three times, as `orchestrator.load.prompts.periodic` makes them."""
    source = random.Random(number)
    period = source.randint(4, 24)
    base = [source.randrange(16, VOCAB) for _ in range(period)]
    return (base * 3)[: 2 * period + source.randint(0, period)]


def call(port: int, method: str, path: str, body: Any = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode("utf-8", "replace")
    finally:
        connection.close()


class Probe:
    """Sends keyed requests from threads and collects what they brought."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.pool = concurrent.futures.ThreadPoolExecutor(max_workers=32)
        self.requests: Requests = {}

    def send(self, key: str, number: int, tokens: int, *, stream: bool) -> concurrent.futures.Future[None]:
        return self.pool.submit(self._send, key, number, tokens, stream)

    def _send(self, key: str, number: int, tokens: int, stream: bool) -> None:
        body = {
            "input_ids": prompt(number),
            "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True},
            "stream": stream,
        }
        entry: dict[str, Any] = {"number": number, "tokens": tokens}
        self.requests[key] = entry
        try:
            status, text = call(self.port, "POST", "/generate", body)
            if status != 200:
                raise RuntimeError(f"HTTP {status}: {text[:200]}")
            entry.update(_streamed(text) if stream else _answer(json.loads(text)))
        except (OSError, RuntimeError, ValueError, http.client.HTTPException) as error:
            entry["error"] = repr(error)[:300]


def _answer(data: dict[str, Any]) -> dict[str, Any]:
    meta = {name: value for name, value in data["meta_info"].items() if name.startswith("spec_")}
    return {"ids": data["output_ids"], "meta": meta}


def _streamed(text: str) -> dict[str, Any]:
    """The last chunk of a stream of cumulative chunks, and how many tokens each brought."""
    sizes, before, last = [], 0, None
    for line in text.splitlines():
        if line.startswith("data: {"):
            last = json.loads(line[6:])
            sizes.append(len(last["output_ids"]) - before)
            before = len(last["output_ids"])
    if last is None:
        raise ValueError("an empty stream")
    return {**_answer(last), "chunks": sizes}


# The scenarios.


def waves(probe: Probe, name: str, base: int) -> None:
    long = []
    for i in range(4):
        long.append(probe.send(f"{name}/long-{i}", base + i, 600 + 60 * i, stream=True))
        time.sleep(0.005)
    for wave in range(5):
        time.sleep(0.03)
        first = base + 100 + 12 * wave
        concurrent.futures.wait(
            [probe.send(f"{name}/wave-{wave}-{i}", first + i, 40, stream=False) for i in range(12)]
        )
    concurrent.futures.wait(long)


def staircase(probe: Probe, name: str, base: int) -> None:
    concurrent.futures.wait(
        [probe.send(f"{name}/{i}", base + i, 30 * (i + 1), stream=True) for i in range(10)]
    )


def hover(probe: Probe, name: str, base: int) -> None:
    long = [probe.send(f"{name}/long-{i}", base + i, 300, stream=True) for i in range(6)]
    for i in range(12):
        time.sleep(0.01)
        concurrent.futures.wait([probe.send(f"{name}/short-{i}", base + 100 + i, 12, stream=False)])
    concurrent.futures.wait(long)


SCENARIOS = {"waves": waves, "staircase": staircase, "hover": hover}


def stats(port: int) -> dict[str, Any]:
    """`dynspec_stats` of the first rank; empty without the patch."""
    states = json.loads(call(port, "GET", "/server_info")[1]).get("internal_states") or [{}]
    found = states[0].get("dynspec_stats") or {}
    return {name: value for name, value in found.items() if not isinstance(value, list)}


def wait_ready(port: int, pid: int | None, limit_s: float) -> None:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if pid is not None and not os.path.exists(f"/proc/{pid}"):
            raise SystemExit(f"port {port}: the server ended before it was ready")
        try:
            if call(port, "GET", "/health")[0] == 200 and _generates(port):
                return
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(0.5)
    raise SystemExit(f"port {port}: not ready after {limit_s:.0f} s")


def run(port: int, out: Path, seconds: float) -> int:
    """Rounds until `seconds` have passed; afterwards the idle server must flush and answer once more."""
    probe, rounds, after = Probe(port), 0, []
    began, failed = time.monotonic(), 0
    while time.monotonic() - began < seconds and not failed:
        for position, (name, scenario) in enumerate(SCENARIOS.items()):
            scenario(probe, f"{rounds:03d}/{name}", 1_000_000 + 10_000 * rounds + 1_000 * position)
        failed = sum("error" in entry for entry in probe.requests.values())
        rounds += 1
        if not failed:
            after.append(stats(port))
    took = time.monotonic() - began
    idle = _after(port)
    out.write_text(json.dumps({"requests": probe.requests, "rounds": rounds, "stats": after, "idle": idle}))
    tokens = sum(len(entry.get("ids", ())) for entry in probe.requests.values())
    count = f"{rounds} rounds, {len(probe.requests)} requests, {failed} failed, {tokens} tokens"
    print(f"{out.stem}: {count}, {took:.1f} s")
    print(f"{out.stem}: {idle}; {after[-1] if after else 'no counters'}", flush=True)
    return 1 if failed or idle["flush"] != 200 or not idle["alive"] else 0


def _after(port: int) -> dict[str, Any]:
    """What an idle server, whose own check for leaked slots has run by now, answers."""
    time.sleep(SETTLE_S)
    try:
        return {"flush": call(port, "POST", "/flush_cache")[0], "alive": _generates(port)}
    except (OSError, http.client.HTTPException) as error:
        return {"flush": None, "alive": False, "error": repr(error)[:200]}


def _generates(port: int) -> bool:
    body = {"input_ids": prompt(0), "sampling_params": {"temperature": 0, "max_new_tokens": 8}}
    return call(port, "POST", "/generate", body)[0] == 200


# Comparison.


def compare(reference: Path, others: list[Path], port: int | None) -> int:
    """Print what differs; 1 if a difference has no explanation or an arm has fewer rounds than one."""
    expected = json.loads(reference.read_text())["requests"]
    unexplained = 0
    for path in others:
        data = json.loads(path.read_text())
        shared = [
            key
            for key in data["requests"]
            if "ids" in data["requests"][key] and "ids" in expected.get(key, ())
        ]
        differing = [key for key in shared if data["requests"][key]["ids"] != expected[key]["ids"]]
        verdicts = [_explain(expected[key], data["requests"][key], port) for key in sorted(differing)]
        bad = sum(verdict[0] != "near-tie" for verdict in verdicts)
        unexplained += bad + (not shared)
        print(f"{path.stem}: {len(shared)} compared, {len(differing)} differ, {bad} of them unexplained")
        for key, (word, text) in zip(sorted(differing), verdicts, strict=True):
            print(f"  {word} {key} {text}")
        _print_transitions(data)
    return 1 if unexplained else 0


def _explain(expected: dict[str, Any], got: dict[str, Any], port: int | None) -> tuple[str, str]:
    """A word (near-tie, unstable, differs) and where, in which mode, and how close the choice was."""
    first, second = expected["ids"], got["ids"]
    at = next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b),
        min(len(first), len(second)),
    )
    near = slice(max(0, at - AROUND), at + AROUND)
    text = f"at {at} of {len(first)}: {first[near]} -> {second[near]}; {_mode(got, at)}; {got['meta']}"
    if port is None or at >= min(len(first), len(second)):
        return "differs", text
    again, gap, runner_up = _ask_again(port, expected, at)
    text += f"; gap {gap:.3f} nats, second choice {runner_up}"
    if again[:at] != first[:at]:
        return "unstable", f"{text}; the reference itself differs when asked again"
    return ("near-tie" if gap <= NEAR_TIE and second[at] in (runner_up, again[at]) else "differs"), text


def _mode(entry: dict[str, Any], at: int) -> str:
    """The chunk that brought token `at`, in brackets, among its neighbours."""
    seen = 0
    for i, size in enumerate(entry.get("chunks", ())):
        seen += size
        if at < seen:
            sizes = entry["chunks"]
            before, after = sizes[max(0, i - 8) : i], sizes[i + 1 : i + 9]
            return f"tokens a chunk {before} [{size}] {after}"
    return "not streamed"


def _ask_again(port: int, entry: dict[str, Any], at: int) -> tuple[list[int], float, int]:
    """The reference's ids up to `at`, its gap between first and second choice there, and the second choice."""
    body = {
        "input_ids": prompt(entry["number"]),
        "sampling_params": {"temperature": 0, "max_new_tokens": at + 1, "ignore_eos": True},
        "return_logprob": True,
        "top_logprobs_num": 2,
    }
    data = json.loads(call(port, "POST", "/generate", body)[1])
    (best, _, *_), (next_best, runner_up, *_) = data["meta_info"]["output_top_logprobs"][at][:2]
    return data["output_ids"], best - next_best, runner_up


def _print_transitions(data: dict[str, Any]) -> None:
    """The counters, and how many streamed requests lived through both modes."""
    streamed = [entry for entry in data["requests"].values() if len(entry.get("chunks", ())) > 1]
    mixed = sum(
        entry["meta"].get("spec_verify_ct", 0) > 0
        and 1 in entry["chunks"][1:]
        and max(entry["chunks"][1:]) > 1
        for entry in streamed
    )
    last = data["stats"][-1] if data["stats"] else {}
    print(
        f"  {data['rounds']} rounds; {mixed} of {len(streamed)} streamed requests had steps of both sizes; {last}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    modes = parser.add_subparsers(dest="mode", required=True)
    runs = modes.add_parser("run")
    runs.add_argument("--port", type=int, required=True)
    runs.add_argument("--out", type=Path, required=True)
    runs.add_argument("--seconds", type=float, default=40)
    runs.add_argument("--ready", type=float, default=240)
    runs.add_argument("--pid", type=int)
    compares = modes.add_parser("compare")
    compares.add_argument("reference", type=Path)
    compares.add_argument("others", type=Path, nargs="+")
    compares.add_argument("--port", type=int)
    args = parser.parse_args()
    if args.mode == "compare":
        return compare(args.reference, args.others, args.port)
    wait_ready(args.port, args.pid, args.ready)
    return run(args.port, args.out, args.seconds)


if __name__ == "__main__":
    sys.exit(main())
