"""The JSON Schema and the loader agree, since both come from the same tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.config import load_experiment
from orchestrator.errors import ExperimentError
from orchestrator.schema import experiment_schema
from tests.schema_reader import accepts

HERE = Path(__file__).parent
SCHEMA = experiment_schema()
BASE = (HERE / "config" / "base.yaml").read_text()


def test_the_schema_is_json():
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA


@pytest.mark.parametrize(
    "path", sorted((HERE.parent / "experiments").glob("*.yaml")), ids=lambda path: path.name
)
def test_accepts_the_shipped_experiments(path):
    assert accepts(SCHEMA, yaml.safe_load(path.read_text()))


def changed(row: dict[str, Any]) -> str:
    text = BASE
    for old, new in row["change"]:
        text = text.replace(old, new, 1)
    return text


ACCEPTED = yaml.safe_load((HERE / "config" / "accepted.yaml").read_text())


@pytest.mark.parametrize("row", ACCEPTED, ids=lambda row: row["case"])
def test_accepts_what_the_loader_accepts(row):
    assert accepts(SCHEMA, yaml.safe_load(changed(row)))


def mappings(schema: Any) -> Any:
    """Every schema of a mapping with known keys."""
    if isinstance(schema, dict):
        if schema.get("type") == "object" and "properties" in schema:
            yield schema
        for value in schema.values():
            yield from mappings(value)
    if isinstance(schema, list):
        for item in schema:
            yield from mappings(item)


def test_every_mapping_with_known_keys_is_closed():
    found = list(mappings(SCHEMA))
    assert len(found) > 10
    for mapping in found:
        names_are_free = "propertyNames" in mapping
        assert names_are_free or mapping["additionalProperties"] is False


def test_every_key_of_every_section_is_explained():
    for section in mappings(SCHEMA):
        for key, body in section["properties"].items():
            explained = body is False or "description" in body or key in ("from_env", "straddle")
            assert explained, key


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("report.formats", ["pdf"]),
        ("gate", {"metric": "output_tsp"}),
        ("node.patch_mode", "overlaid"),
        ("sweep.share_boot", "yes"),
        ("arms", {"preset": "speculation"}),
        ("arms", {"preset": "speculation", "args": {}, "static": {}}),
        ("node.lease", 120),
        ("node.gpus", [0, 0]),
        ("sweep.concurrency", []),
        ("sweep.concurency", [1]),
        ("server.env", {"A": 1}),
        ("server.args", {"a": False}),
        ("server.args", {"a_b": 1}),
        ("server.port", "30000"),
        ("schema", 2),
    ],
)
def test_refuses_what_the_loader_refuses(path, value):
    document = yaml.safe_load(BASE)
    *parents, key = path.split(".")
    here = document
    for parent in parents:
        here = here.setdefault(parent, {})
    here[key] = value
    assert not accepts(SCHEMA, document)
    with pytest.raises(ExperimentError):
        load_experiment(yaml.safe_dump(document), name="x.yaml")


@pytest.mark.parametrize(
    ("path", "default"),
    [("node.lease", "2m"), ("limits.lock_wait", "0s"), ("limits.interrupt", "8s"), ("sweep.repeats", 3)],
)
def test_defaults_are_written_as_the_file_writes_them(path, default):
    section, key = path.split(".")
    body = SCHEMA["properties"][section]
    body = body["anyOf"][0] if "anyOf" in body else body
    assert body["properties"][key]["default"] == default


_LEAF = (
    st.none()
    | st.booleans()
    | st.integers(-5, 99999)
    | st.floats(0, 10).map(lambda value: round(value, 2))
    | (
        st.sampled_from(
            ["30s", "2h", "all", "own", "wait", "closed", "chat", "generate", "~", "a-b", "3%", "8/s", ""]
        )
    )
)
_MAPPINGS = st.dictionaries(st.sampled_from(["open", "rate", "a", "A"]), _LEAF, max_size=2)
_VALUE = _LEAF | st.lists(_LEAF, max_size=3) | _MAPPINGS
_PATHS = sorted(
    f"{section}.{key}"
    for section in ("node", "server", "sweep", "limits", "report")
    for key in (SCHEMA["properties"][section].get("anyOf", [SCHEMA["properties"][section]])[0])["properties"]
)


@given(path=st.sampled_from(_PATHS), value=_VALUE)
@settings(max_examples=400, deadline=None)
def test_a_file_that_the_loader_accepts_is_valid_by_the_schema(path, value):
    document = yaml.safe_load(BASE)
    section, key = path.split(".")
    document.setdefault(section, {})[key] = value
    try:
        load_experiment(yaml.safe_dump(document), name="x.yaml")
    except ExperimentError:
        return
    assert accepts(SCHEMA, document)
