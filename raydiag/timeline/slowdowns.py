"""When training got slower, by what it says itself: from where it left its level."""

from dataclasses import dataclass

import numpy as np

from raydiag.timeline.deviations import TO_SIGMA
from raydiag.timeline.known_values import last_true
from raydiag.timeline.masked_tables import MaskedTables
from raydiag.timeline.training_series import TGS
from raydiag.tsdb.series import Floats, Series

MIN_STEPS = 8
REGRESSION = 0.10  # of throughput
_BASELINE_STEPS = 30
_LOW_STEPS = 5  # in a row
_HOLD = 3  # usual steps at the end: it has recovered
_SMOOTH = 5  # steps
_LEFT_SIGMAS, _LEFT_SHARE = 3.0, 0.01  # below its level: it has left it


@dataclass(frozen=True)
class Slowdown:
    """When throughput was low, and by how much (%, negative)."""

    start: float  # it left its level on the way down
    end: float
    change: float
    level: float  # before
    worst: float  # median while it was low
    recovered: bool

    def overlaps(self, start: float, end: float) -> bool:
        """Whether it was slow at some time of a stretch."""
        return start <= self.end and end >= self.start


def steady_throughput(tables: MaskedTables) -> Series | None:
    """Outside of saves and warm-up; None with too few steps."""
    series = tables.training.throughput
    if series is None:
        return None
    keep = tables.context.judged(series.times, "", TGS)
    if np.count_nonzero(keep) < 2 * MIN_STEPS:
        return None
    return Series(series.labels, series.times[keep], series.values[keep])


def usual_level(values: Floats) -> float:
    """Of the first steps: what came before a fault."""
    early = values[: max(MIN_STEPS, min(_BASELINE_STEPS, values.size // 3))]
    return float(np.median(early))


def slowdown(tables: MaskedTables) -> Slowdown | None:
    """Throughput below its usual level; several phases are one, from the first to the last."""
    series = steady_throughput(tables)
    if series is None:
        return None
    times, values = series.times, series.values
    level = usual_level(values)
    low = values < (1 - REGRESSION) * level
    lasting = np.lib.stride_tricks.sliding_window_view(low, _LOW_STEPS).all(axis=1)
    if not lasting.any():
        return None
    last, worst = last_true(low), float(np.median(values[low]))
    return Slowdown(
        float(times[_left_level(values, int(np.argmax(lasting)), level)]),
        float(times[last]),
        100 * (worst / level - 1),
        level,
        worst,
        recovered=last < values.size - _HOLD,
    )


def _left_level(values: Floats, noticed: int, level: float) -> int:
    """The first of the steps that lead from the level down to where it was noticed."""
    before = values[:noticed]
    if before.size < MIN_STEPS:
        return noticed
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(before, _SMOOTH), axis=1)
    noise = TO_SIGMA * float(np.median(np.abs(before - np.median(before))))
    usual = smooth > level - max(_LEFT_SIGMAS * noise / 2, _LEFT_SHARE * level)
    return min(noticed, last_true(usual) + _SMOOTH) if usual.any() else noticed
