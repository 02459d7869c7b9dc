"""JSON Schema of the experiment file, for editors, and its keys as a table, for people: what the loader checks with.

A schema cannot say everything: repeated keys, `extends`, secrets and cross checks are the loader's alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.config.tables import EXPERIMENT

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def experiment_schema() -> dict[str, Any]:
    """The schema as JSON-like values."""
    return {"$schema": DIALECT, "title": "dynspec experiment", **EXPERIMENT.schema()}


def key_table() -> str:
    """Every key as a Markdown table: what it takes, its default, what it is for."""
    rows = dict(_rows(experiment_schema(), ""))
    return "\n".join(["| key | takes | default | |", "|---|---|---|---|", *rows.values()]) + "\n"


def _rows(body: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    """Path and row of each key below `body`, in the order of the file."""
    for variant in _variants(body):
        for key, entry in (variant.get("properties") or {}).items():
            path = f"{prefix}{key}"
            required = key in variant.get("required", ())
            cells = (f"`{path}`", _takes(entry), _default(entry, required), entry.get("description", ""))
            yield path, f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
            yield from _rows(entry, f"{path}.")
        if isinstance(named := variant.get("additionalProperties"), dict):
            yield from _rows(named, f"{prefix}NAME.")
        if isinstance(variant.get("items"), dict):
            yield from _rows(variant["items"], prefix)


def _variants(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A body, or each of what it may be; null counts as not written and is none."""
    if "anyOf" not in body and "oneOf" not in body:
        yield body
    for variant in (*body.get("anyOf", ()), *body.get("oneOf", ())):
        if variant != {"type": "null"}:
            yield from _variants(variant)


def _takes(body: Mapping[str, Any]) -> str:
    return " or ".join(dict.fromkeys(filter(None, map(_form, _variants(body)))))


def _form(body: Mapping[str, Any]) -> str:
    kind = body.get("type")
    kind = next((item for item in kind if item != "null"), None) if isinstance(kind, list) else kind
    if "examples" in body:
        return f"such as {', '.join(f'`{example}`' for example in body['examples'])}"
    if "const" in body or "enum" in body:
        return ", ".join(f"`{value}`" for value in body.get("enum", [body.get("const")]))
    if kind in ("integer", "number"):
        low, high = body["minimum"], body["maximum"]
        return f"{low} to {high}" if low != high else f"`{low}`"
    if kind == "array":
        return f"a list: {_takes(body['items'])}" if _takes(body["items"]) else "a list"
    words = {"string": "text", "boolean": "`true`, `false`", "object": "a mapping"}
    return words.get(str(kind), "")


def _default(body: Mapping[str, Any], required: bool) -> str:
    if required:
        return "must be written"
    value = body.get("default")
    if isinstance(value, str):
        return f"`{value}`"
    return "" if value is None else f"`{json.dumps(value).replace(chr(34), '')}`"
