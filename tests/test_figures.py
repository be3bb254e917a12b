"""The package stays readable: limits on what `make figures` prints. They go down, not up."""

from __future__ import annotations

from pathlib import Path

import pytest

import raydiag
from tools.figures import Figures, measured

PACKAGE = Path(raydiag.__file__).parent


@pytest.fixture(scope="module")
def figures() -> Figures:
    return measured(sorted(PACKAGE.rglob("*.py")))


def test_names_say_what_they_hold(figures: Figures) -> None:
    assert figures.filler_percent <= 2.0, figures.filler.most_common(10)


def test_no_comprehension_inside_a_comprehension(figures: Figures) -> None:
    assert figures.per_thousand_lines(figures.nested) <= 0.5


def test_expressions_are_seldom_dense(figures: Figures) -> None:
    assert figures.per_thousand_lines(figures.comprehensions) <= 25.0
    assert figures.per_thousand_lines(figures.conditionals) <= 20.0


def test_a_class_name_means_one_thing(figures: Figures) -> None:
    assert len(figures.duplicate_classes) <= 10, figures.duplicate_classes


def test_functions_are_simple_and_described(figures: Figures) -> None:
    assert figures.complexity_at(0.9) <= 8
    assert figures.undocumented_percent <= 10.0


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("one = 1", (1, 0, 0)),
        ("rows = [x for x in y]", (0, 1, 0)),
        ("rows = [[x for x in y] for y in z]", (0, 2, 1)),
        ("rows = [x for y in z for x in y]", (0, 1, 1)),
    ],
)
def test_what_is_counted(source: str, expected: tuple[int, int, int]) -> None:
    figures = Figures()
    figures.add(source)
    assert (figures.filler.total(), figures.comprehensions, figures.nested) == expected


def test_complexity_counts_branches_and_operators() -> None:
    figures = Figures()
    figures.add("def f(a, b):\n    if a and b:\n        return 1\n    return 2 if a else 3\n")
    assert figures.complexities == [4]
