"""The requests of behaviour_probe.py. The small model decides its tokens by wide margins for about 150 tokens."""

from __future__ import annotations

import dataclasses
from typing import Any

from byte_tokenizer import token_text
from switch_probe import prompt

SCHEMA = '{"type":"object","properties":{"n":{"type":"integer"},"k":{"enum":["x","y"]}},"required":["n","k"]}'
REGEX = "(ab|cd){3,6}[0-9]{2}"
LOGPROBS = {"return_logprob": True, "top_logprobs_num": 4}
# Hot enough that a sampler which ignores min_p, a seed or a filter would choose almost any token.
HOT = 8.0


@dataclasses.dataclass(frozen=True)
class Request:
    """One /generate request; `until` chunks later it is aborted or its connection is closed, if `end` says so."""

    key: str
    ids: tuple[int, ...]
    tokens: int = 64
    sampling: dict[str, Any] = dataclasses.field(default_factory=dict)
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)
    end: str = ""
    until: int = 3

    def body(self) -> dict[str, Any]:
        sampling = {"temperature": 0, "max_new_tokens": self.tokens, "ignore_eos": True, **self.sampling}
        body = {"rid": self.key, "input_ids": list(self.ids), "sampling_params": sampling, **self.extra}
        return {**body, "stream": True} if self.end else body


def several(key: str, count: int, first: int = 0, **options: Any) -> list[Request]:
    """`count` requests with the prompts from number `first` on."""
    return [Request(f"{key}/{i}", tuple(prompt(first + i)), **options) for i in range(count)]


def plain_requests(seeded: bool) -> list[Request]:
    """What the plain phase sends at once. Options go with the prompts of `greedy`, so that their effect shows.

    No min_p where each request has a seed (deterministic inference): SGLang 0.5.11 has no such sampler and ends.
    """

    stops = [
        Request(f"plain/stop ids/{i}", tuple(ids), sampling={"stop_token_ids": [ids[5]], "ignore_eos": False})
        for i, ids in enumerate(map(prompt, range(4)))
    ]
    # Not token_ids_logprob: SGLang 0.5.11 itself ends when one request of a prefill batch has it and another has not.
    whole = {**LOGPROBS, "logprob_start_len": 0}
    return [
        *several("plain/greedy", 8),
        *several("plain/logprobs", 8, extra=LOGPROBS),
        *several("plain/prompt logprobs", 4, extra=whole),
        *([] if seeded else _option("min_p", temperature=HOT, min_p=0.9)),
        *stops,
        *several("plain/one token", 2, tokens=1, extra=LOGPROBS),
        *several("plain/two tokens", 2, tokens=2, extra=LOGPROBS),
    ]


def penalty_requests() -> list[Request]:
    """To be sent one by one: what SGLang counts for a penalty depends on the prefills of others (penalties.py)."""
    return [
        *_option("frequency penalty", frequency_penalty=2.0),
        *_option("presence penalty", presence_penalty=2.0),
        *_option("repetition penalty", repetition_penalty=1.8),
    ]


def _option(name: str, **sampling: Any) -> list[Request]:
    return several(f"plain/{name}", 4, sampling=sampling, extra=LOGPROBS)


def chunked_requests() -> list[Request]:
    """Prompts of several prefill chunks (--chunked-prefill-size 128)."""
    bodies = [(prompt(50 + i) * 40)[: 300 + 45 * i] for i in range(3)]
    return [
        Request(f"plain/chunked prefill/{i}", tuple(ids), 24, extra=LOGPROBS) for i, ids in enumerate(bodies)
    ]


def text_requests() -> list[Request]:
    """Grammars and stop strings. A grammar's end is the model's eos, so eos must count."""

    def grammar(name: str, **sampling: Any) -> list[Request]:
        return _grammar(f"text/{name}", 4, first=60, **sampling)

    stops = [
        Request(f"text/stop string/{i}", tuple(ids), sampling={"stop": [token_text(ids[5])]})
        for i, ids in enumerate(map(prompt, range(60, 64)))
    ]
    return [*grammar("json schema", json_schema=SCHEMA), *grammar("regex", regex=REGEX), *stops]


def crossing_grammars(turn: int) -> list[Request]:
    """To be sent at once and alone: more than the threshold at first, and the last ones are drafted for."""
    nine = _grammar(f"crossing/regex/{turn}", 9, first=80 + 9 * turn, regex="(ab|cd){40,80}[0-9]{2}")
    return [dataclasses.replace(request, tokens=8 * (i + 1)) for i, request in enumerate(nine)]


def _grammar(key: str, count: int, first: int, **sampling: Any) -> list[Request]:
    return several(key, count, first=first, sampling={"ignore_eos": False, **sampling}, extra=LOGPROBS)


def seed_requests() -> list[Request]:
    def seeded(name: str, **sampling: Any) -> list[Request]:
        both = [(i, seed) for i in range(3) for seed in (1, 2)]
        return [
            Request(
                f"seeds/{name}/{i}-{seed}",
                tuple(prompt(70 + i)),
                sampling={"sampling_seed": seed, **sampling},
                extra=LOGPROBS,
            )
            for i, seed in both
        ]

    return [
        *seeded("temperature 0"),
        *seeded("hot", temperature=HOT),
        *seeded("top_p, top_k", temperature=HOT, top_p=0.9, top_k=50),
    ]
