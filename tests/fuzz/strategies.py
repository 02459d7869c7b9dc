"""Inputs that break parsers: text of every kind, JSON of every kind, and good inputs with something done to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st

T = TypeVar("T", str, bytes)

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


def texts() -> st.SearchStrategy[str]:
    """Any text, lone surrogates too: JSON can carry them."""
    return st.one_of(st.sampled_from(ODD_TEXTS), st.text(st.characters(), max_size=40))


def scalars() -> st.SearchStrategy[Any]:
    numbers = st.one_of(st.sampled_from(ODD_NUMBERS), st.integers(), st.floats())
    return st.one_of(st.none(), st.booleans(), numbers, texts())


def json_values() -> st.SearchStrategy[Any]:
    return st.recursive(
        scalars(),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
        ),
        max_leaves=12,
    )


@st.composite
def damaged(draw: st.DrawFn, originals: Sequence[T], pieces: Sequence[T]) -> T:
    """One of `originals` with up to four cuts, doublings, moves or insertions of `pieces`."""
    data = draw(st.sampled_from(originals))
    for _ in range(draw(st.integers(0, 4))):
        at, to = sorted((draw(st.integers(0, len(data))), draw(st.integers(0, len(data)))))
        match draw(st.integers(0, 4)):
            case 0:
                data = data[:at] + data[to:]
            case 1:
                data = data[:to] + data[at:]
            case 2:
                data = data[:at]
            case 3:
                data = data[:at] + draw(st.sampled_from(pieces)) + data[at:]
            case _:
                data = data[:at] + draw(st.sampled_from(pieces)) + data[min(len(data), at + 1) :]
    return data


@st.composite
def with_odd_values(draw: st.DrawFn, original: Any, odd: st.SearchStrategy[Any]) -> Any:
    """A copy of a JSON-like tree in which up to three places hold something else, lack or have more."""
    tree = _copy(original)
    for _ in range(draw(st.integers(1, 3))):
        tree = _change(draw, tree, odd)
    return tree


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _change(draw: st.DrawFn, tree: Any, odd: st.SearchStrategy[Any]) -> Any:
    keys: list[Any] = (
        list(tree) if isinstance(tree, dict) else list(range(len(tree))) if isinstance(tree, list) else []
    )
    if not keys or draw(st.integers(0, 4)) == 0:
        return draw(odd)
    key = draw(st.sampled_from(keys))
    match draw(st.integers(0, 5)):
        case 0:
            del tree[key]
        case 1:
            if isinstance(tree, dict):
                tree[draw(st.text(max_size=6))] = tree[key]
            else:
                tree.append(_copy(tree[key]))
        case _:
            tree[key] = _change(draw, tree[key], odd)
    return tree
