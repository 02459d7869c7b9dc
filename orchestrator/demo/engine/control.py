"""Everything that is not generation: health, info, cache, abort, runtime settings, metrics; and the route table."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from . import SIMULATED, metrics
from .core import Engine, Sampling
from .fallback import Fallback
from .generate import generate
from .openai import chat_completions, completions, error_body
from .sequence import Request
from .tree import THRESHOLD, Tree
from .web import HttpRequest, HttpResponse

if TYPE_CHECKING:  # Python 3.8 cannot subscript these when it runs
    Route = Callable[[HttpRequest], Awaitable["HttpResponse | None"]]

_HEALTH_WAIT_S = 20.0


class Routes:
    """`memory`: what `internal_states` says about memory, MiB and tokens."""

    def __init__(self, engine: Engine, tree: Tree, memory: dict[str, Any], log: Any) -> None:
        self._engine = engine
        self._tree = tree
        self._memory = memory
        self._log = log
        self._table: dict[str, tuple[tuple[str, ...], Route]] = {
            "/": (("GET", "HEAD"), self._root),
            "/health": (("GET",), self._health),
            "/health_generate": (("GET",), self._health),
            "/model_info": (("GET",), self._model_info),
            "/get_model_info": (("GET",), self._model_info),
            "/server_info": (("GET",), self._server_info),
            "/get_server_info": (("GET",), self._server_info),
            "/v1/models": (("GET",), self._models),
            "/flush_cache": (("GET", "POST"), self._flush),
            "/abort_request": (("POST",), self._abort),
            "/set_internal_state": (("POST", "PUT"), self._set_internal_state),
            "/metrics": (("GET",), self._metrics),
            "/generate": (("POST", "PUT"), lambda http: generate(engine, http)),
            "/v1/completions": (("POST",), lambda http: completions(engine, http)),
            "/v1/chat/completions": (("POST",), lambda http: chat_completions(engine, http)),
        }

    async def __call__(self, http: HttpRequest) -> HttpResponse | None:
        entry = self._table.get(http.path)
        if entry is None:
            return HttpResponse.json({"detail": "Not Found"}, 404)
        methods, route = entry
        if http.method not in methods:
            return HttpResponse.json({"detail": "Method Not Allowed"}, 405)
        if not self._authorized(http):
            return HttpResponse.json({"error": "Unauthorized"}, 401)
        if not self._engine.ready and http.path in ("/generate", "/v1/completions", "/v1/chat/completions"):
            return error_body("simulated engine is still loading", "ServiceUnavailable", 503)
        return await route(http)

    def _authorized(self, http: HttpRequest) -> bool:
        key = self._engine.args.get("api_key")
        free = http.path.startswith(("/health", "/metrics"))
        return not key or free or http.headers.get("authorization") == f"Bearer {key}"

    async def _root(self, http: HttpRequest) -> HttpResponse:
        return HttpResponse.json("SGLang is running (simulated)")

    async def _health(self, http: HttpRequest) -> HttpResponse:
        """503 until ready. Then a one-token request must come back, unless others are being served anyway."""
        engine = self._engine
        if engine.stopping or not engine.ready:
            return HttpResponse(status=503)
        if engine.faults.has("busy-health") and not engine.scheduler.idle:
            return HttpResponse(status=503)
        # A hung scheduler answers 200 here, as releases with this fault in the field did.
        if engine.faults.has("hang") or (http.path == "/health" and not engine.scheduler.idle):
            return HttpResponse()
        back = asyncio.Event()

        def emit(request: Request) -> None:
            back.set()

        engine.submit([0], Sampling(1, True, ""), emit, rid=f"HEALTH_CHECK_{time.time()}", logged=False)
        try:
            await asyncio.wait_for(back.wait(), _HEALTH_WAIT_S)
        except asyncio.TimeoutError:  # noqa: UP041 (another class before Python 3.11)
            return HttpResponse(status=503)
        return HttpResponse()

    async def _model_info(self, http: HttpRequest) -> HttpResponse:
        args, model = self._engine.args, self._engine.resolved.model
        return HttpResponse.json(
            {
                "model_path": args["model_path"],
                "tokenizer_path": args.get("tokenizer_path"),
                "is_generation": True,
                "preferred_sampling_params": args.get("preferred_sampling_params"),
                "weight_version": args.get("weight_version"),
                "has_image_understanding": False,
                "has_audio_understanding": False,
                "model_type": model.get("model_type"),
                "architectures": model.get("architectures"),
            }
        )

    async def _server_info(self, http: HttpRequest) -> HttpResponse:
        """Resolved arguments, secrets and all (as the release does), and one internal state a DP rank."""
        engine = self._engine
        state = {**engine.args, "memory_usage": self._memory, **engine.scheduler.state()}
        return HttpResponse.json(
            {
                **engine.args,
                "status": "ready",
                "max_total_num_tokens": engine.scheduler.limits.tokens,
                "max_req_input_len": engine.context_len - 6,
                "internal_states": [state],
                "version": engine.version,
                "simulated": SIMULATED,
            }
        )

    async def _models(self, http: HttpRequest) -> HttpResponse:
        name = self._engine.args.get("served_model_name")
        card = {
            "id": name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "sglang",
            "root": name,
            "parent": None,
            "max_model_len": self._engine.context_len,
        }
        return HttpResponse.json({"object": "list", "data": [card]})

    async def _flush(self, http: HttpRequest) -> HttpResponse:
        """200, or 400 while requests wait or run; `?timeout=S` waits for an idle moment first."""
        scheduler = self._engine.scheduler
        timeout_s = float(http.query.get("timeout", "0"))
        deadline = time.monotonic() + timeout_s
        while not scheduler.idle and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        if scheduler.flush():
            return HttpResponse.text(
                "Cache flushed.\nPlease check backend logs for more details. "
                "(When there are running or waiting requests, the operation will not be performed.)\n"
            )
        message = "Timed out waiting for idle state." if timeout_s > 0 else "Flush cache failed.\n"
        return HttpResponse.text(message, 400)

    async def _abort(self, http: HttpRequest) -> HttpResponse:
        body = http.json()
        everything, rid = bool(body.get("abort_all")), str(body.get("rid") or "")
        self._engine.scheduler.abort(
            lambda request: everything or (bool(rid) and request.rid.startswith(rid))
        )
        return HttpResponse()

    async def _set_internal_state(self, http: HttpRequest) -> HttpResponse:
        """Answers `[true]` also when nothing was taken over; only a read-back shows what holds."""
        wanted = http.json().get("server_args")
        if not isinstance(wanted, dict):
            return error_body("server_args: an object is required")
        if THRESHOLD in wanted and self._tree.has_threshold_switch:
            return HttpResponse.json([self._set_threshold(wanted)])
        allowed = self._tree.runtime_settable
        refused = next((key for key in wanted if key not in allowed), None)
        if refused is not None:
            self._log.warning("Updating %s is not supported.", refused)
            return HttpResponse.json([True])
        self._engine.args.update(wanted)
        self._engine.scheduler.counters.reset()
        self._log.info("Global server args updated! get_global_server_args()=%s", self._engine.args)
        return HttpResponse.json([True])

    def _set_threshold(self, wanted: dict[str, Any]) -> bool:
        """What the patch's hook in front of the release's handler does: a true answer, and only this value."""
        fallback = self._engine.scheduler.fallback
        if not isinstance(fallback, Fallback):
            refusal: str | None = "the server was started without --speculative-disable-batch-threshold"
        elif len(wanted) != 1:
            refusal = "it must be the only value of the request"
        else:
            refusal = fallback.set_threshold(wanted[THRESHOLD])
        if refusal is not None:
            self._log.warning("dynspec: %s not changed: %s", THRESHOLD, refusal)
            return False
        self._engine.args[THRESHOLD] = wanted[THRESHOLD]
        self._log.info("dynspec: threshold=%d from the next step on", wanted[THRESHOLD])
        return True

    async def _metrics(self, http: HttpRequest) -> HttpResponse:
        if not self._engine.args.get("enable_metrics"):
            return HttpResponse.json({"detail": "Not Found"}, 404)
        text = metrics.render(self._engine).encode()
        return HttpResponse(text, content_type="text/plain; version=0.0.4; charset=utf-8")
