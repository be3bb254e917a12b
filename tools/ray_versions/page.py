"""The table of Rays and Pythons in a page of the docs, between two marks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tools.ray_versions.checks import CHECKS, NOT_TRIED, Outcome

START, END = "<!-- made by `make ray-table` -->\n", "<!-- end of the table -->\n"
_COLUMNS = ("Ray", "Python", *(f"`{name}`" for name in CHECKS), "`probe` took", "tried with")


def with_rows(page: str, outcomes: Sequence[Outcome], tried_with: str) -> str:
    """The page with a row for each outcome; rows of other Rays and Pythons stay.

    Raises ValueError for a page without the marks.
    """
    before, start, rest = page.partition(START)
    table, end, after = rest.partition(END)
    if not (start and end):
        raise ValueError(f"the page has no {START.strip()} and {END.strip()}")
    rows = {row[:2]: row for row in map(_cells, table.splitlines()[2:]) if len(row) > 1}
    for outcome in outcomes:
        row = _row(outcome, tried_with)
        rows[row[:2]] = _merged(row, rows.get(row[:2], row))
    return before + start + _table(rows.values()) + end + after


def _row(outcome: Outcome, tried_with: str) -> tuple[str, ...]:
    combination = outcome.combination
    seconds = "" if outcome.probe_s is None else f"{outcome.probe_s:.0f} s"
    checks = (outcome.checks[name].replace("|", "/") for name in CHECKS)
    python = outcome.python or combination.python
    return (combination.ray, python, *checks, seconds, tried_with)


def _merged(row: tuple[str, ...], earlier: tuple[str, ...]) -> tuple[str, ...]:
    """What was not tried now keeps what was seen before."""
    pairs = zip(row, earlier, strict=True)
    return tuple(old if new in (NOT_TRIED, "") else new for new, old in pairs)


def _cells(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in line.strip().strip("|").split("|"))


def _table(rows: Iterable[Sequence[str]]) -> str:
    ordered = sorted(rows, key=lambda row: [_numbers(cell) for cell in row[:2]])
    lines = [_line(_COLUMNS), _line(["---"] * len(_COLUMNS)), *map(_line, ordered)]
    return "".join(f"{line}\n" for line in lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdecimal()]
