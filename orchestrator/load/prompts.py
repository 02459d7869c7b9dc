"""What is sent: builtin real-text prompts, a JSONL file, or token ids. The same prompts in the same order for all arms.

A prompt that a server has had would come from its prefix cache: `allot` hands out each one once and, when all have been
handed out, goes round again with a short prefix that no earlier request had. A file's lines that are alike are not told
apart in the first round; the report notes what came from the cache.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from orchestrator.errors import UsageError
from orchestrator.loadgen.bodies import prompt_kind
from orchestrator.model.experiment import PROMPT_KINDS, Prompts
from orchestrator.plain_file import read_plain

Prompt = str | list[int] | list[dict[str, Any]]
_SEPARATOR = "\n=====\n"


@dataclass(frozen=True)
class PointPrompts:
    """The prompts of one point of a boot."""

    warmup: tuple[Prompt, ...]
    load: tuple[Prompt, ...]


def allot(
    prompts: Prompts, needs: Sequence[tuple[int, int]], base: Path = Path()
) -> tuple[PointPrompts, ...]:
    """Prompts for every point of a boot, in sweep order; `needs` holds (warm-up requests, load requests) of each point.

    Depends on its arguments alone, so every arm and boot sends the same bodies. A relative path counts from `base`.
    """
    supply = endless(prompts, base)
    take: Callable[[int], tuple[Prompt, ...]] = lambda count: tuple(next(supply) for _ in range(count))  # noqa: E731
    return tuple(PointPrompts(warmup=take(warmup), load=take(load)) for warmup, load in needs)


def endless(prompts: Prompts, base: Path = Path()) -> Iterator[Prompt]:
    """Each prompt once, then without end again and again behind a prefix of its own; made-up token ids never repeat."""
    if prompts.source == "input_ids" and prompts.path is None:
        yield from periodic(prompts.vocab or 1024, prompts.seed)
    given = (
        tuple(load_file(base / prompts.path))
        if prompts.path is not None
        else builtin(prompts.kinds, prompts.seed)
    )
    yield from given
    lap = 1
    while True:
        for position, prompt in enumerate(given):
            yield make_unique(prompt, lap, position)
        lap += 1


def digest_of(prompts: Prompts, base: Path = Path()) -> str:
    """sha256 over the texts that `prompts` stands for: the file may be edited while its name stays.

    Raises UsageError for a file that cannot be read.
    """
    if prompts.path is None:
        texts = builtin(prompts.kinds, prompts.seed) if prompts.source == "builtin" else ()
        given = "\0".join((prompts.source, *texts)).encode()
    else:
        try:
            given = read_plain(base / prompts.path)
        except OSError as error:
            raise UsageError(f"sweep.prompts: cannot read {base / prompts.path}: {error.strerror}") from None
    return hashlib.sha256(given).hexdigest()


def builtin(kinds: Sequence[str] = PROMPT_KINDS, seed: int | None = None) -> tuple[str, ...]:
    """The carried prompts of these kinds, taken in turn from each, so that any short run of them is a mix.

    A seed gives each kind an order of its own.
    """
    unknown = [kind for kind in kinds if kind not in PROMPT_KINDS]
    if unknown or not kinds:
        wrong = f"no kind {unknown[0]!r}" if unknown else "empty"
        raise UsageError(f"sweep.prompts.kinds: {wrong}; known: {', '.join(PROMPT_KINDS)}")
    sets = [_carried(kind) for kind in kinds]
    for texts in sets if seed is not None else ():
        random.Random(seed).shuffle(texts)
    longest = max(map(len, sets))
    return tuple(texts[position] for position in range(longest) for texts in sets if position < len(texts))


def _carried(kind: str) -> list[str]:
    """The prompts of one text file; a line `@name` stands for the block of that name in tools.txt."""
    blocks = dict(block.split("\n", 1) for block in _text("tools").removeprefix("@").split("\n@"))

    def block(match: re.Match[str]) -> str:
        return blocks[match[1]].strip("\n")

    parts = _text(kind).split(_SEPARATOR)
    return [re.sub(r"^@([a-z]+)$", block, part.strip("\n"), flags=re.MULTILINE) for part in parts]


def _text(name: str) -> str:
    return resources.files(__package__).joinpath("texts", f"{name}.txt").read_text(encoding="utf-8")


def load_file(path: Path) -> Iterator[Prompt]:
    """Prompts of a JSONL file. A line is text, token ids, or an object with `prompt`, `input_ids` or `messages`."""
    try:
        lines = read_plain(path).decode("utf-8").split("\n")  # not splitlines: JSON text may hold U+2028
    except OSError as error:
        raise UsageError(f"sweep.prompts: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        bad = error.object.count(b"\n", 0, error.start) + 1
        raise UsageError(f"sweep.prompts: {path}:{bad}: not UTF-8", help="save the file as UTF-8") from None
    found = False
    for number, line in enumerate(lines, start=1):
        if line.strip():
            found = True
            yield _line_prompt(line, f"{path}:{number}")
    if not found:
        raise UsageError(f"sweep.prompts: {path} has no prompts")


def _line_prompt(line: str, where: str) -> Prompt:
    try:
        value = json.loads(line)
        if isinstance(value, dict):
            keys = [key for key in ("prompt", "input_ids", "messages") if key in value]
            if len(keys) != 1:
                raise ValueError("an object needs exactly one of `prompt`, `input_ids`, `messages`")
            value = value[keys[0]]
        prompt_kind(value)
    except RecursionError:
        raise UsageError(f"sweep.prompts: {where}: brackets without end") from None
    except ValueError as error:
        raise UsageError(f"sweep.prompts: {where}: {error}") from None
    prompt: Prompt = value
    return prompt


def periodic(vocab: int, seed: int) -> Iterator[list[int]]:
    """Token ids that repeat with a period of 4 to 24, two to three times: a model trained on such continues them."""
    position = 0
    while True:
        source = random.Random(seed + position)
        period = source.randint(4, 24)
        base = [source.randrange(16, vocab) for _ in range(period)]
        yield (base * 3)[: 2 * period + source.randint(0, period)]
        position += 1


def make_unique(prompt: Prompt, lap: int, position: int) -> Prompt:
    """The same prompt behind a prefix of its own: text and chat by a tag, ids by a sequence of ids it already has."""
    if isinstance(prompt, str):
        return f"[{lap}.{position}] {prompt}"
    if isinstance(prompt[0], dict):
        first, *rest = prompt
        assert isinstance(first, dict)
        content = first.get("content")
        if isinstance(content, list):
            return [{**first, "content": [{"type": "text", "text": f"[{lap}.{position}]"}, *content]}, *rest]
        return [{**first, "content": f"[{lap}.{position}] {content or ''}"}, *rest]
    return _id_prefix(prompt, lap, position) + prompt


def _id_prefix(ids: list[int], lap: int, position: int) -> list[int]:
    """Eight ids drawn from the prompt's own: nothing outside the model's vocabulary can come in."""
    return random.Random(f"{lap}.{position}").choices(ids, k=8)
