"""Has the loss become nan or infinite, or jumped, and did it stay so."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from raydiag.joblog.facts import LoggedSteps

_FINITE = ord("f")
_TEXTS = {ord("a"): "loss: nan", ord("i"): "loss: inf", ord("g"): "gradient norm: nan"}
_BLOCK, _FEWEST = 20, 5  # losses whose median is one level; the fewer in a short log,
_BLOCKS = 8  # so that it has so many levels
_LEARNT = 1.2  # times the lowest level, the first losses: one that only climbs is another quantity
_JUMP, _LEAST, _FAR = 2.0, 0.5, 1.5  # times the lowest level, and by so much; or by that much:
# no other data does that, as a loss is a logarithm
_NOISE = 6.5  # times the median change from loss to loss: five standard errors of a median
_BACK = 0.25  # of the way up, and less than _LEAST: so near the lowest level it has come back


@dataclass(frozen=True)
class Divergence:
    """Losses that are not finite, in the current run."""

    step: int  # the first of the last unbroken row of them
    line: int
    steps: int  # so many lines show one, in all of the run
    lasting: bool  # up to the newest line; else it recovered, as loss scaling does, or did in part
    text: str  # what is nan or inf


def divergence(steps: LoggedSteps | None) -> Divergence | None:
    """The last unbroken row of nan or inf losses; None when every loss was finite."""
    if steps is None or not steps.runs or not steps.regular:
        return None
    start: tuple[int, int, int] | None = None  # of the last unbroken row
    count = length = 0  # of all such losses, of those in the row that is read
    for state, step, line in _losses(steps):
        length = 0 if state == _FINITE else length + 1
        count += length > 0
        if length == 1:
            start = state, step, line
    if start is None:
        return None
    state, step, line = start
    return Divergence(step, line, count, length > 1, _TEXTS[state])


def _losses(steps: LoggedSteps) -> Iterator[tuple[int, int, int]]:
    """(state, step, line) of each printed loss of the current run."""
    series, first_line = steps.series, steps.runs[-1].first_line
    for state, step, line in zip(series.loss_state, series.step, series.line, strict=True):
        if line >= first_line and (state == _FINITE or state in _TEXTS):
            yield state, int(step), int(line)


def jump(steps: LoggedSteps | None) -> Divergence | None:
    """A loss that had fallen, left its lowest level for a far higher one, and has not come back.

    It lasts where it stays there; else it came back in part.
    """
    rows = list(_finite_rows(steps)) if steps is not None and steps.runs and steps.regular else []
    losses = [row[0] for row in rows]
    block = max(_FEWEST, min(_BLOCK, len(losses) // _BLOCKS))
    starts = range(len(losses) % block, len(losses), block)
    levels = [median(losses[start : start + block]) for start in starts]
    if not levels:
        return None
    changes = [abs(after - before) for before, after in itertools.pairwise(losses)]
    noise = _NOISE * median(changes) / math.sqrt(block)
    course = _Course(levels, sorted(losses[-block:]), noise)
    if median(losses[:_FEWEST]) <= _LEARNT * course.lowest or not course.is_apart:
        return None
    peak_end = starts[course.peak] + block
    last_low = max(place for place in range(peak_end) if losses[place] <= course.middle)
    _, step, line = rows[last_low + 1]
    return Divergence(step, line, len(losses) - last_low - 1, course.stays, course.text)


def _finite_rows(steps: LoggedSteps) -> Iterator[tuple[float, int, int]]:
    """(loss, step, line) of the current run."""
    series, first_line = steps.series, steps.runs[-1].first_line
    for loss, step, line in zip(series.loss, series.step, series.line, strict=True):
        if line >= first_line and math.isfinite(loss):
            yield loss, int(step), int(line)


@dataclass(frozen=True)
class _Course:
    """Where a loss was at its lowest, where it went from there, and where it is now."""

    levels: Sequence[float]
    last: Sequence[float]  # losses of the newest level, in ascending order
    noise: float  # so far apart are levels by chance

    @property
    def lowest(self) -> float:
        return min(self.levels)

    @property
    def peak(self) -> int:
        """Which level is the highest one since the lowest."""
        return max(
            range(self.levels.index(self.lowest), len(self.levels)), key=self.levels.__getitem__
        )

    @property
    def highest(self) -> float:
        return self.levels[self.peak]

    @property
    def middle(self) -> float:
        return (self.lowest + self.levels[-1]) / 2

    @property
    def is_apart(self) -> bool:
        """Whether it rose far and is not back; few of the newest losses are noise.

        A loss below zero is no cross entropy, and what is far for it is not known.
        """
        kept = self.levels[-1] - self.lowest
        is_back = kept < max(_LEAST, _BACK * (self.highest - self.lowest), self.noise)
        is_above = not is_back and self._lower_quarter > self.middle
        return self.lowest >= 0 and self._is_far(self.highest) and is_above

    @property
    def stays(self) -> bool:
        return self._is_far(self.levels[-1]) and self.last[0] > self.middle

    @property
    def text(self) -> str:
        text = f"loss: {self.levels[-1]:.3g}, {self.lowest:.3g} at its lowest,"
        return text if self.stays else f"{text} {self.highest:.3g} at its highest since,"

    @property
    def _lower_quarter(self) -> float:
        return self.last[len(self.last) // 4]

    def _is_far(self, level: float) -> bool:
        return level - self.lowest >= max(_LEAST, min((_JUMP - 1.0) * self.lowest, _FAR))
