"""Counters that move."""

from __future__ import annotations

import pytest

from raydiag.rules.grades import growth


@pytest.mark.parametrize(
    ("first", "later", "expected"),
    [(3, 5, 2), (3, 3, 0), (5, 3, None), (None, 3, None), (3, None, None)],
)
def test_growth(first: int | None, later: int | None, expected: int | None) -> None:
    assert growth(first, later) == expected
