"""Is one run slower than another all the time, from some step on, or only for a while?

A gap that stays is real; a spike is something that happened once. Medians of blocks of steps tell
which: one slow step moves no median.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from raydiag.tsdb.series import Floats

NONE, PERSISTENT, SINCE, TRANSIENT = "none", "persistent", "since", "transient"
LEAST_PERCENT = 0.5  # less is no gap
_SPIKE_PERCENT = 2.0  # for a while
_MOST_BLOCKS, _LEAST_BLOCKS, _LEAST_IN_BLOCK = 24, 4, 5
_SURE = 3.0  # standard errors
_TO_SIGMA = 1.4826  # median absolute deviation of a normal distribution to its deviation
_MEDIAN_ERROR = 1.25  # of a median, to that of a mean
_NEARLY_ALL = 0.9
_LESS_STEADY = 2.0


@dataclass(frozen=True)
class Stat:
    """Steady values of one run."""

    mean: float
    median: float
    deviation: float  # standard deviation
    steps: int

    @classmethod
    def of(cls, values: Floats) -> Stat:
        return cls(
            float(values.mean()), float(np.median(values)), float(values.std()), int(values.size)
        )


@dataclass(frozen=True)
class Gap:
    """How far the second run is from the first, in percent of the first."""

    metric: str
    a: Stat
    b: Stat
    percent: float  # of the medians
    kind: str  # one of the constants above
    error_percent: float  # of `percent`
    since_step: Optional[int] = None  # first step of the block where it begins
    until_step: Optional[int] = None  # last step of the block where it ended; None: it did not
    # Furthest block of what passes; median of the blocks of what begins late.
    spike_percent: Optional[float] = None

    @property
    def stays(self) -> bool:
        return self.kind in (PERSISTENT, SINCE)

    @property
    def less_steady(self) -> Optional[str]:
        """ "a" or "b": whose steps vary much more."""
        low, high = sorted((self.a.deviation, self.b.deviation))
        if not low or high < _LESS_STEADY * low:
            return None
        return "a" if self.a.deviation > self.b.deviation else "b"


def gap(metric: str, a: tuple[Floats, Floats], b: tuple[Floats, Floats]) -> Optional[Gap]:
    """Between (step numbers, values) of two runs; None where one has too few of them."""
    if min(a[0].size, b[0].size) < 2 * _LEAST_IN_BLOCK:
        return None
    first, second = Stat.of(a[1]), Stat.of(b[1])
    if first.median == 0:
        return None
    overall = 100.0 * (second.median - first.median) / abs(first.median)
    sigma = 100.0 * max(_sigma(a[1]) / abs(first.median), _sigma(b[1]) / abs(first.median))
    error = _error(sigma, min(first.steps, second.steps))
    edges, changes, limit = _blocks(a, b, sigma, overall)
    off = np.abs(changes) >= limit
    kind, since, until, spike = NONE, None, None, None
    real = abs(overall) >= max(LEAST_PERCENT, _SURE * error)
    same = np.sign(changes) == np.sign(overall)
    if real and (off & same).mean() >= _NEARLY_ALL:
        kind = PERSISTENT
    elif off.any():
        kind, begin, end = _when(off, changes)
        if kind != NONE:
            since = int(edges[begin])
            until = int(edges[end + 1] - 1) if end + 1 < off.size else None
            part = changes[begin : end + 1]
            far = part[int(np.argmax(np.abs(part)))]
            spike = float(np.median(part) if kind == SINCE else far)
    elif real:
        kind = PERSISTENT
    mean = 100.0 * (second.mean - first.mean) / abs(first.mean) if first.mean else 0.0
    if kind == NONE and abs(mean) >= LEAST_PERCENT:
        kind, since, spike = TRANSIENT, *_single(a, b, first.median)
        until = since
    return Gap(metric, first, second, overall, kind, error, since, until, spike)


def _sigma(values: Floats) -> float:
    """From one step to the next, so that a level that changes is not taken for noise."""
    steps = np.diff(values)
    return float(_TO_SIGMA * np.median(np.abs(steps - np.median(steps))) / np.sqrt(2.0))


def _error(sigma: float, steps: int) -> float:
    return float(_MEDIAN_ERROR * sigma * np.sqrt(2.0 / max(1, steps)))


def _blocks(
    a: tuple[Floats, Floats], b: tuple[Floats, Floats], sigma: float, overall: float
) -> tuple[Floats, Floats, float]:
    """Edges of blocks of steps, the change in each, and what counts as one there.

    As many blocks as still show a gap of this size.
    """
    fewest = min(a[0].size, b[0].size)
    most = max(1, min(_MOST_BLOCKS, fewest // _LEAST_IN_BLOCK))
    low, high = min(a[0][0], b[0][0]), max(a[0][-1], b[0][-1]) + 1
    for count in range(most, 0, -1):
        limit = max(LEAST_PERCENT, _SURE * _error(sigma, fewest // count))
        if limit <= max(LEAST_PERCENT, 0.6 * abs(overall)) or count <= _LEAST_BLOCKS:
            break
    limit = max(limit, 0.5 * abs(overall)) if abs(overall) >= LEAST_PERCENT else limit
    edges = np.floor(np.linspace(low, high, count + 1))
    changes, kept = [], [edges[0]]
    for start, end in zip(edges[:-1], edges[1:], strict=True):
        mine, theirs = _within(a, start, end), _within(b, start, end)
        if not mine.size or not theirs.size:
            continue  # joins the next block
        level = float(np.median(mine))
        changes.append(100.0 * (float(np.median(theirs)) - level) / abs(level) if level else 0.0)
        kept.append(end)
    return np.array(kept), np.array(changes), limit


def _single(a: tuple[Floats, Floats], b: tuple[Floats, Floats], level: float) -> tuple[int, float]:
    """The one step that is furthest from usual, and by how much (%)."""
    far = [(np.abs(run[1] - np.median(run[1])), run) for run in (a, b)]
    off, run = max(far, key=lambda one: float(one[0].max()))
    at = int(np.argmax(off))
    return int(run[0][at]), float(100.0 * (run[1][at] - np.median(run[1])) / abs(level))


def _within(run: tuple[Floats, Floats], start: float, end: float) -> Floats:
    return run[1][(run[0] >= start) & (run[0] < end)]


def _when(off: NDArray[np.bool_], changes: Floats) -> tuple[str, int, int]:
    """What kind, and the first and last block of it: the end counts, then the furthest block."""
    where = np.flatnonzero(off)
    trailing = off.size - 1
    while trailing > 0 and off[trailing] and off[trailing - 1]:
        trailing -= 1
    lasting = off.size - trailing
    if off[-1] and trailing > 0 and lasting >= max(2, off.size // 8):
        return SINCE, trailing, off.size - 1
    furthest = where[int(np.argmax(np.abs(changes[where])))]
    if abs(changes[furthest]) < _SPIKE_PERCENT:
        return NONE, 0, 0
    begin = end = int(furthest)
    while begin > 0 and off[begin - 1]:
        begin -= 1
    while end + 1 < off.size and off[end + 1]:
        end += 1
    return TRANSIENT, begin, end
