"""Has the loss become nan or infinite, or jumped, and did it stay so."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from raydiag.joblog.facts import LoggedSteps

_FINITE = ord("f")
_TEXTS = {ord("a"): "loss: nan", ord("i"): "loss: inf", ord("g"): "gradient norm: nan"}
_BLOCK, _FEWEST = 20, 5  # losses whose median is one level; the fewer in a short log,
_BLOCKS = 8  # so that it has so many levels
_LEARNT = 1.2  # times the lowest level, the first one: a loss that only climbs is another quantity
_JUMP, _LEAST, _FAR = 2.0, 0.5, 1.5  # times the lowest level, and by so much; or by that much:
# no other data does that, as a loss is a logarithm


@dataclass(frozen=True)
class Divergence:
    """Losses that are not finite, in the current run."""

    step: int  # the first of the last unbroken row of them
    line: int
    steps: int  # so many lines show one, in all of the run
    lasting: bool  # up to the newest line; else it recovered, as loss scaling does
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
    """A loss that had fallen, left its lowest level for a far higher one, and stays there."""
    if steps is None or not steps.runs or not steps.regular:
        return None
    series, first_line = steps.series, steps.runs[-1].first_line
    rows = [
        (loss, int(step), int(line))
        for loss, step, line in zip(series.loss, series.step, series.line, strict=True)
        if line >= first_line and math.isfinite(loss)
    ]
    losses = [row[0] for row in rows]
    block = max(_FEWEST, min(_BLOCK, len(losses) // _BLOCKS))
    starts = range(len(losses) % block, len(losses), block)
    levels = [median(losses[start : start + block]) for start in starts]
    if not levels:
        return None
    lowest, newest = min(levels), levels[-1]
    middle = (lowest + newest) / 2
    has_learnt = levels[0] > _LEARNT * lowest
    is_far = newest - lowest >= max(_LEAST, min((_JUMP - 1.0) * lowest, _FAR))
    if not has_learnt or not is_far or min(losses[-block:]) <= middle:
        return None
    last_low = max(place for place, loss in enumerate(losses) if loss <= middle)
    _, step, line = rows[last_low + 1]
    text = f"loss: {newest:.3g}, {lowest:.3g} at its lowest,"
    return Divergence(step, line, len(losses) - last_low - 1, True, text)
