"""The JSON Schemas: each stands alone, and what several of them say is the same in all."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

import jsonschema
import pytest

SCHEMAS = {
    path.name.removesuffix(".json"): json.loads(path.read_text("utf-8"))
    for path in files("raydiag").joinpath("schemas").iterdir()
    if path.name.endswith(".json")
}
SHARED = ("class", "coverage", "finding", "name_or_null", "number_or_null", "text_or_null")


def parts(schema: Any) -> Iterator[Mapping[str, Any]]:
    """The schema and every schema inside it."""
    if isinstance(schema, dict):
        yield schema
        for value in schema.values():
            yield from parts(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from parts(value)


def properties(schema: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for part in parts(schema):
        if isinstance(part.get("properties"), dict):
            yield from part["properties"].items()


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_valid_and_stands_alone(name: str) -> None:
    schema = SCHEMAS[name]
    jsonschema.Draft202012Validator.check_schema(schema)
    references = {part["$ref"] for part in parts(schema) if isinstance(part.get("$ref"), str)}
    assert references <= {f"#/$defs/{definition}" for definition in schema.get("$defs", {})}


@pytest.mark.parametrize("definition", SHARED)
def test_what_schemas_share_is_the_same_in_all(definition: str) -> None:
    found = [schema["$defs"][definition] for schema in SCHEMAS.values() if "$defs" in schema]
    assert len(found) == len(SCHEMAS) - 1  # an error has no findings
    assert all(one == found[0] for one in found)


def test_every_document_starts_alike() -> None:
    for key in ("raydiag_version", "generated_at"):
        found = [
            told for schema in SCHEMAS.values() for name, told in properties(schema) if name == key
        ]
        assert len(found) >= len(SCHEMAS)
        assert all(told == found[0] for told in found if "$ref" not in told)


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_property_is_described(name: str) -> None:
    bare = [key for key, told in properties(SCHEMAS[name]) if not told.get("description")]
    assert bare == []
