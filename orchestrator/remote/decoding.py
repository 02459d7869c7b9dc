"""From what the channel carries to checked values: packed bytes, and dataclasses decoded strictly where it matters.

A missing or mistyped field is a RemoteError that names it; a field that this version does not know is left alone, so
that an older controller can talk to a newer agent of the same protocol.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, TypeAdapter, ValidationError

from orchestrator.errors import RemoteError

T = TypeVar("T")
MAX_UNPACKED_BYTES = 1 << 30


def packed(data: bytes) -> dict[str, str]:
    """Bytes as they travel: `{"z": base64(zlib)}`."""
    return {"z": base64.b64encode(zlib.compress(data, 6)).decode()}


def unpacked(value: object) -> object:
    """The bytes of `{"z": ...}` or of its bare string; other values as they are, for the decoder to judge."""
    text = value.get("z") if isinstance(value, dict) else value
    if not isinstance(text, str):
        return value
    try:
        opener = zlib.decompressobj()
        data = opener.decompress(base64.b64decode(text, validate=True), MAX_UNPACKED_BYTES)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise ValueError(f"not packed bytes: {error}") from error
    if opener.unconsumed_tail or not opener.eof:
        raise ValueError(f"packed bytes that are cut short or come to more than {MAX_UNPACKED_BYTES}")
    return data


Packed = Annotated[bytes, BeforeValidator(unpacked)]


def decode(cls: type[T], value: object, verb: str) -> T:
    """`value` as a `cls`; raises RemoteError naming the field that does not fit."""
    try:
        decoded: T = _adapter(cls).validate_python(value)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the reply"
        raise RemoteError(
            f"the node's answer to {verb!r} does not fit: {where}: {first['msg']}",
            code="failed",
            help="the agent is another version; connect again, or report this",
        ) from error
    return decoded


@cache
def _adapter(cls: Any) -> TypeAdapter[Any]:
    return TypeAdapter(cls)
