"""Wrapping, and how numbers are written."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag.render.formats import extent, shape
from raydiag.render.text import wrap


@given(st.text("ab ,", max_size=120), st.integers(8, 40))
def test_wrap_loses_nothing_but_blanks(text: str, width: int) -> None:
    lines = wrap(text, width)
    assert all(len(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", [""]),
        ("one two three", ["one two", "three"]),
        ("n[001-003,007-009]", ["n[001-003,", "007-009]"]),
        ("abcdefghijklmnop", ["abcdefghij", "klmnop"]),
        ("one two  three 4", ["one two", "three 4"]),
    ],
)
def test_wrap(text: str, lines: list[str]) -> None:
    assert wrap(text, 10) == lines


def test_wrap_indents() -> None:
    assert wrap("one two three", 12, "- ", "    ") == ["- one two", "    three"]


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([], "-"),
        ([41.4, 41.2], "41C"),
        ([63.0, 41.0, 50.0], "41-63C"),
        ([math.nan, 41.0, math.inf], "41C"),
        ([math.nan], "-"),
        ([1e300], "1e+300C"),
    ],
)
def test_extent(values: list[float], shown: str) -> None:
    assert extent(values, "C") == shown


def test_shape_is_equal_for_like_texts() -> None:
    one = shape("node7 GPU 3 (0000:c5:00.0) is at 91.5 C, code 0x1f", "node7")
    two = shape("node12 GPU 0 (0000:85:00.0) is at 94 C, code 0xa", "node12")
    assert one == two == "* GPU * (*) is at * C, code *"
