"""Plots of a course in a terminal: a row of bars for each host, all on one scale.

Where the output has no such letters, digits stand for heights.
"""

import math
from collections.abc import Iterator

import numpy as np

from raydiag.render.formats import joined, number, utc
from raydiag.timeline.courses import Course
from raydiag.tsdb.series import Floats

BARS, DIGITS = "▁▂▃▄▅▆▇█", "12345678"
_LEAST_COLUMNS = 10


def plot_lines(course: Course, width: int, bars: str = BARS) -> Iterator[str]:
    """Title, a row for each line of the plot, and below them the times and the onset."""
    if course.is_blank:
        return
    rows = [(curve.name, curve.values) for curve in course.curves]
    if course.others is not None:
        rows.append((f"median of {course.others.name}", course.others.median))
    margin = max((len(name) for name, _ in rows), default=0) + 1
    columns = max(width - margin, _LEAST_COLUMNS)
    lasting = any(curve.lasting for curve in course.curves)
    if not lasting:  # more columns than samples would leave some empty
        columns = max(min(columns, course.at.size), _LEAST_COLUMNS)
    binned = [(name, _binned(course, values, columns)) for name, values in rows]
    if lasting:
        binned = [(name, _held(values)) for name, values in binned]
    known = np.concatenate([values[np.isfinite(values)] for _, values in binned])
    low, high = min(0.0, float(known.min())), float(known.max())
    scale = f"{number(round(low, 3))} to {number(float(f'{high:.3g}'))} {course.unit}".strip()
    yield joined([course.title, scale])
    for name, values in binned:
        yield f"{name.ljust(margin)}{_bars(values, low, high, bars)}".rstrip()
    yield from _marks(course, margin, columns)


def _extent(course: Course) -> tuple[float, float]:
    return course.extent or (float(course.at[0]), float(course.at[-1]))


def _column(course: Course, at: float, columns: int) -> int:
    start, end = _extent(course)
    return min(int((at - start) / max(end - start, 1e-9) * columns), columns - 1)


def _binned(course: Course, values: Floats, columns: int) -> Floats:
    """The value farthest from zero of each column; NaN where there is none."""
    start, end = _extent(course)
    places = ((course.at - start) / max(end - start, 1e-9) * columns).astype(int)
    binned = np.full(columns, np.nan)
    for place, value in zip(np.clip(places, 0, columns - 1).tolist(), values, strict=True):
        if math.isfinite(value) and not abs(binned[place]) >= abs(value):
            binned[place] = value
    return binned


def _held(values: Floats) -> Floats:
    """Each value up to the one before it, because it is that of the time between them."""
    known = np.flatnonzero(np.isfinite(values))
    if not known.size:
        return values
    nearest = known[np.searchsorted(known, np.arange(values.size)).clip(max=known.size - 1)]
    is_between = (np.arange(values.size) >= known[0]) & (np.arange(values.size) <= known[-1])
    return np.where(is_between, values[nearest], np.nan)


def _bars(values: Floats, low: float, high: float, bars: str) -> str:
    drawn = ""
    for value in values.tolist():
        height = (value - low) / (high - low) if high > low else 0.0
        drawn += " " if math.isnan(value) else bars[round(height * (len(bars) - 1))]
    return drawn


def _marks(course: Course, margin: int, columns: int) -> Iterator[str]:
    """`^ onset` below its column; first and last time."""
    start, end = _extent(course)
    if course.onset is not None and start <= course.onset <= end:
        yield " " * (margin + _column(course, course.onset, columns)) + "^ onset"
    if course.over_steps:
        yield f"{' ' * margin}step {start:.0f} to {end:.0f}"
    else:
        yield f"{' ' * margin}{utc(start)} to {utc(end)}"
