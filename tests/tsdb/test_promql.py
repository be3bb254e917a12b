from __future__ import annotations

import pytest

from raydiag.tsdb import promql


def test_selectors() -> None:
    assert promql.selector("up") == "up"
    assert promql.selector("up", {"host": "a|b"}) == 'up{host=~"a|b"}'
    assert promql.selector("", match={"__name__": "a|b"}) == '{__name__=~"a|b"}'
    assert promql.selector("with.dot") == '{__name__="with.dot"}'


def test_what_must_be_quoted() -> None:
    assert promql.quoted('a"b\\c\n') == '"a\\"b\\\\c\\n"'
    assert promql.any_of(["n1.x", "n2"]) == r"n1\.x|n2"


@pytest.mark.parametrize(
    ("seconds", "text"), [(300, "300s"), (0.25, "250ms"), (61.5, "61500ms"), (0, "1ms")]
)
def test_durations(seconds: float, text: str) -> None:
    assert promql.duration(seconds) == text
