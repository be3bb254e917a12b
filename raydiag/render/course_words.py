"""What a plot shows, in a sentence: for who cannot see it, and where it cannot be drawn."""

import math
from collections.abc import Iterator

import numpy as np

from raydiag.render.formats import number
from raydiag.timeline.courses import Course
from raydiag.tsdb.series import Floats


def caption(course: Course) -> str:
    """`mi263: 0 before the onset, then 653 packets/s (836 at most). 6 others: 0 throughout.`"""
    return " ".join(_sentences(course))


def _sentences(course: Course) -> Iterator[str]:
    for curve in course.curves:
        most = f" ({_number(np.nanmax(curve.values))} at most)" if _is_known(curve.values) else ""
        yield f"{curve.name}: {_change(course, curve.values)}{most}."
    if course.others is not None:
        others = course.others
        extent = ""
        if _is_known(others.low) and np.nanmin(others.low) < np.nanmax(others.high):
            low, high = _number(np.nanmin(others.low)), _number(np.nanmax(others.high))
            extent = f" ({'most ' * others.most}from {low} to {high})"
        yield f"{others.name}: {_change(course, others.median)}{extent}."


def _change(course: Course, values: Floats) -> str:
    """The medians before and after the onset, else that of all."""
    at, onset = course.at, course.onset
    if not _is_known(values):
        return "nothing measured"
    unit = f" {course.unit}" if course.unit else ""
    if onset is None or not at.size or not at[0] < onset < at[-1]:
        return f"{_median(values)}{unit}"
    before, after = _median(values[at < onset]), _median(values[at >= onset])
    if before == after:
        return f"{after}{unit} before the onset and after it"
    return f"{before} before the onset, then {after}{unit}"


def _median(values: Floats) -> str:
    return _number(np.nanmedian(values)) if _is_known(values) else "nothing"


def _is_known(values: Floats) -> bool:
    return bool(np.isfinite(values).any())


def _number(value: float) -> str:
    """Three digits are enough for a sentence."""
    if value == 0 or not math.isfinite(value):
        return number(value)
    return number(round(float(value), 2 - math.floor(math.log10(abs(value)))))
