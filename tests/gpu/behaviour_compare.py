"""Two servers' answers to the requests of behaviour_probe.py, side by side."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NEAR_TIE = 0.25
# Nats, and a share of the log probability itself. Two servers without speculation that differ in batching alone were
# 0.19 apart on tokens of the tail (-12 to -14 nats), 0.0 to 0.1 on chosen ones.
TOLERANCE, SHARE = 0.2, 0.05
PAGE = 16
NOTHING = -1e9  # log probability of a token that a grammar forbids: the server says null
OPTIONS = ("penalty", "stop ids")  # an option of these that changes nothing proves nothing

Entry = dict[str, Any]


def compare(reference: Path, others: list[Path]) -> int:
    """Print a table for each of `others`; 1 if anything differs beyond a near-tie."""
    expected = json.loads(reference.read_text())
    bad = 0
    for path in others:
        data = json.loads(path.read_text())
        print(f"{path.stem} against {reference.stem}: {data['server']}")
        print(f"  {'feature':<28} requests equal near-tie different  acts  largest difference, nats")
        details: list[str] = []
        for feature, keys in _features(data["entries"]):
            bad += _row(feature, keys, expected["entries"], data["entries"], details)
        for name, said in data["checks"].items():
            print(f"  {name}: {said}")
            bad += said.startswith("FAILED")
        print(*details, sep="\n")
    return 1 if bad else 0


def _features(entries: dict[str, Entry]) -> Iterator[tuple[str, list[str]]]:
    def feature(key: str) -> str:
        return key.rsplit("/", 1)[0]

    yield from ((name, list(keys)) for name, keys in itertools.groupby(sorted(entries), feature))


def _row(
    feature: str, keys: list[str], expected: dict[str, Entry], got: dict[str, Entry], details: list[str]
) -> int:
    """Print one line of the table; how many requests differ."""
    words, largest, acts = [], 0.0, 0
    for key in keys:
        word, note, size = judge(key, expected, got)
        words.append(word)
        largest = max(largest, size)
        base = expected.get(f"plain/logprobs/{key.rsplit('/', 1)[1]}", {}).get("ids")
        acts += expected.get(key, {}).get("ids") not in (None, base)
        if word != "equal":
            details.append(f"  {word} {key}: {note}")
    counts = [words.count(word) for word in ("equal", "near-tie", "different")]
    shown = f"{acts:5}" if feature.endswith(OPTIONS) else "     "
    print(f"  {feature:<28} {len(keys):8} {counts[0]:5} {counts[1]:8} {counts[2]:9} {shown}  {largest:.3f}")
    return counts[2]


def judge(key: str, expected: dict[str, Entry], got: dict[str, Entry]) -> tuple[str, str, float]:
    """equal, near-tie or different; why; and the largest difference of two log probabilities."""
    first, second = expected.get(key, {}), got[key]
    if "ids" not in first or "ids" not in second:
        return "different", str(first.get("error") or second.get("error") or "not in the reference"), 0.0
    size, beyond = _apart(first, second)
    at = _first_difference(key, first, second)
    if at is not None:
        gap = _gap(key, at, expected, second)
        word = "near-tie" if gap is not None and gap <= NEAR_TIE else "different"
        near = f"{first['ids'][max(0, at - 2) : at + 3]} -> {second['ids'][max(0, at - 2) : at + 3]}"
        return word, f"token {at}: {near}, gap {gap}, finish {first['finish']} {second['finish']}", size
    if beyond is not None:
        return "different", "log probabilities {:.3f} and {:.3f}".format(*beyond), size
    if "radix" in key and abs((first["cached"] or 0) - (second["cached"] or 0)) > PAGE:
        return "different", f"cached tokens {first['cached']} -> {second['cached']}", size
    return "equal", "", size


def _first_difference(key: str, first: Entry, second: Entry) -> int | None:
    """The first position that differs; requests that were cut off are compared as far as both go."""
    pairs = zip(first["ids"], second["ids"], strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if at is not None or "/abort/" in key or "/leave/" in key:
        return at
    same = len(first["ids"]) == len(second["ids"]) and first["finish"] == second["finish"]
    return None if same else min(len(first["ids"]), len(second["ids"]))


def _gap(key: str, at: int, expected: dict[str, Entry], second: Entry) -> float | None:
    """How far the reference saw its choice at `at` ahead of the other's; None where it doesn't say."""
    tops = expected[key].get("output_top_logprobs") or _twin(key, expected).get("output_top_logprobs")
    if not tops or at >= len(tops) or at >= len(second["ids"]):
        return None
    chosen = tops[at].get(str(expected[key]["ids"][at]))
    other = tops[at].get(str(second["ids"][at]))
    return None if chosen is None or other is None else round(chosen - other, 3)


def _twin(key: str, expected: dict[str, Entry]) -> Entry:
    """The entry with log probabilities of a request that was sent without."""
    return expected.get(key.replace("/greedy/", "/logprobs/"), {})


def _apart(first: Entry, second: Entry) -> tuple[float, tuple[float, float] | None]:
    """Log probabilities up to the first token that differs: the largest difference, and a pair beyond the tolerance."""
    same = [a == b for a, b in zip(first["ids"], second["ids"], strict=False)]
    until = same.index(False) if False in same else len(same)
    pairs = [
        (a, b)
        for name, end in (("input_token_logprobs", None), ("output_token_logprobs", until))
        for a, b in zip(first.get(name, ())[:end], second.get(name, ())[:end], strict=False)
    ]
    for name in ("output_top_logprobs", "output_token_ids_logprobs"):
        for one, two in zip(first.get(name, ())[:until], second.get(name, ())[:until], strict=False):
            pairs += [(one[token], two[token]) for token in one.keys() & two.keys()]
    pairs = [pair for pair in pairs if NOTHING not in pair]
    beyond = [(a, b) for a, b in pairs if abs(a - b) > TOLERANCE - SHARE * max(a, b)]
    return max((abs(a - b) for a, b in pairs), default=0.0), next(iter(beyond), None)
