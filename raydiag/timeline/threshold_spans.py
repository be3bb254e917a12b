"""Stretches of time in which a row crosses a threshold, and whether that is "sustained"."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from raydiag.timeline.answers import ResultTable, Subject
from raydiag.timeline.known_values import known
from raydiag.tsdb.series import Floats

SUSTAINED = 3  # evaluations in a row
EVALUATION_S = 60.0  # apart
_NEAR = 0.7  # of a threshold


@dataclass(frozen=True)
class Span:
    """Samples that hold, with no longer pause than an evaluation between them."""

    start: float  # of the first sample
    end: float  # of the last one
    peak: float
    peak_time: float
    samples: int
    lasted_s: float  # what really happened: without the time that a rate looks back
    open: bool  # it still held at the last sample there is

    @property
    def sustained(self) -> bool:
        """Seen in so many evaluations in a row that one burst cannot be all of it."""
        return self.samples >= 2 and self.lasted_s >= (SUSTAINED - 1) * EVALUATION_S


def above(table: ResultTable, row: Floats, floor: float) -> list[Span]:
    """Where a row is above a value, exclusively. NaN neither holds nor ends a span."""
    with np.errstate(invalid="ignore"):
        holds = row > floor
    return _spans(table, row, holds)


def below(table: ResultTable, row: Floats, ceiling: float) -> list[Span]:
    """Where a row is below a value, exclusively; `peak` is then the lowest."""
    with np.errstate(invalid="ignore"):
        holds = row < ceiling
    return [replace(span, peak=-span.peak) for span in _spans(table, -row, holds)]


def sustained_above(table: ResultTable, row: Floats, floor: float) -> Span | None:
    """The first time that a row is above a value for long enough to be no burst."""
    return next((span for span in above(table, row, floor) if span.sustained), None)


def sustained_by_host(table: ResultTable, floor: float) -> dict[str, Span]:
    """Hosts that are above a value for long enough to be no burst, with the first such time."""
    spans = {}
    for subject, row in table:
        span = sustained_above(table, row, floor)
        if span is not None:
            spans[subject.host] = span
    return spans


def is_steady(table: ResultTable, row: Floats, span: Span, floor: float) -> bool:
    """Whether it was near the threshold before as well, or above it from the first sample on."""
    before = known(row[table.times < span.start])
    return not before.size or bool(np.median(before) > _NEAR * floor)


def present(table: ResultTable, row: Floats) -> list[Span]:
    """Where a query that keeps only what is wrong has an answer at all."""
    answered = np.flatnonzero(~np.isnan(row))
    if not answered.size:
        return []
    pauses = np.diff(table.times[answered]) > _pause_s(table)
    parts = np.split(answered, np.flatnonzero(pauses) + 1)
    last_asked = table.asked_until
    return [_span(table, row, part, bool(table.times[part[-1]] >= last_asked)) for part in parts]


def first_present(table: ResultTable, row: Floats) -> Span | None:
    """The first time that such a query has an answer."""
    return next(iter(present(table, row)), None)


def first_spans(table: ResultTable) -> Iterator[tuple[Subject, Span]]:
    """Rows of such a query that have an answer, each with the first time that it has."""
    for subject, row in table:
        span = first_present(table, row)
        if span is not None:
            yield subject, span


def _spans(table: ResultTable, row: Floats, holds: NDArray[np.bool_]) -> list[Span]:
    if not holds.any():
        return []
    answered = np.flatnonzero(~np.isnan(row))
    holding = answered[holds[answered]]
    # A pause that holds only samples which were never taken is none.
    position = np.searchsorted(answered, holding)
    pauses = (np.diff(table.times[holding]) > _pause_s(table)) & (np.diff(position) > 1)
    parts = np.split(holding, np.flatnonzero(pauses) + 1)
    return [_span(table, row, part, bool(part[-1] == answered[-1])) for part in parts]


def _pause_s(table: ResultTable) -> float:
    return max(EVALUATION_S, 1.5 * table.step_s)


def _span(table: ResultTable, row: Floats, columns: NDArray[np.intp], is_open: bool) -> Span:
    peak = columns[int(np.argmax(row[columns]))]
    start, end = float(table.times[columns[0]]), float(table.times[columns[-1]])
    return Span(
        start,
        end,
        peak=float(row[peak]),
        peak_time=float(table.times[peak]),
        samples=int(columns.size),
        lasted_s=max(0.0, end - start + table.step_s - table.lookback_s),
        open=is_open,
    )


@dataclass(frozen=True)
class Growth:
    """A counter that grew."""

    subject: Subject
    span: Span  # the first one
    total: float  # of all of them

    @property
    def host(self) -> str:
        """The host that counts."""
        return self.subject.host


def growths(table: ResultTable, metric: str | None = None) -> Iterator[Growth]:
    """Rows of a query that keeps what grew."""
    for subject, row in table.pick(metric):
        span = first_present(table, row)
        if span is not None:
            yield Growth(subject, span, float(np.nansum(row)) / table.overlap)
