"""SGLang's native `/generate`: one prompt or a batch, as text or token ids, streamed or whole."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from .core import Engine, Sampling
from .sequence import Request
from .text import decode
from .web import EventStream, HttpRequest, HttpResponse

ABORT_AFTER = 3  # tokens, for the fault "abort"


async def generate(engine: Engine, http: HttpRequest) -> HttpResponse | None:
    """POST /generate: one prompt as `text` or `input_ids`; `stream` sends cumulative text, as SGLang does."""
    body = http.json()
    prompts = _prompts(engine, body)
    params = body.get("sampling_params") or {}
    sampling = Sampling.of(params, default_tokens=128)
    for name in ("return_logprob", "return_hidden_states", "image_data", "lora_path"):
        if body.get(name):
            raise ValueError(f"{name} is not simulated")
    fault = engine.faults.for_request()
    if fault == "reject":
        return HttpResponse.json({"error": {"message": "The request queue is full."}}, 503)
    if not body.get("stream"):
        answers = await asyncio.gather(*(_whole(engine, prompt, sampling, http) for prompt in prompts))
        return HttpResponse.json(answers if _is_batch(body) else answers[0])
    if len(prompts) != 1:
        raise ValueError("a streamed batch is not simulated")
    stream = EventStream(http.connection)
    http.on_gone.append(stream.close)
    if fault in ("error-in-stream", "empty"):
        failed_stream(stream, fault)
    else:
        writer = _StreamWriter(engine, stream)
        abort_at = ABORT_AFTER if fault == "abort" else None
        engine.submit(prompts[0], sampling, writer, rid=body.get("rid"), http=http, abort_at=abort_at)
    await stream.finished()
    return None


def _is_batch(body: dict[str, Any]) -> bool:
    value = body.get("text") if body.get("text") is not None else body.get("input_ids")
    return isinstance(value, list) and bool(value) and isinstance(value[0], (str, list))


def _prompts(engine: Engine, body: dict[str, Any]) -> list[list[int]]:
    text: Any = body.get("text")
    ids: Any = body.get("input_ids")
    if text is None and not ids:
        raise ValueError("Either text, input_ids or input_embeds should be provided.")
    if text is not None:
        return [engine.tokens_of(item) for item in (text if isinstance(text, list) else [text])]
    return [engine.checked_ids(prompt) for prompt in (ids if _is_batch(body) else [ids])]


async def _whole(engine: Engine, prompt: list[int], sampling: Sampling, http: HttpRequest) -> dict[str, Any]:
    return output_of(engine, await engine.answered(prompt, sampling, http))


def output_of(engine: Engine, request: Request) -> dict[str, Any]:
    """One output object of `/generate`: text so far (where there is a tokenizer), ids so far, meta_info."""
    output: dict[str, Any] = {"text": decode(request.output)} if engine.has_tokenizer else {}
    output["output_ids"] = request.output
    output["meta_info"] = engine.meta_info(request)
    return output


def failed_stream(stream: EventStream, fault: str) -> None:
    if fault == "error-in-stream":
        stream.event(json.dumps({"error": {"message": "simulated fault: error inside the stream"}}))
    stream.end()


class _StreamWriter:
    """Writes an event a step. `--incremental-streaming-output` sends what is new, else all so far."""

    def __init__(self, engine: Engine, stream: EventStream) -> None:
        self._engine = engine
        self._stream = stream
        self._sent = 0
        self._text = ""
        # The flag was called --stream-output before 0.5.11.
        args = engine.args
        self._incremental = bool(args.get("incremental_streaming_output") or args.get("stream_output"))

    def __call__(self, request: Request) -> None:
        fresh = request.output[self._sent :]
        self._sent = len(request.output)
        text = decode(fresh)
        self._text += text
        output: dict[str, Any] = {}
        if self._engine.has_tokenizer:
            output["text"] = text if self._incremental else self._text
        output["output_ids"] = fresh if self._incremental else request.output
        output["meta_info"] = self._engine.meta_info(request)
        self._stream.event(json.dumps(output))
        if request.finished:
            self._stream.end()
