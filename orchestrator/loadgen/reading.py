"""From one finished exchange to its record: pure, after the load is over."""

from __future__ import annotations

import json
from array import array
from typing import Any, Optional, Tuple

from .events import payload, split_events, stamps_of
from .exchange import Exchange
from .readers import Reader, reader_for

_RECORD_BYTES = 500
_DONE = b"[DONE]"
_NOT_JSON = (ValueError, RecursionError)  # the latter: brackets by the thousand
_NOT_THE_API = (
    AttributeError,
    IndexError,
    KeyError,
    RecursionError,
    TypeError,
)  # JSON, but of no shape that the API has


class Reading:
    """One exchange, read. `output_ns` holds the arrival of each event that carried output."""

    def __init__(self, exchange: Exchange, raw: bytes, endpoint: str) -> None:
        self.exchange = exchange
        self.reader: Reader = reader_for(endpoint)
        self.output_ns = array("q")
        self.first_tokens: Optional[int] = None
        self.last_ns: Optional[int] = None
        self._counted: Optional[int] = None  # the server's count when the last output came
        self._finish_ns: Optional[int] = None
        self._done = False
        self.error: Optional[str] = None
        self.error = self._read(raw)

    @property
    def ok(self) -> bool:
        return self.error is None

    def _read(self, raw: bytes) -> Optional[str]:
        """Read everything that came; the first reason why the request failed, or None."""
        exchange = self.exchange
        framing = exchange.framing
        body = payload(raw, framing.segments)
        if framing.status != 200:
            return exchange.failure or f"HTTP {framing.status}: {_short(body)}"
        kind = framing.headers.get("content-type", "")
        if not kind.startswith("text/event-stream"):
            return exchange.failure or f"not an event stream but {kind or 'untyped'}: {_short(body)}"
        wrong = self._fold(body)
        if exchange.failure:
            return exchange.failure
        return wrong or self.reader.error or self._verdict()

    def _fold(self, body: bytes) -> Optional[str]:
        """Take every event with its time; the first that is no event of the API, or None."""
        datas, ends = split_events(body)
        if datas and datas[-1] == _DONE:
            self._done = True
            datas.pop()
        parsed, wrong = _parse(datas)
        exchange, reader, output_ns = self.exchange, self.reader, self.output_ns
        stamps = stamps_of(
            ends[: len(parsed)], exchange.framing.segments, exchange.read_ends, exchange.stamps
        )
        for event, stamp_ns, data in zip(parsed, stamps, datas):
            try:
                is_output = reader.take(event)
            except _NOT_THE_API:
                wrong = wrong or f"malformed event: {_short(data)}"
                continue
            if is_output:
                output_ns.append(stamp_ns)
                self._counted = reader.told
                if stamp_ns == output_ns[0]:
                    self.first_tokens = reader.told
            if reader.finish is not None and self._finish_ns is None:
                self._finish_ns = stamp_ns
        if output_ns:
            self._last()
        return wrong

    def _last(self) -> None:
        """Tokens that show no text (held back, special) take time too: then the finish is the sign of the last one."""
        self.last_ns = self.output_ns[-1]
        total = self.reader.output_tokens
        if self._finish_ns and self._counted is not None and total is not None and total > self._counted:
            self.last_ns = max(self.last_ns, self._finish_ns)

    def _verdict(self) -> Optional[str]:
        finish = self.reader.finish
        if finish in ("abort", "error"):
            return f"finished by {finish}"
        if self.reader.output_tokens == 0:
            return "no output tokens"
        if self.reader.output_tokens is None and not self.output_ns:
            return "no output"
        if finish is None and not self._done:
            return "ended without a finish reason"
        return None

    def record(self) -> "dict[str, Any]":
        """The record's values; see the package docstring."""
        exchange, reader = self.exchange, self.reader
        return {
            "i": exchange.index,
            "phase": exchange.phase,
            "due_ns": exchange.due_ns,
            "sent_ns": exchange.sent_ns,
            "first_ns": self.output_ns[0] if self.output_ns else None,
            "last_ns": self.last_ns,
            "end_ns": exchange.end_ns,
            "chunks": len(self.output_ns),
            "prompt_tokens": reader.prompt_tokens,
            "cached_tokens": reader.cached_tokens,
            "first_tokens": self.first_tokens,
            "output_tokens": reader.output_tokens,
            "finish": reader.finish,
            "ok": self.ok,
            "error": self.error,
            "output_sha256": reader.digest(),
            "verify_steps": reader.verify_steps,
            "accepted": reader.accepted,
            "drafted": reader.drafted,
        }


def record_line(record: "dict[str, Any]") -> str:
    """One JSON line below 500 bytes: a long error text is cut."""
    line = _dump(record)
    if len(line) < _RECORD_BYTES - 1:
        return line
    error = record["error"] or ""
    room = _RECORD_BYTES - 2 - len(_dump({**record, "error": "..."}))
    while error and len(_dump(error)) - 2 > room:
        error = error[: len(error) * 3 // 4]
    return _dump({**record, "error": error + "..."})


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _parse(datas: "list[bytes]") -> "Tuple[list[Any], Optional[str]]":
    """All events as JSON: in one call where all are well formed, else up to the first that is not."""
    try:
        together = json.loads(b"[" + b",".join(datas) + b"]")
        if len(together) == len(datas):  # else some event was not one value
            return together, None
    except _NOT_JSON:
        pass
    parsed: "list[Any]" = []
    for data in datas:
        try:
            parsed.append(json.loads(data))
        except _NOT_JSON:
            return parsed, f"malformed event: {_short(data)}"
    return parsed, None


def _short(body: bytes) -> str:
    return body[:160].decode("utf-8", "replace").strip()
