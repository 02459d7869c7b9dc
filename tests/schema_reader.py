"""A small JSON Schema checker for the keywords that `orchestrator.schema` writes; any other keyword is an error."""

from __future__ import annotations

import re
from typing import Any

ANNOTATIONS = {"$schema", "title", "description", "default", "examples"}
TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "integer": int,
    "number": (int, float),
}


def accepts(schema: Any, value: Any) -> bool:
    if isinstance(schema, bool):
        return schema
    return all(_keyword(key, schema, value) for key in schema.keys() - ANNOTATIONS)


def _keyword(key: str, schema: dict[str, Any], value: Any) -> bool:
    want = schema[key]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    match key:
        case "type":
            return any(_is(kind, value) for kind in ([want] if isinstance(want, str) else want))
        case "enum":
            return any(value == item and type(value) is type(item) for item in want)
        case "const":
            return value == want and type(value) is type(want)
        case "anyOf":
            return any(accepts(item, value) for item in want)
        case "minimum":
            return not number or value >= want
        case "maximum":
            return not number or value <= want
        case "pattern":
            return not isinstance(value, str) or re.search(want, value) is not None
        case "minLength":
            return not isinstance(value, str) or len(value) >= want
        case "items":
            return not isinstance(value, list) or all(accepts(want, item) for item in value)
        case "minItems":
            return not isinstance(value, list) or len(value) >= want
        case "uniqueItems":
            return not (want and isinstance(value, list)) or all(value.count(item) == 1 for item in value)
        case "required":
            return not isinstance(value, dict) or all(item in value for item in want)
        case "minProperties":
            return not isinstance(value, dict) or len(value) >= want
        case "propertyNames":
            return not isinstance(value, dict) or all(accepts(want, name) for name in value)
        case "properties":
            return not isinstance(value, dict) or all(
                accepts(want[k], v) for k, v in value.items() if k in want
            )
        case "additionalProperties":
            known = schema.get("properties", {})
            return not isinstance(value, dict) or all(
                accepts(want, v) for k, v in value.items() if k not in known
            )
    raise AssertionError(f"{key} is not a keyword that this checker knows")


def _is(kind: str, value: Any) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, TYPES[kind])
