"""What the routes share: sampling parameters, and the one way in for a prompt."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .faults import Faults
from .resolve import Resolved
from .scheduler import Scheduler
from .sequence import Request
from .text import Answer, chat_ids, token_ids
from .web import HttpRequest

_UNSIMULATED = ("json_schema", "regex", "ebnf", "structural_tag", "stop", "stop_regex", "logit_bias")


@dataclass(frozen=True)
class Sampling:
    """`salt`: "" for greedy; a seed or a random word otherwise, so that sampled answers differ."""

    max_new_tokens: int
    ignore_eos: bool
    salt: str

    @classmethod
    def of(cls, params: dict[str, Any], default_tokens: int) -> Sampling:
        """From SGLang sampling parameters. ValueError for what is not simulated."""
        for name in _UNSIMULATED:
            if params.get(name):
                raise ValueError(f"sampling parameter {name} is not simulated")
        if params.get("n", 1) not in (1, None):
            raise ValueError("n > 1 is not simulated")
        tokens = params.get("max_new_tokens")
        temperature = params.get("temperature")
        greedy = temperature is not None and float(temperature) == 0
        seed = params.get("sampling_seed")
        salt = "" if greedy else str(seed if seed is not None else uuid.uuid4())
        return cls(default_tokens if tokens is None else int(tokens), bool(params.get("ignore_eos")), salt)


class Engine:
    """What the routes share: arguments, scheduler, faults, and the one way in for a prompt."""

    def __init__(self, resolved: Resolved, scheduler: Scheduler, faults: Faults, version: str) -> None:
        self.resolved = resolved
        self.args = resolved.args
        self.scheduler = scheduler
        self.faults = faults
        self.version = version
        self.ready = False
        self.stopping = False
        self.started_s = time.perf_counter()
        self.context_len = int(
            resolved.args.get("context_length") or resolved.model["max_position_embeddings"]
        )
        self.vocabulary = int(resolved.model["vocab_size"])

    @property
    def has_tokenizer(self) -> bool:
        return not self.args.get("skip_tokenizer_init")

    def tokens_of(self, text: str) -> list[int]:
        if not self.has_tokenizer:
            raise ValueError("the server has no tokenizer (--skip-tokenizer-init): send input_ids")
        return token_ids(text, self.vocabulary)

    def checked_ids(self, ids: Any) -> list[int]:
        if not all(isinstance(token, int) and 0 <= token < self.vocabulary for token in ids):
            raise ValueError(f"input_ids must be integers from 0 to {self.vocabulary - 1}")
        return list(ids)

    def chat_tokens(self, messages: list[dict[str, Any]]) -> list[int]:
        if not self.has_tokenizer:
            raise ValueError("the server has no tokenizer (--skip-tokenizer-init): send input_ids")
        return chat_ids(messages, self.vocabulary)

    async def answered(self, prompt: list[int], sampling: Sampling, http: HttpRequest) -> Request:
        """One prompt to its end."""
        done: asyncio.Future[Request] = asyncio.get_event_loop().create_future()

        def emit(request: Request) -> None:
            if request.finished and not done.done():
                done.set_result(request)

        self.submit(prompt, sampling, emit, http=http)
        return await done

    def submit(
        self,
        prompt: list[int],
        sampling: Sampling,
        emit: Callable[[Request], None],
        *,
        rid: str | None = None,
        http: HttpRequest | None = None,
        logged: bool = True,
        abort_at: int | None = None,
    ) -> Request:
        """Queue one prompt; it is aborted when the client of `http` goes away."""
        self.check_length(len(prompt), sampling.max_new_tokens)
        salt = sampling.salt
        if self.faults.has("divergent") and self.scheduler.drafting is not None:
            salt += "divergent"
        request = Request(
            rid=rid or uuid.uuid4().hex,
            prompt=prompt,
            max_new_tokens=sampling.max_new_tokens,
            ignore_eos=sampling.ignore_eos,
            answer=Answer(prompt, self.vocabulary, salt),
            emit=emit,
            logged=logged,
            stop_at=self.faults.number("short-output"),
            abort_at=abort_at,
        )
        self.scheduler.submit(request)
        if http is not None:
            http.on_gone.append(lambda: self.scheduler.abort(lambda item: item is request))
        return request

    def check_length(self, prompt: int, new: int) -> None:
        if prompt >= self.context_len:
            raise ValueError(
                f"The input ({prompt} tokens) is longer than the model's context length "
                f"({self.context_len} tokens)."
            )
        if prompt + new > self.context_len:
            raise ValueError(
                f"Requested token count exceeds the model's maximum context length of {self.context_len} "
                f"tokens. You requested a total of {prompt + new} tokens: {prompt} tokens from the input "
                f"messages and {new} tokens for the completion. Please reduce the number of tokens in the "
                "input messages or the completion to fit within the limit."
            )

    def meta_info(self, request: Request) -> dict[str, Any]:
        """`meta_info` as `/generate` gives it; the speculation figures only once a request is finished."""
        info: dict[str, Any] = {
            "id": request.rid,
            "finish_reason": request.finish,
            "prompt_tokens": len(request.prompt),
            "weight_version": self.args.get("weight_version", "default"),
            "total_retractions": request.retractions,
            "reasoning_tokens": 0,
            "completion_tokens": len(request.output),
            "cached_tokens": request.cached_tokens,
        }
        if request.finished:
            info["e2e_latency"] = time.perf_counter() - request.created_s
            info.update(self._speculation(request))
        return info

    def _speculation(self, request: Request) -> dict[str, Any]:
        drafting = self.scheduler.drafting
        if drafting is None or request.verify_steps == 0:
            return {}
        proposed = request.verify_steps * (drafting.shape.draft_tokens - 1)
        return {
            "spec_accept_rate": request.accepted_drafts / proposed,
            "spec_accept_length": len(request.output) / request.verify_steps,
            "spec_accepted_drafts": request.accepted_drafts,
            "spec_proposed_drafts": proposed,
            "spec_verify_ct": request.verify_steps,
        }
