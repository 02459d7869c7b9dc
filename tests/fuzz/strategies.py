"""Inputs that break parsers: text of every kind, JSON of every kind, and good inputs with something done to them.

Hypothesis draws one seed for each input, and a generator makes the input from it. Drawing every character and branch
through hypothesis took several times as long, for inputs no odder than these; what is lost is a short failing input,
what is won is that 100,000 of them can be tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeVar

import yaml
from hypothesis import strategies as st

T = TypeVar("T", str, bytes)
V = TypeVar("V")
Make = Callable[[Random], V]

ODD_TEXTS = (
    "",
    " ",
    "\0",
    "\n",
    "\r\n",
    "\t",
    "~",
    "~/",
    "..",
    "../..",
    "/",
    "-",
    "--",
    "$HOME",
    "`id`",
    "null",
    "true",
    "no",
    "0x1F",
    "1e999",
    "-0",
    "NaN",
    "Infinity",
    "9" * 30,
    "9" * 5000,
    "\ud800",
    "\udcff",
    "\ufeff",
    "\u2028",
    "é" * 300,
    "\x1b[31m",
    "<script>",
    "*a",
    "&a",
    "!!python/object/apply:os.system",
    "<<",
    "[" * 400,
    "{" * 400,
)
ODD_NUMBERS = (0, -1, 1, 2, 2**31, 2**32, 2**63, 2**64, 10**30, -(10**30))

ALPHABETS = (range(32, 127), range(256), range(0x110000), range(0xD800, 0xE000))
FLOATS = (0.0, -0.0, 0.5, 1e-320, 1e308, float("inf"), float("-inf"), float("nan"))


def seeded(make: Make[V]) -> st.SearchStrategy[V]:
    return st.binary(min_size=8, max_size=8).map(lambda seed: make(Random(seed)))


def texts() -> st.SearchStrategy[str]:
    """Any text, lone surrogates too: JSON can carry them."""
    return seeded(text)


def texts_of(letters: str, most: int) -> st.SearchStrategy[str]:
    return seeded(lambda random: "".join(random.choices(letters, k=random.randint(0, most))))


def text(random: Random) -> str:
    return random.choice(ODD_TEXTS) if random.random() < 0.4 else name(random, 40)


def name(random: Random, most: int = 8) -> str:
    alphabet = random.choice(ALPHABETS)
    return "".join(map(chr, random.choices(alphabet, k=random.randint(0, most))))


def number(random: Random) -> int | float:
    match random.randrange(4):
        case 0:
            return random.choice(ODD_NUMBERS)
        case 1:
            return random.randint(-1000, 1000)
        case 2:
            return random.randint(-(2**70), 2**70)
        case _:
            return random.choice([*FLOATS, random.uniform(-1e6, 1e6)])


def json_values() -> st.SearchStrategy[Any]:
    return seeded(json_value)


def json_value(random: Random, depth: int = 3) -> Any:
    match random.randrange(8 if depth else 6):
        case 0:
            return None
        case 1:
            return random.random() < 0.5
        case 2 | 3:
            return number(random)
        case 4 | 5:
            return text(random)
        case 6:
            return [json_value(random, depth - 1) for _ in range(random.randint(0, 4))]
        case _:
            return {name(random): json_value(random, depth - 1) for _ in range(random.randint(0, 4))}


def damaged(originals: Sequence[T], pieces: Sequence[T]) -> st.SearchStrategy[T]:
    """One of `originals` with up to four cuts, doublings, moves or insertions of `pieces`."""
    return seeded(lambda random: _damaged(random, random.choice(originals), pieces))


def _damaged(random: Random, data: T, pieces: Sequence[T]) -> T:
    for _ in range(random.randint(0, 4)):
        at, to = sorted((random.randint(0, len(data)), random.randint(0, len(data))))
        match random.randrange(5):
            case 0:
                data = data[:at] + data[to:]
            case 1:
                data = data[:to] + data[at:]
            case 2:
                data = data[:at]
            case 3:
                data = data[:at] + random.choice(pieces) + data[at:]
            case _:
                data = data[:at] + random.choice(pieces) + data[min(len(data), at + 1) :]
    return data


def with_odd_values(originals: Sequence[Any], odd: Make[Any] = json_value) -> st.SearchStrategy[Any]:
    """A copy of one of these JSON-like trees in which up to three places hold something else, lack or have more."""
    return seeded(lambda random: spoilt(random, random.choice(originals), odd))


def spoilt(random: Random, original: Any, odd: Make[Any] = json_value) -> Any:
    tree = _copy(original)
    for _ in range(random.randint(1, 3)):
        tree = _change(random, tree, odd)
    return tree


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _change(random: Random, tree: Any, odd: Make[Any]) -> Any:
    keys: list[Any] = (
        list(tree) if isinstance(tree, dict) else list(range(len(tree))) if isinstance(tree, list) else []
    )
    if not keys or random.randrange(5) == 0:
        return _copy(odd(random))
    key = random.choice(keys)
    match random.randrange(6):
        case 0:
            del tree[key]
        case 1:
            if isinstance(tree, dict):
                tree[name(random, 6)] = tree[key]
            else:
                tree.append(_copy(tree[key]))
        case _:
            tree[key] = _change(random, tree[key], odd)
    return tree


def as_yaml(tree: Any) -> str:
    """Block style, by the quick writer where it can: it has no escapes for half a character."""
    try:
        return yaml.dump(tree, Dumper=yaml.CSafeDumper, allow_unicode=True)
    except UnicodeEncodeError:
        return yaml.safe_dump(tree, allow_unicode=True)
