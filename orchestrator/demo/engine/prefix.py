"""The prefix cache: which leading tokens of a prompt are still known, token by token (page size 1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class PrefixCache:
    """Remembers prefixes by chained hashes, oldest dropped first. `capacity` in tokens."""

    def __init__(self, capacity: int, enabled: bool = True) -> None:
        self._capacity = capacity
        self._enabled = enabled
        self._known: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._known)

    def match(self, prompt: Sequence[int]) -> int:
        """Leading tokens that are cached. The last token is always computed, as the engine needs its logits."""
        count = 0
        for link in _chain(prompt[:-1]):
            if link not in self._known:
                break
            count += 1
        return count

    def insert(self, tokens: Iterable[int]) -> None:
        if not self._enabled:
            return
        for link in _chain(tokens):
            self._known.pop(link, None)
            self._known[link] = None
        while len(self._known) > self._capacity:
            self._known.pop(next(iter(self._known)))

    def clear(self) -> None:
        self._known.clear()


def _chain(tokens: Iterable[int]) -> Iterable[int]:
    link = 0
    for token in tokens:
        link = hash((link, token))
        yield link
