"""JSON Schema of the experiment file, for editors. Written from the tables that the loader checks with.

A schema cannot say everything: repeated keys, `extends`, secrets and cross checks are the loader's alone.
"""

from __future__ import annotations

from typing import Any

from orchestrator.config.features import UNSUPPORTED, Lacking
from orchestrator.config.tables import EXPERIMENT

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def experiment_schema(lacking: tuple[Lacking, ...] = UNSUPPORTED) -> dict[str, Any]:
    """The schema as JSON-like values; what this version lacks is not offered."""
    schema: dict[str, Any] = {"$schema": DIALECT, "title": "dynspec experiment", **EXPERIMENT.schema()}
    for feature in lacking:
        _withdraw(schema, feature)
    return schema


def _withdraw(schema: dict[str, Any], feature: Lacking) -> None:
    *parents, key = feature.path.split(".")
    here = schema
    for parent in parents:
        here = _body(here["properties"][parent])
    if feature.value is None:
        here.setdefault("properties", {})[key] = False
        return
    target = _body(here["properties"][key])
    target = target.get("items", target)
    if "enum" in target:
        target["enum"] = [value for value in target["enum"] if value != feature.value]
    else:  # a flag whose true is lacking
        target.clear()
        target["const"] = False


def _body(entry: dict[str, Any]) -> dict[str, Any]:
    """The schema proper of an optional key, which is wrapped because null counts as not written."""
    found: dict[str, Any] = (
        entry["anyOf"][0] if "anyOf" in entry and entry["anyOf"][-1] == {"type": "null"} else entry
    )
    return found
