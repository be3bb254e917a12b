"""Line of a job log -> rows of the signature table that match it. `re` decides; words only select.

A line that no row can match costs one look-up: lines of a log repeat themselves but for their
numbers, so what rows may match is remembered by the line without its digits.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from raydiag.catalog.literals import without_digits
from raydiag.catalog.signatures import Signature, SignatureTable, table
from raydiag.joblog import kernel_lines
from raydiag.joblog.line_selection import finder, selector
from raydiag.joblog.log_line import Hit, JobLogLine, Selector

BESIDE_LINES = 3
_SHAPES = 8192  # remembered; what a log repeats fits in
_SHAPE_BYTES = 1024  # longer lines are searched each time
# What a logger puts before an error: time, module, level, place. Of a warning it is left on, so
# that an exception that somebody caught and reported does not look like the one that ended it.
_LOGGER = re.compile(
    r"(?:\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?Z?"
    r"(?: [A-Z]{2,3}\d{1,4})*\]?[ |:-]{0,4})?"
    r"(?:[A-Za-z][\w.]{0,80} - )?"
    r"(?:\[?(?:ERROR|CRITICAL|FATAL)\]?(?::[\w.]{1,80}:)?[ |:-]{0,8})?"
    r"(?:\d\d-\d\d \d\d:\d\d:\d\d )?"
    r"(?:std(?:err|out) \| )?"
    r"(?:\[?[\w./-]{1,120}:\d{1,6}(?::\w{1,80})?\][ :-]{0,4})?"
    r"(?:[\w.]{1,120}:\w{1,80}:\d{1,6} - )?"
)
_WHO = ("rank", "host", "ip", "pid")
_DIGITS = b"0123456789"


class Classifier:
    """Decides for one log after the other; remembers a few lines of what it saw."""

    def __init__(self, signatures: SignatureTable | None = None) -> None:
        self._table = signatures or table()
        by_literal = _by_literal(self._table.rows)
        self._literals = finder(list(map(str.encode, by_literal)))
        self._rows_of = tuple(by_literal.values())  # indices of rows, literal by literal
        self._shapes: dict[bytes, tuple[int, ...]] = {}
        self._last_lines: dict[tuple[str, str], int] = {}  # (file, row) -> line
        self._beside = {row.beside for row in self._table.rows if row.beside}

    def __call__(self, line: JobLogLine, /) -> Sequence[Hit]:
        """Hits in the order of the table; a harmless row stands alone."""
        possible = self._possible(line.text)
        if not possible or self._is_quote(line.text):
            return ()
        hits = list(self._matches(line, possible))
        if not hits:
            return ()
        harmless = [hit for hit in hits if hit.role == "harmless"]
        return tuple(harmless[:1]) or self._strongest(hits)

    def failure_class(self, text: str) -> str | None:
        """Class of one line by itself, such as the last one of a traceback; None for no class."""
        for index in self._possible(text):
            row = self._table.rows[index]
            if not row.weak and _match(row, text):
                return row.failure_class or None
        return None

    def _is_quote(self, text: str) -> bool:
        """Code and settings, also where a logger prints them line by line."""
        quotes = self._table.quotes
        return bool(quotes.match(text) or quotes.match(_message(text)))

    def _matches(self, line: JobLogLine, possible: Iterable[int]) -> Iterator[Hit]:
        for index in possible:
            row = self._table.rows[index]
            if row.when and (row.when == "training") != line.training:
                continue
            match = _match(row, line.text)
            if match is not None and not self._is_beside(row, line):
                yield Hit(row.id, row.failure_class, row.role, row.stage, _groups(match))

    def _is_beside(self, row: Signature, line: JobLogLine) -> bool:
        """A line shortly above makes this one harmless; remembers where such lines are."""
        if row.id in self._beside:
            self._last_lines[line.file, row.id] = line.number
        if not row.beside:
            return False
        last = self._last_lines.get((line.file, row.beside), -BESIDE_LINES - 1)
        return 0 <= line.number - last <= BESIDE_LINES

    def _strongest(self, hits: Sequence[Hit]) -> Sequence[Hit]:
        """Without weak rows beside strong ones, and without what another row says better.

        Whom one of them names, all are about.
        """
        rows = [self._table.by_id[hit.row] for hit in hits]
        strong = any(not row.weak for row in rows)
        who: dict[str, str] = {}
        for hit in hits:
            who.update((name, hit.groups[name]) for name in _WHO if name in hit.groups)
        replaced = frozenset().union(*(row.instead_of for row in rows))
        return tuple(
            replace(hit, groups={**who, **hit.groups})
            for hit, row in zip(hits, rows, strict=True)
            if hit.row not in replaced and not (row.weak and strong)
        )

    def _possible(self, text: str) -> tuple[int, ...]:
        """Rows one of whose words the text holds, numbers apart."""
        shape = text.encode(errors="replace").translate(None, _DIGITS)
        if len(shape) > _SHAPE_BYTES:
            return self._searched(shape)
        rows = self._shapes.get(shape)
        if rows is None:
            if len(self._shapes) >= _SHAPES:
                self._shapes.clear()
            rows = self._shapes[shape] = self._searched(shape)
        return rows

    def _searched(self, shape: bytes) -> tuple[int, ...]:
        rows: set[int] = set()
        for literal in self._literals(shape):
            rows.update(self._rows_of[literal])
        return tuple(sorted(rows))


def _match(row: Signature, text: str) -> re.Match[str] | None:
    match = row.pattern.search(text)
    if match is None and row.anchored:
        match = row.pattern.search(_message(text))
    if match is not None and row.unless is not None and row.unless.search(text):
        return None
    return match


def _groups(match: re.Match[str]) -> dict[str, str]:
    """What the named groups hold, without the numbers of their patterns."""
    groups = {}
    for name, value in match.groupdict().items():
        if value is not None:
            groups[name.rstrip("0123456789")] = value
    return groups


def _message(text: str) -> str:
    """A text without what a logger puts before it."""
    head = _LOGGER.match(text)
    return text[head.end() :] if head else text


def make_selector(anchors: Sequence[bytes], /) -> Selector:
    """Selects lines for the table's rows and for `anchors`, which are case-sensitive literals."""
    literals: set[str] = set()
    for row in table().rows:
        literals.update(row.literals)
    return selector([*map(str.encode, literals), *anchors], forms=kernel_lines.FORMS)


def _by_literal(rows: Sequence[Signature]) -> dict[str, tuple[int, ...]]:
    """Literals as they stand in lines without digits, and the rows that want them."""
    places: dict[str, tuple[int, ...]] = {}
    for index, row in enumerate(rows):
        for literal in sorted({without_digits(literal) for literal in row.literals}):
            places[literal] = (*places.get(literal, ()), index)
    return places
