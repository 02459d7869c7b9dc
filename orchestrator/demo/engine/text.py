"""Prompts to token ids, and the answer: every output token is a pure function of prompt and position.

So greedy answers are equal between arms, whatever the batch size or the mode, and a draft token is right or
wrong at a position whatever came before: outputs and accept lengths of a run can be repeated.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

_PIECE = re.compile(r"\w{1,6}|[^\w\s]")
_WORDS = Path(__file__).with_name("words.txt").read_text(encoding="utf-8").split()
EOS = 2
_FIRST = 10  # ids below are special tokens


def token_ids(text: str, vocabulary: int) -> list[int]:
    """About 1.3 tokens a word of English. Equal pieces have equal ids."""
    return [_FIRST + zlib.crc32(piece.encode()) % (vocabulary - _FIRST) for piece in _PIECE.findall(text)]


def chat_ids(messages: Iterable[dict[str, object]], vocabulary: int) -> list[int]:
    """Token ids of a chat: a few marker tokens around each message and at the end."""
    ids = [1]
    for message in messages:
        content = message.get("content") or ""
        if isinstance(content, list):
            content = " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        ids += [3, 4, *token_ids(str(message.get("role", "")), vocabulary), 5]
        ids += [*token_ids(str(content), vocabulary), 6]
    return [*ids, 3, 4, 5]


def decode(ids: Iterable[int]) -> str:
    """Text of output ids; special ids have none. The text of a list is the texts of its tokens joined."""
    return "".join(f" {_WORDS[token % len(_WORDS)]}" for token in ids if token >= _FIRST)


class Answer:
    """The endless answer to one prompt. `salt` tells draws apart (seed, or sampling at temperature > 0)."""

    def __init__(self, prompt: Sequence[int], vocabulary: int, salt: str = "") -> None:
        raw = ",".join(map(str, prompt)) + "|" + salt
        self._key = hashlib.blake2b(raw.encode(), digest_size=16).digest()
        self._vocabulary = vocabulary
        self._blocks: dict[tuple[str, int], bytes] = {}

    def _draw(self, purpose: str, position: int) -> int:
        """32 reproducible bits for a position."""
        block = self._blocks.get((purpose, position // 16))
        if block is None:
            name = f"{purpose}{position // 16}".encode()
            block = hashlib.blake2b(self._key + name, digest_size=64).digest()
            self._blocks[(purpose, position // 16)] = block
        start = 4 * (position % 16)
        return int.from_bytes(block[start : start + 4], "big")

    def token(self, position: int) -> int:
        return _FIRST + self._draw("t", position) % (self._vocabulary - _FIRST)

    def draft_is_right(self, position: int, rate: float) -> bool:
        return self._draw("d", position) < rate * 2**32

    def accepted(self, position: int, rate: float, longest: int) -> int:
        """Tokens that a verify step starting at `position` yields, the bonus token included (1 .. longest)."""
        count = 1
        while count < longest and self.draft_is_right(position + count - 1, rate):
            count += 1
        return count

    @property
    def natural_length(self) -> int:
        """Where the answer ends by itself (end-of-sequence token) when `ignore_eos` is not set."""
        return 48 + self._draw("n", 0) % 400
