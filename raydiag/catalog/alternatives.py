r"""Alternatives of a regular expression that none of its examples needs.

An alternative without an example may break, or be misspelt from the start, and no test fails. So
each alternative is removed in turn, and each optional group, and the examples are matched again:

    unneeded_alternatives(r"link (?:is )?(?:down|lost)", ["link down"])  ->  ["(?:is )?", "lost"]

Alternatives of a negative lookaround (`(?!up|ok)`) are needed by near misses instead: without them
one more near miss matches.

Source: the syntax of Python's `re`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_GROUP_HEAD = re.compile(r"\((?:\?(?:P<\w+>|[a-z-]*:|<?[=!]))?")
_CHARACTER_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)


@dataclass(frozen=True)
class _Part:
    """A part of a pattern that can be left out: text[start:end]."""

    text: str  # as a reader of the pattern knows it
    start: int
    end: int
    optional: bool  # it or something around it may be missing from a match
    negated: bool  # inside a negative lookaround


@dataclass
class _Group:
    """A group, or the whole pattern, while its text is read."""

    head: int  # where its opening parenthesis is
    starts: list[int]  # of its alternatives
    negated: bool = False


def unneeded_alternatives(
    pattern: str, examples: Sequence[str], near_misses: Sequence[str] = ()
) -> list[str]:
    """Alternatives and optional groups that can be removed and no example notices, as written.

    An example notices when it no longer matches, or when a named group no longer holds the same.
    Without near misses, alternatives of negative lookarounds are not looked at.
    """
    return [
        part.text
        for part in _removable_parts(pattern)
        if not _is_needed(pattern, part, near_misses if part.negated else examples)
        and (near_misses or not part.negated)
    ]


def _is_needed(pattern: str, part: _Part, lines: Sequence[str]) -> bool:
    try:
        shorter = re.compile(pattern[: part.start] + pattern[part.end :])
    except re.error:
        return True  # something refers to it
    complete = re.compile(pattern)
    return any(
        _result(complete, line, part.optional) != _result(shorter, line, part.optional)
        for line in lines
    )


def _result(pattern: re.Pattern[str], line: str, with_extent: bool) -> object:
    """What a search yields. What is optional may change nothing but how far a match extends."""
    match = pattern.search(line)
    if match is None:
        return None
    # A named group that was removed with its alternative equals one that matched nothing.
    groups = {name: text for name, text in match.groupdict().items() if text is not None}
    return groups, match.span() if with_extent else None


def _removable_parts(pattern: str) -> Iterator[_Part]:
    """Inner parts before the outer ones that hold them."""
    finished: list[tuple[_Group, int, bool]] = []  # with its end, and whether it may be missing
    open_groups = [_Group(0, [0])]
    position = 0
    while position < len(pattern):
        group, character = open_groups[-1], pattern[position]
        step = 1
        if character == "\\":
            step = 2
        elif character == "[":
            step = _length(_CHARACTER_CLASS, pattern, position)
        elif character == "(":
            step = _length(_GROUP_HEAD, pattern, position)
            negated = group.negated or pattern[position : position + step].endswith("!")
            open_groups.append(_Group(position, [position + step], negated))
        elif character == "|":
            group.starts.append(position + 1)
        elif character == ")":
            open_groups.pop()
            finished.append((group, position, pattern[position + 1 : position + 2] in ("?", "*")))
        position += step
    finished.append((open_groups[0], len(pattern), False))
    optional_spans = [(group.head, end) for group, end, optional in finished if optional]
    for group, end, optional in finished:
        inside = any(head <= group.head and end <= last for head, last in optional_spans)
        if len(group.starts) > 1:
            yield from _alternatives(pattern, group, end, inside)
        if optional:
            text = pattern[group.head : end + 2]
            yield _Part(text, group.head, end + 2, True, group.negated)


def _alternatives(pattern: str, group: _Group, end: int, optional: bool) -> Iterator[_Part]:
    ends = [start - 1 for start in group.starts[1:]] + [end]
    for start, stop in zip(group.starts, ends):
        # With it goes the bar before it, or the bar after the first one.
        if start == group.starts[0]:
            yield _Part(pattern[start:stop], start, stop + 1, optional, group.negated)
        else:
            yield _Part(pattern[start:stop], start - 1, stop, optional, group.negated)


def _length(form: re.Pattern[str], pattern: str, position: int) -> int:
    match = form.match(pattern, position)
    assert match is not None  # the pattern compiles
    return len(match.group())
