"""What there is to draw of two jobs: how long each of the compared steps took in either."""

import numpy as np

from raydiag.explain.comparison.pair import Pair
from raydiag.explain.comparison.side import Side
from raydiag.timeline.courses import SAVE, Course, Curve, Stretch
from raydiag.timeline.training_series import SECONDS
from raydiag.tsdb.series import Floats


def pace_course(pair: Pair) -> Course | None:
    """Seconds of each step; saves leave gaps, or they would hide all else. None without steps."""
    shared = pair.overlap
    if shared.start is None or shared.last is None:
        return None
    numbers = np.arange(shared.start, shared.last + 1, dtype=np.float64)
    of_a, of_b = _seconds(pair, pair.a, numbers), _seconds(pair, pair.b, numbers)
    curves = (Curve(f"job {pair.a.label}", of_a), Curve(f"job {pair.b.label}", of_b))
    saves = tuple(Stretch(SAVE, step - 0.5, step + 0.5) for step in shared.saves)
    course = Course("Time per training step", "s", numbers, curves, None, saves, over_steps=True)
    return None if course.is_blank else course


def _seconds(pair: Pair, side: Side, numbers: Floats) -> Floats:
    """Of each step; NaN where nothing tells."""
    steps, seconds = side.run.of(SECONDS, pair.overlap.steady(side.run))
    values = np.full(numbers.size, np.nan)
    values[np.searchsorted(numbers, steps)] = seconds
    return values
