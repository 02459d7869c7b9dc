"""One request inside the scheduler: its answer so far, and when it is finished."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .text import EOS, Answer


@dataclass(eq=False)
class Request:
    """`emit(request)` is called after every step that gave tokens, and once at the end (`finish` is set then).

    `stop_at`: end early with that many tokens, a stop token the last, whatever `ignore_eos` says; `abort_at`:
    end as aborted there (both are faults).
    """

    rid: str
    prompt: list[int]
    max_new_tokens: int
    ignore_eos: bool
    answer: Answer
    emit: Callable[[Request], None]
    logged: bool = True
    stop_at: int | None = None
    abort_at: int | None = None
    output: list[int] = field(default_factory=list)
    finish: dict[str, Any] | None = None
    cached_tokens: int = 0
    verify_steps: int = 0
    accepted_drafts: int = 0
    retractions: int = 0
    created_s: float = field(default_factory=time.perf_counter)
    first_token_s: float | None = None

    @property
    def length(self) -> int:
        """Tokens that hold KV cache."""
        return len(self.prompt) + len(self.output)

    @property
    def finished(self) -> bool:
        return self.finish is not None

    def grow(self, wanted: int) -> int:
        """Take up to `wanted` more tokens of the answer; returns how many, and finishes where the end is met."""
        start = len(self.output)
        end = None if self.ignore_eos else self.answer.natural_length
        if self.stop_at is not None:
            end = min(self.stop_at - 1, self.stop_at if end is None else end)
        for position in range(start, min(start + wanted, self.max_new_tokens)):
            if end is not None and position >= end:
                self.output.append(EOS)
                self.finish = {"type": "stop", "matched": EOS}
                break
            self.output.append(self.answer.token(position))
        if self.finish is None and len(self.output) >= self.max_new_tokens:
            self.finish = {"type": "length", "length": self.max_new_tokens}
        if self.abort_at is not None and len(self.output) >= self.abort_at:
            self.abort("simulated fault: abort")
        if self.first_token_s is None and self.output:
            self.first_token_s = time.perf_counter()
        return len(self.output) - start

    def abort(self, message: str = "Aborted") -> None:
        if self.finish is None:
            self.finish = {"type": "abort", "message": message, "status_code": None, "err_type": None}
