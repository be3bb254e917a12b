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

_TOKEN = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?:\?(?:P<\w+>|[a-z-]*:|<?[=!]))?|.", re.DOTALL
)


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
    end: int = 0  # where its closing parenthesis is
    optional: bool = False  # it may be missing from a match


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
    groups = list(_groups(pattern))
    optional_groups = [group for group in groups if group.optional]
    for group in groups:
        inside = any(
            outer.head <= group.head and group.end <= outer.end for outer in optional_groups
        )
        if len(group.starts) > 1:
            yield from _alternatives(pattern, group, inside)
        if group.optional:
            end = group.end + 2
            yield _Part(pattern[group.head : end], group.head, end, True, group.negated)


def _groups(pattern: str) -> Iterator[_Group]:
    """Inner groups before the outer ones, the whole pattern last."""
    open_groups = [_Group(0, [0])]
    for match in _TOKEN.finditer(pattern):
        group, token = open_groups[-1], match.group()
        if token.startswith("("):
            negated = group.negated or token.endswith("!")
            open_groups.append(_Group(match.start(), [match.end()], negated))
        elif token == "|":
            group.starts.append(match.end())
        elif token == ")":
            group.end = match.start()
            group.optional = pattern[match.end() : match.end() + 1] in ("?", "*")
            yield open_groups.pop()
    open_groups[0].end = len(pattern)
    yield open_groups[0]


def _alternatives(pattern: str, group: _Group, optional: bool) -> Iterator[_Part]:
    first, *others = group.starts
    ends = [start - 1 for start in others] + [group.end]
    # With an alternative goes the bar before it, with the first one the bar after it.
    yield _Part(pattern[first : ends[0]], first, ends[0] + 1, optional, group.negated)
    for start, end in zip(others, ends[1:], strict=True):
        yield _Part(pattern[start:end], start - 1, end, optional, group.negated)
