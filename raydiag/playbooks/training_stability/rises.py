"""Where a scalar of training rises and stays there."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raydiag.timeline.deviations import TO_SIGMA
from raydiag.timeline.known_values import robust_noise
from raydiag.tsdb.series import Floats, Series

MIN_STEPS = 8
BASELINE_STEPS = 30  # that tell what is usual
HOLD = 3  # steps in a row
LOSS_SHARE = 0.2
SIGMAS = 8.0
_BEGUN = 3.0  # deviations above its level: the rise has begun
_SMOOTH = 5  # steps
_NEAR = 2.0  # deviations above the lowest: no rise yet
_CLIMBING = 0.6  # of the time since the lowest, the loss went up


@dataclass(frozen=True)
class Rise:
    """A rise that stays."""

    index: int  # of the sample at which it begins
    value: float  # highest of its start
    usual: float  # before


def first_rise(
    series: Series, factor: float, min_share: float = 0.0, hold: int = HOLD
) -> Rise | None:
    """The first rise above what is usual that stays for `hold` steps.

    What is usual is frozen at the departure, so that a new level does not become normal.
    """
    values = series.values
    level, spread = _usual(values)
    rise = np.maximum(SIGMAS * spread, min_share * np.abs(level))
    limit = np.maximum(level * factor, level + rise)
    for index in range(MIN_STEPS, values.size - hold + 1):
        held = values[index : index + hold]
        if held[0] > limit[index] and bool((held > limit[index]).all()):
            noise = level[index] + _BEGUN * spread[index]
            return Rise(_begin(values, index, noise), float(held.max()), float(level[index]))
    return None


def _usual(values: Floats) -> tuple[Floats, Floats]:
    """Median and robust deviation of the steps before each one; NaN for the first few."""
    middle = np.full(values.size, np.nan)
    spread = np.full(values.size, np.nan)
    for index in range(MIN_STEPS, min(BASELINE_STEPS, values.size)):
        middle[index], spread[index] = _robust(values[None, :index])[:, 0]
    if values.size > BASELINE_STEPS:
        windows = np.lib.stride_tricks.sliding_window_view(values, BASELINE_STEPS)[:-1]
        middle[BASELINE_STEPS:], spread[BASELINE_STEPS:] = _robust(windows)
    return middle, spread


def _robust(windows: Floats) -> Floats:
    """Median and robust deviation of each row."""
    middle = np.median(windows, axis=1)
    return np.array([middle, TO_SIGMA * np.median(np.abs(windows - middle[:, None]), axis=1)])


def _begin(values: Floats, index: int, noise: float) -> int:
    """The first of the samples above the noise that lead up to a position."""
    while index > 0 and values[index - 1] > noise:
        index -= 1
    return index


def slow_rise(series: Series) -> Rise | None:
    """Where a loss turns and climbs for good, however slowly, from its lowest."""
    values = series.values
    if values.size < 2 * MIN_STEPS:
        return None
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(values, _SMOOTH), axis=1)
    noise = robust_noise(values)
    lowest = int(np.argmin(smooth))
    least = float(smooth[lowest])
    climb = smooth[lowest:] - least
    if climb[-1] < max(SIGMAS * noise, LOSS_SHARE * abs(least)) or climb.size < BASELINE_STEPS:
        return None
    # Medians that share samples are often equal, so a rise shows between those that share none.
    apart = max(_SMOOTH, climb.size // 8)
    if float(np.mean(climb[apart:] > climb[:-apart])) < _CLIMBING:
        return None
    clearly = climb > max(SIGMAS * noise, 0.02 * abs(least))
    end = lowest + int(np.argmax(clearly)) + _SMOOTH - 1
    begin = _begin(values, end, least + _BEGUN * noise)
    return Rise(begin, float(values[-_SMOOTH:].max()), least)


def turning_point(values: Floats, index: int) -> int:
    """Where a loss that used to fall began to rise: after the last step that was near its lowest.

    What is usual lags behind a loss that falls, so a rise passes it steps after it began.
    """
    start = max(0, index - BASELINE_STEPS)
    before = values[start:index]
    if before.size < MIN_STEPS:
        return index
    near = np.flatnonzero(before <= float(before.min()) + _NEAR * robust_noise(before))
    return min(index, start + int(near[-1]) + 1)


def runs(flags: NDArray[np.bool_], hold: int) -> Iterator[int]:
    """Where each row of so many true flags begins."""
    count = 0
    for index, flag in enumerate(flags):
        count = count + 1 if flag else 0
        if count == hold:
            yield index - hold + 1
