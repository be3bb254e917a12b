"""Documents held against the schemas that raydiag publishes."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

from jsonschema import Draft202012Validator


def fits(document: object, name: str) -> None:
    """Raises ValidationError for a document that is not of the schema `name`."""
    _validator(name).validate(document)


@cache
def _validator(name: str) -> Draft202012Validator:
    """Made once: that a schema is valid takes longer to see than that a document is of it.

    `tests/render/test_schemas.py` sees it.
    """
    text = files("raydiag").joinpath(f"schemas/{name}.json").read_text("utf-8")
    return Draft202012Validator(json.loads(text))
