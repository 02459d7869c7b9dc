"""The OpenAI-like endpoints as SGLang answers them: `/v1/chat/completions`, `/v1/completions`.

A streamed chat begins with a role chunk of empty content, then a content chunk a step, a chunk with the finish
reason, and the usage chunk (empty choices) where it was asked for.
"""

from __future__ import annotations

import json
import time
from typing import Any

from .core import Engine, Sampling
from .generate import ABORT_AFTER, failed_stream
from .sequence import Request
from .text import decode
from .web import EventStream, HttpRequest, HttpResponse


def error_body(message: str, kind: str = "BadRequest", status: int = 400) -> HttpResponse:
    body = {"object": "error", "message": message, "type": kind, "param": None, "code": status}
    return HttpResponse.json(body, status)


async def completions(engine: Engine, http: HttpRequest) -> HttpResponse | None:
    return await _serve(engine, http, chat=False)


async def chat_completions(engine: Engine, http: HttpRequest) -> HttpResponse | None:
    return await _serve(engine, http, chat=True)


async def _serve(engine: Engine, http: HttpRequest, *, chat: bool) -> HttpResponse | None:
    try:
        body = http.json()
        prompt, sampling = _read(engine, body, chat)
        fault = engine.faults.for_request()
        if fault == "reject":
            return error_body("The request queue is full.", "ServiceUnavailable", 503)
        abort_at = ABORT_AFTER if fault == "abort" else None
        if not body.get("stream"):
            return await _whole(engine, http, body, prompt, sampling, chat)
        engine.check_length(len(prompt), sampling.max_new_tokens)
    except (ValueError, TypeError) as error:
        return error_body(str(error))
    stream = EventStream(http.connection)
    http.on_gone.append(stream.close)
    if fault in ("error-in-stream", "empty"):
        failed_stream(stream, fault)
    else:
        writer = (ChatStream if chat else CompletionStream)(engine, stream, body)
        engine.submit(prompt, sampling, writer.step, http=http, abort_at=abort_at)
    await stream.finished()
    return None


def _read(engine: Engine, body: dict[str, Any], chat: bool) -> tuple[list[int], Sampling]:
    for name in ("tools", "logprobs", "response_format", "echo"):
        if body.get(name):
            raise ValueError(f"{name} is not simulated")
    params = dict(body)
    params["sampling_seed"] = body.get("seed")
    if chat:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise ValueError("messages: a list with at least one message is required")
        params["max_new_tokens"] = body.get("max_completion_tokens") or body.get("max_tokens")
        prompt = engine.chat_tokens(messages)
        return prompt, Sampling.of(params, max(engine.context_len - len(prompt) - 1, 1))
    text = body.get("prompt")
    if text is None:
        raise ValueError("prompt: a text or a list of token ids is required")
    params["max_new_tokens"] = body.get("max_tokens", 16)
    prompt = engine.tokens_of(text) if isinstance(text, str) else engine.checked_ids(text)
    return prompt, Sampling.of(params, 16)


def usage_of(engine: Engine, request: Request, *, details: bool = False) -> dict[str, Any]:
    """SGLang's UsageInfo. Cached tokens are told only under `--enable-cache-report`, and only if there are any."""
    cached = None
    if details and engine.args.get("enable_cache_report") and request.cached_tokens:
        cached = {"cached_tokens": request.cached_tokens}
    return {
        "prompt_tokens": len(request.prompt),
        "total_tokens": len(request.prompt) + len(request.output),
        "completion_tokens": len(request.output),
        "prompt_tokens_details": cached,
        "reasoning_tokens": 0,
    }


async def _whole(
    engine: Engine, http: HttpRequest, body: dict[str, Any], prompt: list[int], sampling: Sampling, chat: bool
) -> HttpResponse:
    request = await engine.answered(prompt, sampling, http)
    finish = request.finish or {}
    choice: dict[str, Any] = {"index": 0}
    if chat:
        choice["message"] = {"role": "assistant", "content": decode(request.output) or None}
        choice["message"].update({"reasoning_content": None, "tool_calls": None})
    else:
        choice["text"] = decode(request.output)
    choice.update(
        {"logprobs": None, "finish_reason": finish.get("type"), "matched_stop": finish.get("matched")}
    )
    answer = {
        "id": request.rid,
        "object": "chat.completion" if chat else "text_completion",
        "created": int(time.time()),
        "model": body.get("model", "default"),
        "choices": [choice],
        "usage": usage_of(engine, request, details=True),
        "metadata": {"weight_version": engine.args.get("weight_version", "default")},
    }
    if engine.faults.has("no-usage"):
        answer["usage"] = None
    return HttpResponse.json(answer)


class _Stream:
    """Common parts of the two streams. Only the changing fields of an event are encoded anew."""

    kind = ""

    def __init__(self, engine: Engine, stream: EventStream, body: dict[str, Any]) -> None:
        options = body.get("stream_options") or {}
        hidden = engine.faults.has("no-usage")
        default = bool(engine.args.get("stream_response_default_include_usage"))
        self._final_usage = (bool(options.get("include_usage")) or default) and not hidden
        self._every_usage = bool(options.get("continuous_usage_stats")) and not hidden
        self._engine = engine
        self._stream = stream
        self._model = json.dumps(body.get("model", "default"))
        self._created = int(time.time())
        self._sent = 0

    def _event(self, request: Request, choices: str, usage: dict[str, Any] | None = None) -> None:
        tail = "" if usage is None else f',"usage":{json.dumps(usage)}'
        self._stream.event(
            f'{{"id":"{request.rid}","object":"{self.kind}","created":{self._created},"model":{self._model},'
            f'"choices":{choices}{tail}}}'
        )

    def _fresh(self, request: Request) -> str:
        text = decode(request.output[self._sent :])
        self._sent = len(request.output)
        return text

    def _usage(self, request: Request) -> dict[str, Any] | None:
        return usage_of(self._engine, request) if self._every_usage else None

    def _end(self, request: Request) -> None:
        if self._final_usage:
            self._event(request, "[]", usage_of(self._engine, request, details=True))
        self._stream.end()


class ChatStream(_Stream):
    kind = "chat.completion.chunk"

    def step(self, request: Request) -> None:
        if self._sent == 0:
            self._event(request, self._choice('{"reasoning_content":null,"role":"assistant","content":""}'))
        text = self._fresh(request)
        if text:
            delta = f'{{"reasoning_content":null,"content":{json.dumps(text)}}}'
            self._event(request, self._choice(delta), self._usage(request))
        if request.finish is not None:
            self._event(request, self._choice('{"reasoning_content":null}', request.finish))
            self._end(request)

    @staticmethod
    def _choice(delta: str, finish: dict[str, Any] | None = None) -> str:
        reason = json.dumps(finish["type"] if finish else None)
        matched = json.dumps(finish.get("matched") if finish else None)
        return f'[{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":{reason},"matched_stop":{matched}}}]'


class CompletionStream(_Stream):
    kind = "text_completion"

    def step(self, request: Request) -> None:
        finish = request.finish or {}
        choice = {
            "index": 0,
            "text": self._fresh(request),
            "logprobs": None,
            "finish_reason": finish.get("type"),
            "matched_stop": finish.get("matched"),
        }
        self._event(request, json.dumps([choice]), self._usage(request))
        if request.finished:
            self._end(request)
