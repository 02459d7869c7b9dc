"""The spec file: strict parsing into plain values. One clear line for whatever is wrong."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, Mapping, Optional

from . import SCHEMA
from .bodies import ENDPOINTS, expand

_NUMBER = (int, float)


class SpecError(ValueError):
    """The spec cannot be run; the text names the key and what is expected there."""


@dataclass(frozen=True)
class Load:
    """How requests are offered; see the package docstring."""

    kind: str
    arrival: str = "constant"
    rate_per_s: float = 0.0
    seed: int = 0
    low: int = 0
    high: int = 0
    period_s: float = 0.0
    duration_s: Optional[float] = None


@dataclass(frozen=True)
class Spec:
    host: str
    port: int
    endpoint: str
    requests: "list[bytes]"
    warmup: "list[bytes]"
    load: Load
    concurrency: Optional[int]
    idle_timeout_s: float
    request_timeout_s: float
    connect_timeout_s: float
    record_chunks: bool
    api_key: Optional[str]

    @property
    def most_in_flight(self) -> int:
        """How many connections the load may need at once."""
        if self.load.kind == "straddle":
            return self.load.high
        return self.concurrency or max(len(self.requests), len(self.warmup))


def parse_spec(text: str, environ: Optional[Mapping[str, str]] = None) -> Spec:
    """Spec from JSON text; `environ` is where `api_key_env` is looked up. Raises SpecError."""
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise SpecError(f"not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise SpecError("expected a JSON object at the top")
    keys = _Keys(raw, "")
    if keys.take("schema", int) != SCHEMA:
        raise SpecError(f"schema: this load generator reads schema {SCHEMA}, not {raw['schema']!r}")
    endpoint = keys.take("endpoint", str)
    if endpoint not in ENDPOINTS:
        raise SpecError(f"endpoint: expected one of {', '.join(ENDPOINTS)}, not {endpoint!r}")
    load = _load(keys.take("load", dict))
    spec = Spec(
        host=keys.take("host", str),
        port=keys.take("port", int, low=1),
        endpoint=endpoint,
        requests=_batch(keys, "requests", endpoint),
        warmup=_batch(keys, "warmup", endpoint),
        load=load,
        concurrency=_concurrency(keys, load),
        idle_timeout_s=keys.take("idle_timeout_s", _NUMBER, 120.0, low=0.001),
        request_timeout_s=keys.take("request_timeout_s", _NUMBER, 600.0, low=0.001),
        connect_timeout_s=keys.take("connect_timeout_s", _NUMBER, 10.0, low=0.001),
        record_chunks=keys.take("record_chunks", bool, False),
        api_key=_api_key(keys.take("api_key_env", str, None), os.environ if environ is None else environ),
    )
    keys.refuse_rest()
    if not spec.requests and not spec.warmup:
        raise SpecError("requests: nothing to send, neither `requests` nor `warmup`")
    return spec


def _batch(keys: "_Keys", name: str, endpoint: str) -> "list[bytes]":
    try:
        return expand(keys.take(name, dict, {}), endpoint)
    except (ValueError, TypeError) as error:
        raise SpecError(f"{name}: {error}") from None


def _concurrency(keys: "_Keys", load: Load) -> Optional[int]:
    value: Optional[int] = keys.take("concurrency", int, None, low=1)
    if load.kind == "closed" and value is None:
        raise SpecError("concurrency: a closed load needs one")
    if load.kind == "straddle" and value is not None:
        raise SpecError("concurrency: a straddle load has `low` and `high` instead")
    return value


def _load(raw: "dict[str, Any]") -> Load:
    keys = _Keys(raw, "load.")
    kind = keys.take("kind", str)
    if kind == "closed":
        load = Load(kind)
    elif kind == "open":
        arrival = keys.take("arrival", str, "constant")
        if arrival not in ("constant", "poisson"):
            raise SpecError(f"load.arrival: expected constant or poisson, not {arrival!r}")
        rate_per_s = keys.take("rate_per_s", _NUMBER, low=1e-6)
        load = Load(kind, arrival=arrival, rate_per_s=rate_per_s, seed=keys.take("seed", int, 0))
    elif kind == "straddle":
        load = Load(
            kind,
            low=keys.take("low", int, low=1),
            high=keys.take("high", int, low=2),
            period_s=keys.take("period_s", _NUMBER, low=0.001),
            duration_s=keys.take("duration_s", _NUMBER, None, low=0.001),
        )
        if load.low >= load.high:
            raise SpecError(f"load.low: must be below load.high ({load.low} >= {load.high})")
    else:
        raise SpecError(f"load.kind: expected closed, open or straddle, not {kind!r}")
    keys.refuse_rest()
    return load


def _api_key(name: Optional[str], environ: Mapping[str, str]) -> Optional[str]:
    if name is None:
        return None
    if not environ.get(name):
        raise SpecError(f"api_key_env: the environment has no {name}")
    return environ[name]


_REQUIRED = object()


class _Keys:
    """Takes keys out of an object one by one, checking types; what is left over was a mistake."""

    def __init__(self, raw: "dict[str, Any]", prefix: str) -> None:
        self._rest = dict(raw)
        self._prefix = prefix

    def take(self, key: str, kind: Any, default: Any = _REQUIRED, low: Optional[float] = None) -> Any:
        value = self._rest.pop(key, None)
        if value is None:
            if default is _REQUIRED:
                raise SpecError(f"{self._prefix}{key}: missing")
            return default
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise SpecError(f"{self._prefix}{key}: expected {_name(kind)}, not {value!r}"[:200])
        if low is not None and not low <= value < float("inf"):
            raise SpecError(f"{self._prefix}{key}: must be at least {low:g}, not {value!r}")
        return value

    def refuse_rest(self) -> None:
        if self._rest:
            raise SpecError(f"{self._prefix}{sorted(self._rest)[0]}: unknown key")


def _name(kind: Any) -> str:
    names = {
        int: "a whole number",
        str: "text",
        bool: "true or false",
        dict: "an object",
        _NUMBER: "a number",
    }
    return names[kind]
