"""Literals that every match of a regular expression holds: what a fast search can look for.

Source: the parser of Python's own `re`, so that pattern and literals cannot drift apart.
"""

import importlib
import math
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import groupby, product
from typing import Any

_re: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")

LEAST = 3  # characters that are no digits; shorter is in every line
_MOST = 24  # strings that a stretch may be spelt out to
_CLASS = 4  # members up to which [..] is spelt out
_LONG = 14  # longer literals are not rarer
_DIGITS = str.maketrans("", "", "0123456789")

_Strings = frozenset[str]
_EMPTY: _Strings = frozenset(("",))
# Of a part of the pattern: all that it can match, if that is little; and the set asked for.
_Known = tuple[_Strings | None, _Strings | None]


def required_literals(pattern: str) -> frozenset[str]:
    """A set of which every match of `pattern` holds at least one; empty if there is none."""
    return _sequence(_re.parse(pattern))[1] or frozenset()


def without_digits(text: str) -> str:
    """What is left of a literal in a line whose digits were taken out."""
    return text.translate(_DIGITS)


def _sequence(items: Iterable[Any]) -> _Known:
    run, best = _EMPTY, None
    whole = True
    for exact, inner in _parts(items):
        joined = _joined(run, exact)
        if joined is None:
            best = _better(_better(best, run), inner)
            whole, joined = False, exact or _EMPTY
        run = joined
    return (run if whole else None), _better(best, run)


def _parts(items: Iterable[Any]) -> Iterator[_Known]:
    """What is known of each part; characters that follow each other are one part."""
    for is_text, group in groupby(items, key=lambda item: item[0] is _re.LITERAL):
        if is_text:
            yield frozenset(("".join(chr(code) for _, code in group),)), None
        else:
            yield from map(_part, group)


def _part(item: Any) -> _Known:
    kind, value = item
    if kind is _re.IN:
        return _members(value), None
    if kind in (_re.AT, _re.ASSERT, _re.ASSERT_NOT):
        return _EMPTY, None
    if kind is _re.SUBPATTERN and not value[1] & re.IGNORECASE:
        return _sequence(value[3])
    if kind is _re.BRANCH:
        return _branches([_sequence(branch) for branch in value[1]])
    if kind in (_re.MAX_REPEAT, _re.MIN_REPEAT):
        least, most, body = value
        exact, inner = _sequence(body)
        if least == 0:
            return (exact | _EMPTY if most == 1 and exact is not None else None), None
        return (exact if most == 1 else None), _better(exact, inner)
    return None, None


def _members(parts: Sequence[Any]) -> _Strings | None:
    if len(parts) > _CLASS or any(kind is not _re.LITERAL for kind, _ in parts):
        return None
    return frozenset(chr(code) for _, code in parts)


def _branches(known: Sequence[_Known]) -> _Known:
    exact, best = (_union(sets) for sets in zip(*known))
    if exact is not None and len(exact) > _MOST:
        exact = None
    return exact, best


def _union(sets: Sequence[_Strings | None]) -> _Strings | None:
    """None where one of them is not known."""
    if None in sets:
        return None
    return frozenset().union(*filter(None, sets))


def _joined(left: _Strings, right: _Strings | None) -> _Strings | None:
    if right is None or len(left) * len(right) > _MOST:
        return None
    return frozenset(map("".join, product(left, right)))


def _better(one: _Strings | None, other: _Strings | None) -> _Strings | None:
    """The rarer of two sets; None where neither is of use."""
    choices = [each for each in (one, other) if each and _worth(each)]
    return max(choices, key=_worth) if choices else None


def _worth(strings: _Strings) -> float:
    """How rare lines with one of them are: where all are long, few, or not in small letters."""
    worths = [_rarity(string) for string in strings]
    return min(min(worths), _LONG) - math.log2(len(worths)) / 2 if min(worths) else 0


@cache
def _rarity(literal: str) -> float:
    text = without_digits(literal).strip()
    if len(text) < LEAST:
        return 0
    return len(text) + sum(not character.islower() for character in text) / 2
