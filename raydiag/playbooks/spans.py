"""Stretches of time in which something holds, and whether that is "sustained"."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from raydiag.playbooks.query_results import ResultTable, Where
from raydiag.tsdb.series import Floats

SUSTAINED = 3  # evaluations in a row
EVALUATION_S = 60.0  # apart


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


def spans(
    times: Floats, values: Floats, holds: NDArray[np.bool_], step_s: float, span_s: float = 0.0
) -> list[Span]:
    """The spans of one row. NaN neither holds nor ends one. `span_s`: how far values look back."""
    known = np.flatnonzero(~np.isnan(values))
    where = known[holds[known]]
    if not where.size:
        return []
    pause = max(EVALUATION_S, 1.5 * step_s)
    # A pause that holds only samples which were never taken is none.
    position = np.searchsorted(known, where)
    away = (np.diff(times[where]) > pause) & (np.diff(position) > 1)
    found = []
    for part in np.split(where, np.flatnonzero(away) + 1):
        peak = part[int(np.argmax(values[part]))]
        start, end = float(times[part[0]]), float(times[part[-1]])
        found.append(
            Span(
                start=start,
                end=end,
                peak=float(values[peak]),
                peak_time=float(times[peak]),
                samples=int(part.size),
                lasted_s=max(0.0, end - start + step_s - span_s),
                open=bool(part[-1] == known[-1]),
            )
        )
    return found


def above(table: ResultTable, row: Floats, floor: float) -> list[Span]:
    """Where a row is above a value, exclusively."""
    with np.errstate(invalid="ignore"):
        holds = row > floor
    if not holds.any():
        return []
    return spans(table.times, row, holds, table.step_s, table.span_s)


def held(table: ResultTable, row: Floats, floor: float) -> list[Span]:
    """Where a row is above a value, and long enough that it is no burst."""
    return [one for one in above(table, row, floor) if one.sustained]


def below(table: ResultTable, row: Floats, floor: float) -> list[Span]:
    """Where a row is below a value, exclusively; `peak` is then the lowest."""
    with np.errstate(invalid="ignore"):
        holds = row < floor
    if not holds.any():
        return []
    found = spans(table.times, -row, holds, table.step_s, table.span_s)
    return [
        Span(s.start, s.end, -s.peak, s.peak_time, s.samples, s.lasted_s, s.open) for s in found
    ]


def present(table: ResultTable, row: Floats) -> list[Span]:
    """Where a question that keeps only what is wrong has an answer at all."""
    found = np.flatnonzero(~np.isnan(row))
    if not found.size:
        return []
    pause = max(EVALUATION_S, 1.5 * table.step_s)
    spans_ = []
    for part in np.split(found, np.flatnonzero(np.diff(table.times[found]) > pause) + 1):
        peak = part[int(np.argmax(row[part]))]
        start, end = float(table.times[part[0]]), float(table.times[part[-1]])
        lasted = max(0.0, end - start + table.step_s - table.span_s)
        spans_.append(
            Span(
                start,
                end,
                float(row[peak]),
                float(table.times[peak]),
                int(part.size),
                lasted,
                end >= table.last,
            )
        )
    return spans_


@dataclass(frozen=True)
class Growth:
    """A counter that grew."""

    where: Where
    span: Span  # the first one
    total: float  # of all of them


def growths(table: ResultTable, metric: Optional[str] = None) -> Iterator[Growth]:
    """Rows of a question that keeps what grew."""
    # Where increases look back further than the step, each event is counted more than once.
    overlap = max(1.0, table.span_s / table.step_s) if table.step_s else 1.0
    for where, row in table.pick(metric):
        for span in present(table, row)[:1]:
            yield Growth(where, span, float(np.nansum(row)) / overlap)
