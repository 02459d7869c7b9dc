"""Request bodies: from a batch of the spec to bytes, in order, and the digest that shows two batches are alike."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Iterable

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
GENERATE = "/generate"
ENDPOINTS = (CHAT, COMPLETIONS, GENERATE)


def place_prompt(endpoint: str, prompt: Any) -> dict[str, Any]:
    """The part of a body that carries one prompt: text, token ids, or chat messages.

    Raises ValueError when the endpoint cannot take that kind of prompt.
    """
    kind = prompt_kind(prompt)
    if endpoint == CHAT:
        if kind == "ids":
            raise ValueError("chat takes text or messages, not token ids; use /generate or /v1/completions")
        return {"messages": prompt if kind == "messages" else [{"role": "user", "content": prompt}]}
    if kind == "messages":
        raise ValueError(f"{endpoint} takes text or token ids, not messages; use {CHAT}")
    if endpoint == COMPLETIONS:
        return {"prompt": prompt}
    return {"text": prompt} if kind == "text" else {"input_ids": prompt}


def prompt_kind(prompt: Any) -> str:
    """`text`, `ids` or `messages`. Raises ValueError for anything else, an empty prompt included."""
    if isinstance(prompt, str) and prompt:
        return "text"
    if isinstance(prompt, (list, tuple)) and prompt:
        if all(type(token) is int for token in prompt):
            return "ids"
        if all(isinstance(message, dict) and "role" in message for message in prompt):
            return "messages"
    raise ValueError("a prompt is non-empty text, a list of token ids, or a list of chat messages")


def expand(batch: dict[str, Any], endpoint: str) -> list[bytes]:
    """The encoded bodies of one batch. Raises ValueError, naming the entry that is wrong."""
    if set(batch) == {"bodies"}:
        bodies = batch["bodies"]
    elif set(batch) == {"template", "prompts"}:
        bodies = _fill(batch["template"], batch["prompts"], endpoint)
    elif not batch:
        bodies = []
    else:
        raise ValueError("expected either `bodies`, or `template` and `prompts`")
    return [_encode(position, body) for position, body in enumerate(bodies)]


def _fill(template: dict[str, Any], prompts: Iterable[Any], endpoint: str) -> list[dict[str, Any]]:
    filled = []
    for position, prompt in enumerate(prompts):
        try:
            filled.append({**template, **place_prompt(endpoint, prompt)})
        except ValueError as error:
            raise ValueError(f"prompt {position}: {error}") from None
    return filled


def _encode(position: int, body: Any) -> bytes:
    if not isinstance(body, dict):
        raise ValueError(f"body {position} is not an object")
    if body.get("stream") is not True:
        raise ValueError(f"body {position} has no `stream: true`; only streamed responses can be measured")
    return json.dumps(body, separators=(",", ":")).encode()


def digest(bodies: Iterable[bytes]) -> str:
    """sha256 over all bodies in order, each ended by a newline (which no encoded body contains)."""
    total = hashlib.sha256()
    for body in bodies:
        total.update(body)
        total.update(b"\n")
    return total.hexdigest()
