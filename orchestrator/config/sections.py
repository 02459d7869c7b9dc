"""Mappings with known keys: a table of fields reads itself into a frozen dataclass and writes its JSON Schema."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from orchestrator.config.kinds import BAD, Bad, Json, Kind, is_null, nearest, too_long, wrong
from orchestrator.config.scalars import Refused, kind_of, read_plain, shorten
from orchestrator.config.tree import Entry, MapNode, Problems, ScalarNode, TreeNode


@dataclass(frozen=True)
class Field:
    """One key. `attr` is the dataclass's attribute where its name differs (durations end in `_s` there)."""

    key: str
    kind: Kind
    doc: str
    attr: str = ""
    required: bool = False

    @property
    def target(self) -> str:
        return self.attr or self.key


@dataclass(frozen=True)
class Section:
    """A mapping that becomes `cls(**fields)`; fields left out take the dataclass's defaults."""

    cls: type[Any]
    fields: tuple[Field, ...]
    doc: str = ""

    def read(self, node: TreeNode, path: str, problems: Problems) -> Any:
        values = self.read_fields(node, path, problems)
        return BAD if isinstance(values, Bad) else self.cls(**values)

    def read_fields(self, node: TreeNode, path: str, problems: Problems) -> dict[str, Any] | Bad:
        """Attribute values of the keys that were written, or BAD when one of them (or the mapping) is wrong."""
        before = len(problems.found)
        values = self.read_good(node, path, problems)
        return values if len(problems.found) == before else BAD

    def read_good(self, node: TreeNode, path: str, problems: Problems) -> dict[str, Any]:
        """The attribute values that are right, whatever else is wrong."""
        if not isinstance(node, MapNode):
            wrong(node, path, problems, "a mapping", f"keys: {', '.join(field.key for field in self.fields)}")
            return {}
        known = {field.key: field for field in self.fields}
        values: dict[str, Any] = {}
        written: set[str] = set()
        for entry in unique_entries(node, path, problems):
            field = known.get(entry.key.text)
            if field is None:
                hint = nearest(entry.key.text, known)
                problems.rule(entry.key.where, join(path, shorten(entry.key.text)), f"unknown key{hint}")
            elif not is_null(entry.value):
                written.add(field.key)
                value = field.kind.read(entry.value, join(path, field.key), problems)
                if not isinstance(value, Bad):
                    values[field.target] = value
        for field in self.fields:
            if field.required and field.key not in written:
                problems.add(node.where, join(path, field.key), f"missing: {field.doc}")
        return values

    def schema(self) -> Json:
        defaults = _defaults(self.cls)
        properties: Json = {}
        for field in self.fields:
            body = field.kind.schema()
            # null counts as not written, so only a required key cannot be null
            entry: Json = {"description": field.doc} | (
                body if field.required else {"anyOf": [body, {"type": "null"}]}
            )
            default = defaults.get(field.target)
            if default is not None and not dataclasses.is_dataclass(default) and default != ():
                entry["default"] = field.kind.spell(default)
            properties[field.key] = entry
        required = [field.key for field in self.fields if field.required]
        found: Json = {"type": "object", "additionalProperties": False, "properties": properties}
        if required:
            found["required"] = required
        if self.doc:
            found["description"] = self.doc
        return found

    def spell(self, value: object) -> object:
        return value


def _defaults(cls: type[Any]) -> dict[str, object]:
    return {
        item.name: item.default for item in dataclasses.fields(cls) if item.default is not dataclasses.MISSING
    }


def join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def unique_entries(node: MapNode, path: str, problems: Problems) -> Iterator[Entry]:
    """Entries whose key is text and stands there once; the others become problems."""
    first: dict[str, int | None] = {}
    for entry in node.entries:
        key = entry.key
        value = read_plain(key)
        if isinstance(value, Refused) or not isinstance(value, str):
            how = f'quote it: "{shorten(key.text)}"' if key.text else "it is empty"
            problems.add(
                key.where, join(path, shorten(key.text)), f"the key is read as {kind_words(key)}; {how}"
            )
        elif value in first:
            problems.add(
                key.where,
                join(path, shorten(value)),
                f"repeated key, first written in line {first[value]}; keep one",
            )
        else:
            first[value] = key.where.line
            yield entry


def kind_words(key: ScalarNode) -> str:
    names = {"int": "a number", "float": "a number", "bool": "a boolean", "null": "nothing (null)"}
    return names.get(
        kind_of(key), "a " + kind_of(key) if kind_of(key) != "str" else "a number by some YAML readers"
    )


@dataclass(frozen=True)
class MapOf:
    """A mapping from free names to values of one kind, in file order."""

    item: Kind
    what: str
    name_pattern: str
    longest: int

    def read(self, node: TreeNode, path: str, problems: Problems) -> dict[str, Any] | Bad:
        if not isinstance(node, MapNode):
            return wrong(node, path, problems, f"a mapping of {self.what}")
        if not node.entries:
            problems.add(node.where, path, f"empty; at least one of {self.what} is wanted")
            return BAD
        values: dict[str, Any] = {}
        for entry in unique_entries(node, path, problems):
            name = entry.key.text
            if not re.fullmatch(self.name_pattern, name):
                fault = too_long(name, self.longest) or "a name of letters, digits, `-` and `_` is wanted"
                problems.add(entry.key.where, join(path, shorten(name)), fault)
            elif not is_null(entry.value):
                values[name] = self.item.read(entry.value, join(path, name), problems)
        if all(is_null(entry.value) for entry in node.entries):
            problems.add(node.where, path, f"every entry is null; at least one of {self.what} is wanted")
            return BAD
        return BAD if any(isinstance(value, Bad) for value in values.values()) else values

    def schema(self) -> Json:
        return {
            "type": "object",
            "minProperties": 1,
            "propertyNames": {"pattern": f"^({self.name_pattern})$"},
            "additionalProperties": {"anyOf": [self.item.schema(), {"type": "null"}]},
        }

    def spell(self, value: object) -> object:
        return value
