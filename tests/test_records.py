"""Values from nodes: taken as what the field says, or refused."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any, Optional

import pytest

from raydiag.errors import ParseError
from raydiag.joblog.step_values import Doubles
from raydiag.records import decode


@dataclass(frozen=True)
class Sample:
    count: int
    share: float
    name: str
    seen: bool
    limit: Optional[int]
    span: int | None
    frames: tuple[str, ...]
    values: dict[str, float]
    note: str = "none"


GOOD: dict[str, Any] = {
    "count": 3,
    "share": 1,
    "name": "a",
    "seen": True,
    "limit": None,
    "span": 4,
    "frames": ["x", "y"],
    "values": {"avg10": 2},
}


def test_good_values_are_taken_and_unknown_fields_ignored() -> None:
    expected = Sample(3, 1.0, "a", True, None, 4, ("x", "y"), {"avg10": 2.0})
    assert decode(Sample, {**GOOD, "newer": 1}) == expected


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("count", "3"),
        ("count", True),
        ("count", 1.0),
        ("count", 10**400),
        ("share", float("nan")),
        ("share", float("inf")),
        ("share", "1"),
        ("name", 7),
        ("name", None),
        ("seen", 1),
        ("limit", "none"),
        ("frames", "xy"),
        ("frames", [1]),
        ("values", []),
        ("values", {"avg10": "2"}),
    ],
)
def test_wrong_values_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ParseError, match=rf"Sample\.{field}"):
        decode(Sample, {**GOOD, field: value})


def test_missing_field_and_no_object() -> None:
    with pytest.raises(ParseError, match="field count is missing"):
        decode(Sample, {key: value for key, value in GOOD.items() if key != "count"})
    with pytest.raises(ParseError, match="not an object"):
        decode(Sample, [1])  # type: ignore[arg-type]


@dataclass(frozen=True)
class Columns:
    numbers: Doubles
    states: bytearray
    lines: dict[int, str]
    marks: list[tuple[int, str]]


def test_columns_bytes_pairs_and_numbered_entries() -> None:
    data = {"numbers": [1, 2.5], "states": "nf", "lines": {"7": "a"}, "marks": [[7, "a"]]}
    expected = Columns(array("d", [1, 2.5]), bytearray(b"nf"), {7: "a"}, [(7, "a")])
    assert decode(Columns, data) == expected


@pytest.mark.parametrize(
    ("field", "value"),
    [("numbers", ["1"]), ("states", [1]), ("lines", {"a": "a"}), ("marks", [[7]])],
)
def test_wrong_columns_are_refused(field: str, value: object) -> None:
    good = {"numbers": [], "states": "", "lines": {}, "marks": []}
    with pytest.raises(ParseError, match=rf"Columns\.{field}"):
        decode(Columns, {**good, field: value})
