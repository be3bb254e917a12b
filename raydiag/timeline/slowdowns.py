"""When training got slower, by what it says itself: from where it left its level."""

from dataclasses import dataclass, replace

import numpy as np

from raydiag.model import Window
from raydiag.timeline.answers import ResultTable
from raydiag.timeline.deviations import FACTOR, TO_SIGMA
from raydiag.timeline.known_values import last_true
from raydiag.timeline.masked_tables import MaskedTables
from raydiag.timeline.training_series import TGS
from raydiag.tsdb.series import Floats, Series

MIN_STEPS = 8
REGRESSION = 0.10  # of throughput
_BASELINE_STEPS = 30
_LOW_STEPS = 5  # in a row
_FEW_LOW_STEPS, _AGAIN = 3, 3  # or fewer, but so often
_SHORTEST_S = 30.0  # what passes sooner, or began later, is no slow-down yet
_HOLD = 3  # usual steps at the end: it has recovered
_SMOOTH = 5  # steps
_LEFT_SIGMAS, _LEFT_SHARE = 3.0, 0.01  # below its level: it has left it
CLOCK_FELL = 0.05  # of the lowest clock of a host, which a slow-down goes with
_FEW = 3  # one of so many hosts at most is odd
_KEPT = 0.05  # of its level: so much is no change
_MIN_HOSTS = 3  # to tell one from the others


@dataclass(frozen=True)
class Slowdown:
    """When throughput was low, and by how much (%, negative)."""

    start: float  # it left its level on the way down
    end: float
    change: float
    level: float  # before
    worst: float  # median while it was low
    recovered: bool
    slow_steps: Floats  # when those ended that were slow, ascending
    all_steps: Floats

    def overlaps(self, start: float, end: float) -> bool:
        """Whether it was slow at some time of a stretch."""
        return start <= self.end and end >= self.start


def before_and_slow(
    table: ResultTable, slow: Slowdown
) -> tuple[dict[str, float], dict[str, float]]:
    """Medians of each host before training was slow, and while it was."""
    before = table.medians(Window(float(table.times[0]), slow.start - table.step_s))
    nearest = np.searchsorted(slow.all_steps, table.times).clip(0, slow.all_steps.size - 1)
    is_slow = np.isin(slow.all_steps[nearest], slow.slow_steps)
    values = np.where(is_slow[None, :], table.values, np.nan)  # it may come and go
    return before, replace(table, values=values).medians(Window(slow.start, slow.end))


@dataclass(frozen=True)
class OddChanges:
    """Hosts whose level fell more than that of the others when training got slower."""

    ratios: dict[str, float]  # what it is while slow, as a share of before; of the odd hosts
    usual: float  # the same share of most hosts
    before: dict[str, float]  # the level of every host
    kept: dict[str, float]  # the share of the few hosts that kept their level, where most did not

    @property
    def halfway_down(self) -> dict[str, float]:
        """Of the odd hosts: between before and slow."""
        return {host: self.before[host] * (1 + ratio) / 2 for host, ratio in self.ratios.items()}


def odd_changes(table: ResultTable, slow: Slowdown, least: float) -> OddChanges | None:
    """Falls by `least` of the usual change, and beyond chance; None where there is no telling."""
    if not len(table) or not table.times.size:
        return None
    before, levels = before_and_slow(table, slow)
    ratios = {host: levels[host] / before[host] for host in levels if before.get(host)}
    if len(ratios) < _MIN_HOSTS:
        return None
    shares = np.array(list(ratios.values()))
    usual = float(np.median(shares))
    chance = FACTOR * TO_SIGMA * float(np.median(np.abs(shares - usual)))
    limit = max(least * usual, chance)
    odd = {host: ratio for host, ratio in ratios.items() if usual - ratio > limit}
    kept = {host: ratio for host, ratio in ratios.items() if _is_kept(ratio, usual, limit)}
    few = len(ratios) / _FEW
    return OddChanges(
        odd if len(odd) <= few else {}, usual, before, kept if len(kept) <= few else {}
    )


def _is_kept(ratio: float, usual: float, limit: float) -> bool:
    return ratio - usual > limit and abs(ratio - 1.0) <= _KEPT


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
    low[: int(np.argmin(low))] = False  # a start that was slow is no fall from anything
    lasting = np.lib.stride_tricks.sliding_window_view(low, _LOW_STEPS).all(axis=1)
    if not lasting.any():
        lasting = np.lib.stride_tricks.sliding_window_view(low, _FEW_LOW_STEPS).all(axis=1)
        if np.count_nonzero(np.diff(lasting.astype(np.int8)) == 1) < _AGAIN:
            return None
    last, worst = last_true(low), float(np.median(values[low]))
    start, end = float(times[_left_level(values, int(np.argmax(lasting)), level)]), times[last]
    if end - start < _SHORTEST_S:
        return None
    return Slowdown(
        start,
        float(end),
        100 * (worst / level - 1),
        level,
        worst,
        last < values.size - _HOLD,
        times[low],
        times,
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
