"""The text format: what is a sample, what breaks a page, and that nothing raises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag.hotfix.served_page import parse


def test_series_and_values_as_they_are_written() -> None:
    page = parse(
        b"# TYPE hw_x gauge\n"
        b'hw_x{gpu="0",host="n1"} 751.5\n'
        b'hw_x{gpu="1",host="n1"} NaN 1770926290000\n'
        b"\n"
        b'hw_y{path="a\\"b{},c"} +Inf\n'
        b"tb:z 1e-3\r\n"
    )
    assert page.broken == ""
    assert {series: repr(value) for series, value in page.values.items()} == {
        'hw_x{gpu="0",host="n1"}': "751.5",
        'hw_x{gpu="1",host="n1"}': "nan",
        'hw_y{path="a\\"b{},c"}': "inf",
        "tb:z": "0.001",
    }
    assert page.metrics == {"hw_x": 2, "hw_y": 1, "tb:z": 1}


@pytest.mark.parametrize(
    "line",
    [
        "hw_x",
        "hw_x one",
        "hw_x 1_000",
        "hw x 1",
        'hw_x{gpu="0" 1',
        'hw_x{gpu="0"} 1 now',
        "9x 1",
        "Traceback (most recent call last):",
        "\x00\x01",
        "# TYPE hw_ok wattage",
        "# TYPE",
    ],
)
def test_a_line_that_is_none_is_named(line: str) -> None:
    page = parse(f"hw_ok 1\n{line}\nhw_more 2\n".encode())
    assert page.broken.startswith("line 2: ")
    assert page.metrics == {}


def test_a_series_that_stands_twice_breaks_the_page_unless_it_has_times() -> None:
    assert "twice" in parse(b"a 1\na 1\n").broken
    assert parse(b"a 1 1000\na 2 2000\n").broken == ""


@given(st.binary(max_size=400))
def test_no_text_raises(text: bytes) -> None:
    page = parse(text)
    assert sum(page.metrics.values()) == len(page.values)


@given(
    st.dictionaries(
        st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,9}", fullmatch=True),
        st.floats(allow_nan=False),
        max_size=20,
    )
)
def test_what_is_written_is_read(values: dict[str, float]) -> None:
    page = parse("".join(f"{name} {value!r}\n" for name, value in values.items()).encode())
    assert page.broken == ""
    assert page.values == values
