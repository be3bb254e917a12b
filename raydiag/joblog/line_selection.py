"""Which lines of a log are worth decoding: those that hold one of some hundred literals.

It only selects, and both ways below select the same lines; whether a line means anything is decided
by `re` later, on the decoded line. hyperscan (extra `fast`) reads some GB a second. Without it,
lines are looked up by their shape: without digits most lines of a log repeat themselves, and only a
new shape is searched.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import accumulate, chain, compress
from typing import Any, NamedTuple, TypeVar

from raydiag.joblog.log_line import Selector

Finder = Callable[[bytes], Collection[int]]
_T = TypeVar("_T")

_DIGITS = b"0123456789"
_LINE_END = re.compile(rb"[\r\n]")
# Taken off a line before it is matched (as in prefixes.plain), so it may stand inside of a literal.
_CONTROL = bytes(code for code in (*range(32), 127) if code not in b"\t\n\r")
_HIDING = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b\n\r]*(?:\x07|\x1b\\)"
    rb"|\x1b[()*+][0-9A-Za-z]|\x1b[@-Z\\^_]|\^\[\[[0-9;]{0,16}m"
    rb"|[" + re.escape(_CONTROL.replace(b"\x1b", b"")) + rb"]+|\x1b"
)
_CARET = b"^[["
_SHAPES = 32768
_SHAPE_BYTES = 512  # longer lines are searched each time


class LineForm(NamedTuple):
    """What a literal cannot say: digits in certain places of a line."""

    pattern: bytes  # a regular expression that matches within a line, and no long way
    shapes: tuple[bytes, ...]  # one of them is in each such line once its digits are gone


def selector(
    literals: Iterable[bytes], fast: bool = True, forms: Sequence[LineForm] = ()
) -> Selector:
    """Selects by `literals` and `forms`.

    `fast`: with hyperscan where it is installed; False: without it in any case. Raises ValueError
    for a literal that is empty or holds a line end.
    """
    literals = set(literals)
    if b"" in literals or any(map(_LINE_END.search, literals)):
        raise ValueError("a literal is empty or holds a line end")
    needed = fewest(literals)
    return (_made(partial(_Hyperscan, forms=forms), needed) if fast else None) or _Shapes(
        needed, forms
    )


def finder(literals: Sequence[bytes], fast: bool = True) -> Finder:
    """Tells which of `literals` are in a text, by their places in the list; `fast` as above."""
    return (_made(_HyperscanFinder, literals) if fast else None) or _Finder(literals)


def _made(kind: Callable[[Any, Sequence[bytes]], _T], literals: Sequence[bytes]) -> _T | None:
    """With hyperscan; None where it is not installed, or the processor lacks what it wants."""
    try:
        import hyperscan
    except ImportError:
        return None
    try:
        return kind(hyperscan, literals)
    except hyperscan.error:
        return None


def fewest(literals: Iterable[bytes]) -> list[bytes]:
    """Without those that hold another one: a line with them is found by the shorter."""
    ordered = sorted(set(literals), key=_by_length)
    text = b"\n".join(ordered)  # none of them holds a line end
    starts = _starts(text)
    needed = [True] * len(ordered)
    for index, literal in enumerate(ordered):
        # Each is looked for in the longer ones behind it, all in one text.
        at = text.find(literal, starts[index + 1]) if needed[index] else -1
        while at >= 0:
            longer = bisect_right(starts, at) - 1
            needed[longer] = False
            at = text.find(literal, starts[longer + 1])
    return list(compress(ordered, needed))


def _by_length(literal: bytes) -> tuple[int, bytes]:
    return len(literal), literal


def _database(hyperscan: Any, expressions: Sequence[bytes], flags: Sequence[int]) -> Any:
    """The expressions compiled; each is known by its place."""
    database, count = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK), len(expressions)
    database.compile(expressions=expressions, ids=list(range(count)), elements=count, flags=flags)
    return database


class _Hyperscan:
    """All literals at once; besides it tells whether anything hides text in a chunk."""

    def __init__(
        self, hyperscan: Any, literals: Sequence[bytes], forms: Sequence[LineForm] = ()
    ) -> None:
        hiding = [b"[" + b"".join(b"\\x%02x" % code for code in _CONTROL) + b"]", re.escape(_CARET)]
        wanted = [*map(_escaped, literals), *(form.pattern for form in forms)]
        self._first_hiding = len(wanted)
        flags = [0] * len(wanted) + [hyperscan.HS_FLAG_SINGLEMATCH] * len(hiding)
        self._database = _database(hyperscan, [*wanted, *hiding], flags)
        self._hidden = False  # in the chunk before: most logs have colours in all or in no lines

    def __call__(self, chunk: bytes, /) -> Sequence[int]:
        if not self._hidden:
            offsets, self._hidden = self._scan(chunk)
            if not self._hidden:
                return offsets
        clean = _HIDING.sub(b"", chunk)
        self._hidden = len(clean) < len(chunk)
        offsets, _ = self._scan(clean)
        if not self._hidden or not offsets:
            return offsets
        clean_starts, starts = _starts(clean), _starts(chunk)
        return [starts[bisect_right(clean_starts, offset) - 1] for offset in offsets]

    def _scan(self, text: bytes) -> tuple[list[int], bool]:
        ends: list[int] = []
        first_hiding, hidden = self._first_hiding, []

        def seen(identifier: int, _start: int, end: int, _flags: int, _context: object) -> None:
            if identifier < first_hiding:
                ends.append(end - 1)
            else:
                hidden.append(end)

        self._database.scan(text, match_event_handler=seen)
        ends.sort()
        return ends, bool(hidden)


class _HyperscanFinder:
    """Each literal is reported once a text."""

    def __init__(self, hyperscan: Any, literals: Sequence[bytes]) -> None:
        flags = [hyperscan.HS_FLAG_SINGLEMATCH] * len(literals)
        self._database = _database(hyperscan, list(map(_escaped, literals)), flags)

    def __call__(self, text: bytes, /) -> Collection[int]:
        match: list[int] = []

        def seen(identifier: int, *_: object) -> None:
            match.append(identifier)

        self._database.scan(text, match_event_handler=seen)
        return match


class _Finder:
    """One search for any of them; most texts hold none."""

    def __init__(self, literals: Sequence[bytes]) -> None:
        self._literals = literals
        self._any = re.compile(_alternation(fewest(literals))).search

    def __call__(self, text: bytes, /) -> Collection[int]:
        if not self._any(text):
            return ()
        return [place for place, literal in enumerate(self._literals) if literal in text]


class _Shapes:
    """Line by line, each shape searched once."""

    def __init__(self, literals: Sequence[bytes], forms: Sequence[LineForm] = ()) -> None:
        of_forms = chain.from_iterable(form.shapes for form in forms)
        of_literals = (literal.translate(None, _DIGITS) for literal in literals)
        self._search_shape = re.compile(_alternation(fewest([*of_literals, *of_forms]))).search
        patterns = [_alternation(literals), *(form.pattern for form in forms)]
        self._search = re.compile(b"|".join(patterns)).search
        self._hot_shapes: dict[bytes, bool] = {}

    def __call__(self, chunk: bytes, /) -> Sequence[int]:
        clean = chunk
        if _CARET in chunk or len(chunk.translate(None, _CONTROL)) < len(chunk):
            clean = _HIDING.sub(b"", chunk)
        hot_shapes = self._hot_shapes
        hot = [
            number
            for number, line in enumerate(_lines(clean.translate(None, _DIGITS)))
            if line and hot_shapes.get(line, True) and (line in hot_shapes or self._is_hot(line))
        ]
        if not hot:
            return ()
        starts, lines = _starts(chunk), _lines(clean)
        return [starts[number] for number in hot if self._search(lines[number])]

    def _is_hot(self, line: bytes) -> bool:
        hot = self._search_shape(line) is not None
        if len(line) <= _SHAPE_BYTES:
            if len(self._hot_shapes) >= _SHAPES:
                self._hot_shapes.clear()
            self._hot_shapes[line] = hot
        return hot


def _lines(text: bytes) -> list[bytes]:
    return (text.replace(b"\r", b"\n") if b"\r" in text else text).split(b"\n")


def _starts(text: bytes) -> list[int]:
    """Where each line begins; a lone carriage return ends one as well."""
    return list(accumulate(map(len, _lines(text)), lambda at, length: at + length + 1, initial=0))


def _escaped(literal: bytes) -> bytes:
    return b"".join(b"\\x%02x" % byte for byte in literal)


def _alternation(literals: Sequence[bytes]) -> bytes:
    """A pattern of all literals in which common beginnings are shared: `re` tries few branches."""
    by_first: dict[bytes, list[bytes]] = {}
    for literal in literals:
        by_first.setdefault(literal[:1], []).append(literal[1:])
    branches = []
    for first, rests in sorted(by_first.items()):
        tail = b"" if b"" in rests else _alternation(rests)
        branches.append(re.escape(first) + tail)
    return branches[0] if len(branches) == 1 else b"(?:" + b"|".join(branches) + b")"
