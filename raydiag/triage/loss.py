"""Has the loss become nan or infinite, and did it stay so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional

from raydiag.joblog.facts import LoggedSteps

_FINITE = ord("f")
_TEXTS = {ord("a"): "nan", ord("i"): "inf"}


@dataclass(frozen=True)
class Divergence:
    """Losses that are not finite, in the current run."""

    step: int  # the first of the last unbroken row of them
    line: int
    steps: int  # so many lines show one, in all of the run
    lasting: bool  # up to the newest line; else it recovered, as loss scaling does
    text: str  # nan or inf


def divergence(steps: Optional[LoggedSteps]) -> Optional[Divergence]:
    """The last unbroken row of nan or inf losses; None when every loss was finite."""
    if steps is None or not steps.runs or not steps.regular:
        return None
    start: Optional[tuple[int, int, int]] = None  # of the last unbroken row
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
