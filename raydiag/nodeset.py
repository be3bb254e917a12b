"""Host names folded for the eye (`node[001-063]`) and expanded again, as schedulers write them.

The last run of ASCII digits in a name is its number; zero padding is part of the name, so node1
and node01 stay two hosts. Names may be anything without `[`, `]`, `,` and blanks; names with one
of these, which no host has, are passed through as they are and do not expand again.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Union

from raydiag.errors import UsageError

MAX_NAMES = 100_000

_DIGITS = "0123456789"
_MAX_DIGITS = 18  # longer runs are no host numbers
_LAST_DIGIT = re.compile(r"[0-9](?=[^0-9]*\Z)")
_SYNTAX = frozenset("[], \t\n\r\v\f")


def fold(names: Iterable[str]) -> str:
    """The names as one expression, duplicates removed, in the order of prefix and number."""
    terms: list[tuple[str, int, str]] = []
    numbered: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in set(names):
        prefix, digits, suffix = _split(name)
        if digits:
            numbered[prefix, suffix].append(digits)
        else:
            terms.append((name, 0, name))
    for (prefix, suffix), runs in numbered.items():
        for width, numbers in _by_width(runs):
            inner = ",".join(_ranges(sorted(numbers), width))
            text = inner if len(numbers) == 1 else f"[{inner}]"
            terms.append((prefix, min(numbers), prefix + text + suffix))
    return ",".join(term for _, _, term in sorted(terms))


def expand(expression: str) -> list[str]:
    """The names behind `node[001-004],gpu7`, sorted, without duplicates; [] for an empty text.

    A term may hold several brackets, then all combinations are meant. Raises UsageError on bad
    syntax and on more than MAX_NAMES names.
    """
    names: set[str] = set()
    for term in _terms(expression, ",") if expression.strip() else ():
        parts = _parts(term.strip(), expression)
        count = math.prod(sum(map(len, ranges)) for ranges in parts)
        if count + len(names) > MAX_NAMES:
            raise UsageError(f"{_quoted(expression)}: more than {MAX_NAMES} nodes")
        names.update(_combinations(parts))
    return sorted(names)


def expand_in_order(expression: str, limit: int = MAX_NAMES) -> tuple[str, ...]:
    """The names as the list has them, `limit` at most: the place of a name is its Slurm node id.

    Blanks separate as commas do. Of a term that is no expression the text itself is the name.

    >>> expand_in_order("mi[08-10],x1")
    ('mi08', 'mi09', 'mi10', 'x1')
    """
    try:
        terms = _terms(expression, ", \t\n")
    except UsageError:
        return tuple(expression.replace(",", " ").split()[:limit])
    names: list[str] = []
    for term in filter(None, terms):
        try:
            parts = _parts(term, expression)
        except UsageError:
            parts = [[[term]]]
        names += itertools.islice(_combinations(parts), limit - len(names))
    return tuple(names)


def _split(name: str) -> tuple[str, str, str]:
    """(prefix, digits, suffix) around the last run of digits; digits is "" when there is none."""
    last = _LAST_DIGIT.search(name)
    if last is None or not _SYNTAX.isdisjoint(name):
        return name, "", ""
    prefix = name[: last.end()].rstrip(_DIGITS)
    digits = name[len(prefix) : last.end()]
    if len(digits) <= _MAX_DIGITS:
        return (prefix, digits, name[last.end() :])
    return (name, "", "")


def _by_width(runs: list[str]) -> list[tuple[int, list[int]]]:
    """The runs as numbers, grouped by the width that they are padded to; width 1 is no padding.

    A run that fills its width without a leading zero (100 beside 099) belongs to the padded ones.
    """
    padded = {len(run) for run in runs if run[0] == "0"}
    groups: dict[int, list[int]] = defaultdict(list)
    for run in runs:
        groups[len(run) if len(run) in padded else 1].append(int(run))
    return list(groups.items())


def _ranges(numbers: list[int], width: int) -> Iterable[str]:
    """`001-003`, `007`, ... for sorted, different numbers."""
    # In a run of numbers each is as far from its place in the list as the first one.
    for _, group in itertools.groupby(enumerate(numbers), key=lambda item: item[1] - item[0]):
        run = [f"{number:0{width}d}" for _, number in group]
        yield "-".join(dict.fromkeys((run[0], run[-1])))


def _terms(expression: str, separators: str) -> list[str]:
    """The expression cut at the separators that stand outside brackets."""
    terms, depth, start = [], 0, 0
    for index, char in enumerate(expression):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        elif char in separators and depth == 0:
            terms.append(expression[start:index])
            start = index + 1
        if depth not in (0, 1):
            raise UsageError(f"{_quoted(expression)}: brackets do not match")
    if depth:
        raise UsageError(f"{_quoted(expression)}: a bracket is not closed")
    return [*terms, expression[start:]]


@dataclass(frozen=True)
class _Range:
    """Numbers that are padded to a width."""

    numbers: range
    width: int

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[str]:
        for number in self.numbers:
            yield f"{number:0{self.width}d}"


_Part = Sequence[Union[list[str], _Range]]  # what may stand in one place of a term


def _parts(term: str, expression: str) -> list[_Part]:
    """The term's fixed texts and brackets, in order, each with all that may stand there."""
    if not term or any(char.isspace() for char in term):
        raise UsageError(f"{_quoted(expression)}: {_quoted(term)} is not a node name")
    parts: list[_Part] = []
    while "[" in term:
        fixed, _, bracket = term.partition("[")
        inner, _, term = bracket.partition("]")
        parts.append([[fixed]])
        parts.append([_range(text, expression) for text in inner.split(",")])
    return [*parts, [[term]]]


def _combinations(parts: Sequence[_Part]) -> Iterator[str]:
    """The names one by one: a list that a log printed may stand for billions."""
    if not parts:
        yield ""
        return
    for start in itertools.chain.from_iterable(parts[0]):
        for end in _combinations(parts[1:]):
            yield start + end


def _range(text: str, expression: str) -> _Range:
    """`007` or `001-004`, padded like the first number."""
    first, dash, last = map(str.strip, text.partition("-"))
    last = last if dash else first
    for number in (first, last):
        if not number or number.strip(_DIGITS) or len(number) > _MAX_DIGITS:
            raise UsageError(f"{_quoted(expression)}: {_quoted(text)} is not a number or a range")
    if int(first) > int(last):
        raise UsageError(f"{_quoted(expression)}: the range {_quoted(text)} runs backwards")
    if last[0] == "0" and len(last) != len(first):
        raise UsageError(f"{_quoted(expression)}: {_quoted(text)} mixes zero paddings")
    width = len(first) if first[0] == "0" else 1
    return _Range(range(int(first), int(last) + 1), width)


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
