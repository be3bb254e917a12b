"""When did a series leave what is usual for it?

The measure is robust (median and median absolute deviation) and has a least absolute change, so
that a very quiet series does not accuse itself.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raydiag.timeline.answers import ResultTable
from raydiag.timeline.context import GHOST, LOADED, SAVE, Context
from raydiag.tsdb.series import Floats, Series

Flags = NDArray[np.bool_]

FACTOR = 6.0  # robust standard deviations
HOLD = 3  # samples in a row
MIN_SAMPLES = 8  # of a baseline
TO_SIGMA = 1.4826  # median absolute deviation of a normal distribution to its deviation
_EARLY = 1 / 3  # of the clean samples, from their start: what came before the fault
_EARLY_SAMPLES = 30  # and no fewer, where there are as many
_RAMP_SAMPLES = 12  # that tell the slope of a ramp


@dataclass(frozen=True)
class Level:
    """What is usual for a series."""

    median: float
    sigma: float  # robust standard deviation


@dataclass(frozen=True)
class Deviation:
    """One departure from the usual level."""

    time: float  # of the first sample that departs
    level: Level
    ended: float | None = None  # first usual sample after it; None: still so at the end


def level(values: Floats, keep: Flags) -> Level | None:
    """The usual level, from the early part of the samples to `keep`; None with too few of them."""
    clean = values[keep & np.isfinite(values)]
    if clean.size < MIN_SAMPLES:
        return None
    count = max(math.ceil(clean.size * _EARLY), min(_EARLY_SAMPLES, clean.size))
    early = clean[:count]
    median = float(np.median(early))
    return Level(median, TO_SIGMA * float(np.median(np.abs(early - median))))


def deviations(
    times: Floats, values: Floats, keep: Flags, usual: Level, least: float, sign: int
) -> list[Deviation]:
    """Every departure of at least `HOLD` samples in a row, in order of time.

    `least` is the smallest change that counts, `sign` +1 for rises, -1 for falls. Samples that are
    not kept neither begin nor end one; one that still lasts at the end needs two samples.
    """
    clean = keep & ~np.isnan(values)
    clean_times = times[clean]
    departed = sign * (values[clean] - usual.median) > max(FACTOR * usual.sigma, least)
    departures = []
    for first, last in _runs(departed):
        ended = next(map(float, clean_times[last + 1 :]), None)
        if last - first + 1 >= HOLD or (ended is None and last > first):
            departures.append(Deviation(float(clean_times[first]), usual, ended))
    return departures


def _runs(flags: Flags) -> Iterator[tuple[int, int]]:
    """First and last position of each row of true flags."""
    edges = np.diff(np.concatenate([[0], flags.astype(np.int8), [0]]))
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) - 1
    return zip(starts.tolist(), ends.tolist(), strict=True)


def ramp_start(series: Series, deviation: Deviation) -> float:
    """When a rise began that was slow to leave the noise: its slope followed back to the level.

    Never later than the first sample that departs, never earlier than the series itself begins.
    """
    after = series.times >= deviation.time
    times, values = series.times[after][:_RAMP_SAMPLES], series.values[after][:_RAMP_SAMPLES]
    if times.size < 3:
        return deviation.time
    slope = float(np.polyfit(times - times[0], values, 1)[0])
    above_level = float(values[0]) - deviation.level.median
    if slope == 0 or above_level * slope <= 0:
        return deviation.time
    return max(deviation.time - above_level / slope, float(series.times[0]))


def departure(
    context: Context,
    table: ResultTable,
    row: Floats,
    host: str,
    before: float,
    least: float,
    sign: int,
    masked: Sequence[str] = (GHOST, *LOADED),
) -> float:
    """When a row left its level on the way to what it was at `before`; that time if it never did.

    A threshold is crossed later than the trouble begins.
    """
    keep = context.judged(table.times, host, "hw_", *masked)
    usual = level(row, keep)
    if usual is None:
        return before
    departures = deviations(table.times, row, keep, usual, least, sign)
    outside_saves = context.judged(table.times, host, "hw_", SAVE)
    cause = _leading_to(before, departures, table.times[outside_saves])
    if cause is None:
        return before
    return min(before, _followed_back(table.times, row, cause))


def _leading_to(
    time: float, departures: Sequence[Deviation], outside_saves: Floats
) -> Deviation | None:
    """The departure that holds at a time, or the one before a save, in which everything rests."""
    leading: Deviation | None = None
    for earlier in reversed(departures):
        if leading is None:
            if earlier.time <= time and (earlier.ended is None or earlier.ended >= time):
                leading = earlier
        elif earlier.ended is not None:
            between = (outside_saves >= earlier.ended) & (outside_saves < leading.time)
            if between.any():
                break
            leading = earlier
    return leading


def _followed_back(times: Floats, row: Floats, deviation: Deviation) -> float:
    """The slope followed back, but not beyond the last sample that was at the level."""
    has_value = ~np.isnan(row)
    start = ramp_start(Series({}, times[has_value], row[has_value]), deviation)
    near_level = np.abs(row - deviation.level.median) <= 2.0 * deviation.level.sigma
    quiet = times[has_value & near_level & (times < deviation.time)]
    return float(quiet.max(initial=start))
