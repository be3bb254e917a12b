"""Has the loss become nan or infinite, and did it stay so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from raydiag.joblog.step_facts import LoggedSteps

_FINITE, _NAN, _INFINITE = ord("f"), ord("a"), ord("i")


@dataclass(frozen=True)
class Divergence:
    """Losses that are no numbers, in the current run."""

    step: int  # the first of the last unbroken row of them
    line: int
    steps: int  # so many lines show one, in all of the run
    lasting: bool  # up to the newest line; else it recovered, as loss scaling does
    text: str  # nan or inf


def divergence(steps: Optional[LoggedSteps]) -> Optional[Divergence]:
    """The last unbroken row of nan or inf losses; None when every loss was a number."""
    if steps is None or not steps.runs or not steps.regular:
        return None
    series, first_line = steps.series, steps.runs[-1].first_line
    rows = [
        (state, int(step), int(line))
        for state, step, line in zip(series.loss_state, series.step, series.line, strict=True)
        if line >= first_line and state in (_FINITE, _NAN, _INFINITE)
    ]
    bad = [index for index, (state, _, _) in enumerate(rows) if state != _FINITE]
    if not bad:
        return None
    start = bad[-1]
    while start > 0 and rows[start - 1][0] != _FINITE:
        start -= 1
    state, step, line = rows[start]
    lasting = bad[-1] == len(rows) - 1 and len(rows) - start > 1
    return Divergence(step, line, len(bad), lasting, "nan" if state == _NAN else "inf")
