"""How many steps a backtracking engine takes to search a text: a count, the same on any machine.

It goes as Python's `re` does: every start in turn, alternatives in order, repetitions that give
back. A step is a look at a character, which takes `re` some nanoseconds; where `re` runs through a
text by a loop of its own (any characters, or back to one that must follow), a tenth. Its other
short cuts are left out, so that the count is rather too high than too low.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Union

try:
    from re import _constants as constants  # type: ignore[attr-defined]
    from re import _parser as sre_parse  # type: ignore[attr-defined]
except ImportError:
    import sre_constants as constants
    import sre_parse

AnyPattern = Union[re.Pattern[str], re.Pattern[bytes]]
Tokens = Sequence[tuple[Any, Any]]
Ends = Iterator[int]
Node = Callable[["Text", int], Ends]  # the places where a match that begins at a place may end
Test = Callable[[str], bool]

_QUICK = 0.1  # of a step
_CATEGORIES: dict[str, Test] = {
    "DIGIT": str.isdigit,
    "SPACE": str.isspace,
    "WORD": lambda char: char.isalnum() or char == "_",
}


class TooManySteps(Exception):
    """The limit was reached before the search ended."""


@dataclass
class Text:
    """What is searched, and how many steps were taken so far."""

    text: str
    limit: float
    steps: float = 0

    def __post_init__(self) -> None:
        self.groups: dict[int, str] = {}

    def step(self, cost: float = 1) -> None:
        self.steps += cost
        if self.steps > self.limit:
            raise TooManySteps

    def char(self, at: int, cost: float = 1) -> str:
        """The one there; "" at the end."""
        self.step(cost)
        return self.text[at] if at < len(self.text) else ""


def parsed(pattern: AnyPattern) -> Tokens:
    source = pattern.pattern
    text = source.decode("latin-1") if isinstance(source, bytes) else source
    return list(sre_parse.parse(text, pattern.flags & ~re.UNICODE & ~re.DEBUG))


def compiled(pattern: AnyPattern) -> Node:
    return _sequence(parsed(pattern), pattern.flags)


def search_steps(node: Node, text: str, limit: float, in_place: bool = False) -> float:
    """Of a search that finds nothing before it has looked everywhere it must.

    `in_place`: as match() does. Raises TooManySteps.
    """
    searched = Text(text, limit)
    for start in range(1 if in_place else len(text) + 1):
        if next(node(searched, start), None) is not None:
            break
        searched.step()
    return searched.steps


def _sequence(tokens: Tokens, flags: int) -> Node:
    followers = [*(_literal(str(kind), value, flags) for kind, value in tokens[1:]), ""]
    kinds = zip(tokens, followers, strict=False)
    nodes = [_node(str(kind), value, flags, after) for (kind, value), after in kinds]
    if len(nodes) == 1:
        return nodes[0]

    def ends(text: Text, at: int, first: int = 0) -> Ends:
        if first == len(nodes):
            yield at
            return
        for end in nodes[first](text, at):
            yield from ends(text, end, first + 1)

    return ends


def _literal(kind: str, value: Any, flags: int) -> str:
    """The one character that it can begin with; "" where it could be another."""
    return chr(value) if kind == "LITERAL" and not flags & re.IGNORECASE else ""


def _node(kind: str, value: Any, flags: int, after: str = "") -> Node:
    test = _one_character(kind, value, flags)
    if test is not None:
        return _single(test)
    if kind == "SUBPATTERN":
        number, added, removed, inner = value
        return _group(number, _sequence(inner, (flags | added) & ~removed))
    if kind == "BRANCH":
        return _branch([_sequence(inner, flags) for inner in value[1]])
    if kind.endswith("_REPEAT"):
        least, most, inner = value
        return _repeat(kind, least, most, inner, flags, after)
    if kind == "ATOMIC_GROUP":
        return _atomic(_sequence(value, flags))
    if kind in ("ASSERT", "ASSERT_NOT"):
        return _assertion(kind == "ASSERT", value[0], value[1], flags)
    if kind == "AT":
        return _position(str(value), flags)
    if kind == "GROUPREF":
        return _reference(value)
    if kind == "GROUPREF_EXISTS":
        return _conditional(value[0], _sequence(value[1], flags), _sequence(value[2] or [], flags))
    raise NotImplementedError(kind)


def _one_character(kind: str, value: Any, flags: int) -> Union[Test, None]:
    """Whether a character fits; None for what is not one character."""
    if kind == "ANY":
        return (lambda char: True) if flags & re.DOTALL else (lambda char: char != "\n")
    if kind in ("LITERAL", "NOT_LITERAL"):
        is_same = _fits(lambda char: char == chr(value), flags)
        return is_same if kind == "LITERAL" else (lambda char: not is_same(char))
    if kind == "IN":
        return _of_class(value, flags)
    return None


def _fits(test: Test, flags: int) -> Test:
    if not flags & re.IGNORECASE:
        return test
    return lambda char: test(char.lower()) or test(char.upper())


def _of_class(members: Tokens, flags: int) -> Test:
    negated = str(members[0][0]) == "NEGATE"
    tests = [_fits(_member(str(kind), value), flags) for kind, value in members[negated:]]
    known: dict[str, bool] = {}

    def fits(char: str) -> bool:
        if char not in known:
            known[char] = any(test(char) for test in tests) is not negated
        return known[char]

    return fits


def _member(kind: str, value: Any) -> Test:
    if kind == "LITERAL":
        return lambda char: char == chr(value)
    if kind == "RANGE":
        return lambda char: chr(value[0]) <= char <= chr(value[1])
    name = str(value).replace("CATEGORY_", "")
    test = _CATEGORIES[name.replace("NOT_", "")]
    return (lambda char: not test(char)) if "NOT_" in name else test


def _single(test: Test) -> Node:
    def ends(text: Text, at: int) -> Ends:
        char = text.char(at)
        if char and test(char):
            yield at + 1

    return ends


def _group(number: Union[int, None], inner: Node) -> Node:
    if number is None:
        return inner

    def ends(text: Text, at: int) -> Ends:
        for end in inner(text, at):
            text.groups[number] = text.text[at:end]
            yield end

    return ends


def _branch(choices: Sequence[Node]) -> Node:
    def ends(text: Text, at: int) -> Ends:
        for choice in choices:
            yield from choice(text, at)

    return ends


def _atomic(inner: Node) -> Node:
    def ends(text: Text, at: int) -> Ends:
        end = next(inner(text, at), None)
        if end is not None:
            yield end

    return ends


def _repeat(kind: str, least: int, most: Any, inner: Tokens, flags: int, after: str) -> Node:
    tokens = list(inner)
    while len(tokens) == 1 and str(tokens[0][0]) == "SUBPATTERN" and tokens[0][1][1:3] == (0, 0):
        tokens = list(tokens[0][1][3])
    limit = int(most) if most != constants.MAXREPEAT else 1 << 30
    test = _one_character(str(tokens[0][0]), tokens[0][1], flags) if len(tokens) == 1 else None
    lazy = kind == "MIN_REPEAT"
    if test is not None:
        cost = _QUICK if str(tokens[0][0]) == "ANY" else 1
        node = _repeated_character(test, cost, (least, limit), lazy, after)
    else:
        node = _repeated(_sequence(tokens, flags), least, limit, lazy)
    return _atomic(node) if kind == "POSSESSIVE_REPEAT" else node


def _repeated_character(
    test: Test, cost: float, times: tuple[int, int], lazy: bool, after: str
) -> Node:
    """`after`: what must follow it; "" where that could be anything."""
    least, most = times

    def eager(text: Text, at: int) -> Ends:
        end = at
        while end - at < most and (char := text.char(end, cost)) and test(char):
            end += 1
        for each in range(end, at + least - 1, -1):
            if after and not text.text.startswith(after, each):
                text.step(_QUICK)
            else:
                text.step()
                yield each

    def reluctant(text: Text, at: int) -> Ends:
        end = at
        while True:
            if end - at >= least:
                yield end
            if end - at >= most or not (char := text.char(end)) or not test(char):
                return
            end += 1

    return reluctant if lazy else eager


def _repeated(inner: Node, least: int, most: int, lazy: bool) -> Node:
    def ends(text: Text, at: int) -> Ends:
        if lazy and least == 0:
            yield at
        tried = [(at, inner(text, at))]  # one for each time that it fits, and where that begins
        while tried:
            start, more = tried[-1]
            end = next(more, None) if len(tried) <= most else None
            if end is None:
                tried.pop()
                if not lazy and len(tried) >= least:
                    yield start
            elif end > start:
                if lazy and len(tried) >= least:
                    yield end
                tried.append((end, inner(text, end)))
            elif len(tried) <= least:
                yield end

    return ends


def _assertion(wanted: bool, direction: int, inner: Tokens, flags: int) -> Node:
    node = _sequence(inner, flags)
    width = inner.getwidth()[0] if hasattr(inner, "getwidth") else 0

    def ends(text: Text, at: int) -> Ends:
        start = at if direction > 0 else at - width
        if (start >= 0 and next(node(text, start), None) is not None) is wanted:
            yield at

    return ends


def _position(name: str, flags: int) -> Node:
    is_word = _CATEGORIES["WORD"]
    name = name.replace("AT_", "")
    by_line = flags & re.MULTILINE and name in ("BEGINNING", "END")

    def holds(text: str, at: int) -> bool:
        before, after = text[max(0, at - 1) : at], text[at : at + 1]
        if "BOUNDARY" in name:
            at_edge = bool(before and is_word(before)) != bool(after and is_word(after))
            return at_edge is ("NON_" not in name)
        if "BEGINNING" in name:
            return at == 0 or bool(by_line and before == "\n")
        if name == "END_STRING":
            return at == len(text)
        return at == len(text) or bool(by_line and after == "\n") or text[at:] == "\n"

    def ends(text: Text, at: int) -> Ends:
        text.step()
        if holds(text.text, at):
            yield at

    return ends


def _reference(number: int) -> Node:
    def ends(text: Text, at: int) -> Ends:
        text.step()
        held = text.groups.get(number)
        if held is not None and text.text.startswith(held, at):
            yield at + len(held)

    return ends


def _conditional(number: int, then: Node, otherwise: Node) -> Node:
    def ends(text: Text, at: int) -> Ends:
        yield from (then if number in text.groups else otherwise)(text, at)

    return ends
