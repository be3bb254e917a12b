"""When did a series leave what is usual for it: first deviation, with how well its time is known.

The measure is robust (median and median absolute deviation) and has a least absolute change, so
that a very quiet series does not accuse itself. Times within each other's uncertainty are one
moment: nothing says which came first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from raydiag.tsdb.series import Floats, Series

Flags = NDArray[np.bool_]

FACTOR = 6.0  # robust standard deviations
HOLD = 3  # samples in a row
LEAST_SAMPLES = 8  # of a baseline
_EARLY = 1 / 3  # of the clean samples, from their start: what came before the fault
_EARLY_SAMPLES = 30  # and no fewer, where there are as many
_TO_SIGMA = 1.4826  # median absolute deviation of a normal distribution to its deviation
_RAMP_SAMPLES = 12  # that tell the slope of a ramp


@dataclass(frozen=True)
class Level:
    """What is usual for a series."""

    median: float
    sigma: float  # robust standard deviation
    samples: int


@dataclass(frozen=True)
class Deviation:
    """One departure from the usual level."""

    time: float  # of the first sample that departs
    uncertainty_s: float  # it may have begun so much earlier
    value: float  # the furthest of it
    level: Level
    ended: Optional[float]  # first usual sample after it; None: still so at the end
    samples: int

    @property
    def recovered(self) -> bool:
        return self.ended is not None

    @property
    def change(self) -> float:
        return self.value - self.level.median


def level(values: Floats, keep: Flags) -> Optional[Level]:
    """The usual level, from the early part of the samples to `keep`; None with too few of them."""
    known = values[keep & np.isfinite(values)]
    if known.size < LEAST_SAMPLES:
        return None
    count = max(math.ceil(known.size * _EARLY), min(_EARLY_SAMPLES, known.size))
    return _level(known[:count])


def _level(values: Floats) -> Level:
    median = float(np.median(values))
    sigma = _TO_SIGMA * float(np.median(np.abs(values - median)))
    return Level(median, sigma, int(values.size))


def deviations(
    times: Floats,
    values: Floats,
    keep: Flags,
    usual: Level,
    least: float,
    sign: int = 0,
    hold: int = HOLD,
    refresh_s: float = 0.0,
) -> list[Deviation]:
    """Every departure of at least `hold` samples in a row, in order of time.

    `least` is the smallest change that counts, `sign` +1 for rises, -1 for falls, 0 for both.
    Samples that are not kept neither begin nor end one; one that still lasts at the end needs two
    samples. `refresh_s` is the family's own resolution where it is coarser than its samples.
    """
    there = keep & ~np.isnan(values)
    when, away = times[there], values[there] - usual.median
    if not when.size:
        return []
    limit = max(FACTOR * usual.sigma, least)
    off = np.abs(away) > limit if sign == 0 else sign * away > limit
    spacing = float(np.median(np.diff(times))) if times.size > 1 else 0.0
    found = []
    for low, high in _runs(off):
        needed = hold if high + 1 < when.size else min(hold, 2)
        if high - low + 1 < needed:
            continue
        before = float(when[low] - when[low - 1]) if low else spacing
        worst = low + int(np.argmax(np.abs(away[low : high + 1])))
        found.append(
            Deviation(
                time=float(when[low]),
                uncertainty_s=max(before, spacing, refresh_s),
                value=float(away[worst]) + usual.median,
                level=usual,
                ended=float(when[high + 1]) if high + 1 < when.size else None,
                samples=high - low + 1,
            )
        )
    return found


def _runs(flags: Flags) -> Iterable[tuple[int, int]]:
    """First and last position of each row of true flags."""
    edges = np.diff(np.concatenate([[0], flags.astype(np.int8), [0]]))
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) - 1
    return ((int(low), int(high)) for low, high in zip(starts, ends, strict=True))


def first_deviation(
    series: Series, keep: Flags, least: float, sign: int = 0, refresh_s: float = 0.0
) -> Optional[Deviation]:
    """The first departure from the series' own early level; None without one or without a level."""
    usual = level(series.values, keep)
    if usual is None:
        return None
    found = deviations(series.times, series.values, keep, usual, least, sign, refresh_s=refresh_s)
    return next(iter(found), None)


def ramp_start(series: Series, deviation: Deviation) -> float:
    """When a rise began that was slow to leave the noise: its slope followed back to the level.

    Never later than the first sample that departs, never earlier than the rise itself allows.
    """
    after = series.times >= deviation.time
    times, values = series.times[after][:_RAMP_SAMPLES], series.values[after][:_RAMP_SAMPLES]
    if times.size < 3:
        return deviation.time
    slope = float(np.polyfit(times - times[0], values, 1)[0])
    away = float(values[0]) - deviation.level.median
    if slope == 0 or away * slope <= 0:
        return deviation.time
    earliest = float(series.times[0])
    return max(deviation.time - away / slope, earliest)


def increases(counter: Series, least: float = 0.0) -> list[tuple[float, float]]:
    """(time, amount) of each sample of a raw counter that is above the one before.

    A counter that falls was reset (reboot, driver reload): nothing is said of that moment.
    """
    steps = np.diff(counter.values)
    where = np.flatnonzero(steps > least)
    return [(float(counter.times[i + 1]), float(steps[i])) for i in where]


def simultaneous(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Whether two (time, uncertainty) cannot be told apart."""
    return abs(one[0] - other[0]) <= max(one[1], other[1])


def first_of(moments: Sequence[tuple[float, float]]) -> list[int]:
    """Positions of all that may have been the first, the earliest by its time first."""
    if not moments:
        return []
    earliest = min(moments)
    order = sorted(range(len(moments)), key=lambda index: moments[index])
    return [index for index in order if simultaneous(earliest, moments[index])]
