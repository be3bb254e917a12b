"""Is one run slower than another all the time, from some step on, or only for a while?

A gap that stays is real; a spike is something that happened once. Medians of blocks of steps tell
which: one slow step moves no median.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from raydiag.tsdb.series import Floats

NONE, PERSISTENT, SINCE, TRANSIENT = "none", "persistent", "since", "transient"
LEAST_PERCENT = 0.5  # less is no gap
_SPIKE_PERCENT = 2.0  # for a while
_MOST_BLOCKS, _LEAST_BLOCKS, _LEAST_IN_BLOCK = 24, 4, 5
_SURE, _SURER = 4.0, 6.0  # standard errors; more of what was chosen among many
_TO_SIGMA = 1.4826  # median absolute deviation of a normal distribution to its deviation
_MEDIAN_ERROR = 1.25  # of a median, to that of a mean
_MOSTLY = 0.8  # of the blocks
_BEFORE = 0.4  # of the gap, that may be there before it begins
_SPIKE_SIGMAS = 8.0  # of a single step
_TELLING = 6  # differences of blocks, to tell their noise; with fewer, it is taken to be
_ALIKE = 2.0  # so many times what single steps let expect
_LESS_STEADY = 2.0


@dataclass(frozen=True)
class SpeedStatistic:
    """Steady values of one run."""

    mean: float
    median: float
    deviation: float  # standard deviation
    steps: int

    @classmethod
    def of(cls, values: Floats) -> SpeedStatistic:
        """Of the values of one side."""
        mean, median = float(values.mean()), float(np.median(values))
        return cls(mean, median, float(values.std()), int(values.size))


@dataclass(frozen=True)
class SpeedGap:
    """How far the second run is from the first, in percent of the first."""

    metric: str
    a: SpeedStatistic
    b: SpeedStatistic
    percent: float  # of the medians
    kind: str  # one of the constants above
    error_percent: float  # of `percent`
    since_step: int | None = None  # first step of the block where it begins
    until_step: int | None = None  # last step of the block where it ended; None: it did not
    # Furthest block of what passes; median of the blocks of what begins late.
    spike_percent: float | None = None

    @property
    def stays(self) -> bool:
        """Whether the difference is there to the end."""
        return self.kind in (PERSISTENT, SINCE)

    @property
    def less_steady(self) -> str | None:
        """ "a" or "b": whose steps vary much more."""
        low, high = sorted((self.a.deviation, self.b.deviation))
        if not low or high < _LESS_STEADY * low:
            return None
        return "a" if self.a.deviation > self.b.deviation else "b"


def gap(metric: str, a: tuple[Floats, Floats], b: tuple[Floats, Floats]) -> SpeedGap | None:
    """Between (step numbers, values) of two runs; None where one has too few of them."""
    if min(a[0].size, b[0].size) < 2 * _LEAST_IN_BLOCK:
        return None
    first, second = SpeedStatistic.of(a[1]), SpeedStatistic.of(b[1])
    if first.median == 0:
        return None
    overall = 100.0 * (second.median - first.median) / abs(first.median)
    blocks = _blocks(a, b, 100.0 * max(_sigma(a[1]), _sigma(b[1])) / abs(first.median), overall)
    changes, noise = blocks.changes, blocks.noise
    error = _MEDIAN_ERROR * noise / np.sqrt(changes.size)
    real = abs(overall) >= max(LEAST_PERCENT, _SURE * error)
    is_steady = (np.sign(changes) == np.sign(overall)).mean() >= _MOSTLY
    told = partial(SpeedGap, metric, first, second, overall, error_percent=float(error))
    begin = _begin(blocks)
    if begin is not None:
        later = float(np.median(changes[begin:]))
        return told(SINCE, since_step=int(blocks.edges[begin]), spike_percent=later)
    if real and is_steady:
        return told(PERSISTENT)
    passing = _passing(blocks)
    if passing is not None:
        part = changes[passing[0] : passing[1] + 1]
        furthest = float(part[int(np.argmax(np.abs(part)))])
        start, end = int(blocks.edges[passing[0]]), int(blocks.edges[passing[1] + 1]) - 1
        return told(TRANSIENT, since_step=start, until_step=end, spike_percent=furthest)
    spike = _single(a, b, first)
    if spike is not None and abs(second.mean - first.mean) > LEAST_PERCENT / 100 * first.mean:
        step, size = spike
        return told(TRANSIENT, since_step=step, until_step=step, spike_percent=size)
    return told(NONE)


@dataclass(frozen=True, eq=False)
class _Blocks:
    edges: Floats  # first step of each block, and one beyond the last
    changes: Floats  # of the medians, percent
    noise: float  # of one block's change, percent


def _sigma(values: Floats) -> float:
    """From one step to the next, so that a level that changes is not taken for noise."""
    steps = np.diff(values)
    return float(_TO_SIGMA * np.median(np.abs(steps - np.median(steps))) / np.sqrt(2.0))


def _blocks(
    a: tuple[Floats, Floats], b: tuple[Floats, Floats], sigma: float, overall: float
) -> _Blocks:
    """As many blocks as still show a gap of this size."""
    fewest = min(a[0].size, b[0].size)
    low, high = min(a[0][0], b[0][0]), max(a[0][-1], b[0][-1]) + 1
    for count in range(max(1, min(_MOST_BLOCKS, fewest // _LEAST_IN_BLOCK)), 0, -1):
        expected = _MEDIAN_ERROR * sigma * np.sqrt(2.0 * count / fewest)
        edges = np.floor(np.linspace(low, high, count + 1))
        per_block = _changes(a, b, edges, float(expected))
        # Chosen by what is expected: by what is seen, the quietest choice would win by chance.
        if count <= _LEAST_BLOCKS or 2 * expected <= max(LEAST_PERCENT, abs(overall)):
            break
    return per_block


def _changes(
    a: tuple[Floats, Floats], b: tuple[Floats, Floats], edges: Floats, expected: float
) -> _Blocks:
    changes, kept_edges = [], [edges[0]]
    for start, end in zip(edges[:-1], edges[1:], strict=True):
        mine, theirs = _within(a, start, end), _within(b, start, end)
        if not mine.size or not theirs.size:
            continue  # joins the next block
        level = float(np.median(mine))
        changes.append(100.0 * (float(np.median(theirs)) - level) / abs(level) if level else 0.0)
        kept_edges.append(end)
    changed = np.array(changes)
    # Steps that follow each other are alike, so blocks vary more than their steps let expect.
    apart = np.abs(np.diff(changed))
    noise = _TO_SIGMA * float(np.median(apart)) / np.sqrt(2.0) if apart.size > 1 else 0.0
    if apart.size < _TELLING:
        noise = max(noise, _ALIKE * expected, float(apart.max(initial=0.0)) / 2.0)
    return _Blocks(np.array(kept_edges), changed, max(expected, noise, 1e-9))


def _within(run: tuple[Floats, Floats], start: float, end: float) -> Floats:
    return run[1][(run[0] >= start) & (run[0] < end)]


def _begin(blocks: _Blocks) -> int | None:
    """The first block of a gap that is not there before and stays to the end."""
    changes, count = blocks.changes, blocks.changes.size
    cuts = range(1, count - max(2, count // 8) + 1)
    best = min(cuts, key=lambda cut: _residue(changes, cut), default=None)
    if best is None:
        return None
    before, after = float(np.median(changes[:best])), float(np.median(changes[best:]))
    error = _MEDIAN_ERROR * blocks.noise * np.sqrt(1.0 / best + 1.0 / (count - best))
    far = abs(after - before) >= max(2 * LEAST_PERCENT, _SURER * error)
    stays = (changes[best:] * np.sign(after) >= 0.5 * abs(after)).all()
    if far and stays and abs(before) <= _BEFORE * abs(after):
        return best
    return None


def _residue(changes: Floats, cut: int) -> float:
    parts = (changes[:cut], changes[cut:])
    return sum(float(np.abs(part - np.median(part)).sum()) for part in parts)


def _passing(blocks: _Blocks) -> tuple[int, int] | None:
    """First and last block of the furthest stretch that is well away from no gap at all."""
    off: NDArray[np.bool_] = np.abs(blocks.changes) >= max(_SPIKE_PERCENT, _SURER * blocks.noise)
    if not off.any():
        return None
    begin = end = int(np.argmax(np.abs(blocks.changes) * off))
    while begin > 0 and off[begin - 1]:
        begin -= 1
    while end + 1 < off.size and off[end + 1]:
        end += 1
    return begin, end


def _single(
    a: tuple[Floats, Floats], b: tuple[Floats, Floats], first: SpeedStatistic
) -> tuple[int, float] | None:
    """The one step that is furthest from usual, and by how much (%); None where none stands out."""
    spike = None
    for numbers, values in (a, b):
        away = values - np.median(values)
        at = int(np.argmax(np.abs(away)))
        percent = 100.0 * float(away[at]) / abs(first.median)
        sure = abs(away[at]) >= _SPIKE_SIGMAS * _sigma(values)
        if sure and (spike is None or abs(percent) > abs(spike[1])):
            spike = int(numbers[at]), percent
    return spike
