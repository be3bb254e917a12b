"""Does training slow down: early throughput against that of the newest steps, and in which way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median
from typing import Optional

from raydiag.joblog.step_facts import LoggedSteps, StepSeries
from raydiag.triage.verdict import Throughput

WARM_UP_STEPS = 5  # compilation and first allocations, from the first step of the run
_WINDOW = 10  # steps
LOSS_PERCENT = 10.0  # slower than that is a degradation
_BLOCKS = 24  # medians that the shape of the way down is read from
_JUMP = 0.25  # of the whole drop, from one block to the next
_SPREAD = 1.4826  # median absolute deviation to standard deviation, for a normal distribution

# What each pattern points at.
POINTS_AT = {
    "constant": "one drop to a lower level that stays: a link that lost width or an RDMA path",
    "phased": "drops one after another: several nodes in turn",
    "gradual": "steadily slower: something leaks or fills up",
    "dip": "a dip that has passed: a disturbance of hardware or storage",
}


def throughput(steps: LoggedSteps, period: Optional[int]) -> Optional[Throughput]:
    """Early and late throughput of the current run; None with too few steps to tell.

    Steps that wait for a save are left out: periodic spikes are expected, and mean nothing.
    """
    unit, points = _points(steps, period)
    if len(points) < 2 * _WINDOW:
        return None
    early, late = points[:_WINDOW], points[-_WINDOW:]
    before, after = fmean(v for _, v in early), fmean(v for _, v in late)
    if before <= 0:
        return None
    change = 100.0 * (after - before) / before
    values = [value for _, value in points]
    lasts = _stays_low([v for _, v in early], [v for _, v in late])
    degraded = change < -LOSS_PERCENT and lasts
    pattern, since = _pattern(points, before) if degraded else _dip(values, points, before)
    return Throughput(
        unit=unit,
        early=before,
        early_steps=(int(early[0][0]), int(early[-1][0])),
        late=after,
        late_steps=(int(late[0][0]), int(late[-1][0])),
        change_percent=change,
        pattern=pattern,
        since_step=since,
        degraded=degraded,
    )


def _points(steps: LoggedSteps, period: Optional[int]) -> tuple[str, list[tuple[float, float]]]:
    """Unit, and (step, throughput) after the warm-up, each step once."""
    series, run = steps.series, steps.runs[-1]
    unit, values = _measure(series)
    found: dict[float, float] = {}
    for step, value, line in zip(series.step, values, series.line, strict=True):
        waits = period and step % period in (0, 1)
        if line < run.first_line or step < run.first_step + WARM_UP_STEPS or waits:
            continue
        if math.isfinite(value) and value > 0:
            found.setdefault(step, value)
    return unit, sorted(found.items())


def _measure(series: StepSeries) -> tuple[str, list[float]]:
    """The best that the lines print: tokens, TFLOP/s, else the inverse of the step time."""
    tokens, tflops = list(series.tokens_per_s), list(series.tflops)
    if any(map(math.isfinite, tokens)):
        return series.throughput_unit or "tokens/s", tokens
    if any(map(math.isfinite, tflops)):
        return "TFLOP/s/device", tflops
    return "steps/s", [1.0 / one if one > 0 else math.nan for one in series.seconds]


def _stays_low(early: Sequence[float], late: Sequence[float]) -> bool:
    """Also by the medians, which one slow step does not move, and by more than the usual noise."""
    middle = median(early)
    noise = _SPREAD * median(abs(value - middle) for value in early)
    drop = middle - median(late)
    return drop > LOSS_PERCENT / 100.0 * middle and drop > 2.0 * noise


def _pattern(points: Sequence[tuple[float, float]], before: float) -> tuple[str, Optional[int]]:
    """How it went down, and from which step on."""
    blocks = _blocks(points)
    levels = [level for _, level in blocks]
    drop = before - levels[-1]
    jumps = [index for index in range(1, len(levels)) if _falls(levels, index) > _JUMP * drop]
    low = (1 - LOSS_PERCENT / 200.0) * before
    since = next((int(step) for step, level in blocks if level < low), None)
    # A jump inside a block shows as two falls in a row: it is one.
    apart = [one for one, other in zip(jumps, [-9, *jumps], strict=False) if one - other > 1]
    fallen = sum(_falls(levels, index) for index in jumps)
    if not apart or fallen < 0.5 * drop:
        return "gradual", since
    return ("constant" if len(apart) == 1 else "phased"), since


def _falls(levels: Sequence[float], index: int) -> float:
    return levels[index - 1] - levels[index]


def _dip(
    values: Sequence[float], points: Sequence[tuple[float, float]], before: float
) -> tuple[str, Optional[int]]:
    """A level more than 10 % lower that has passed again; single steps are no level."""
    low = (1 - LOSS_PERCENT / 100.0) * before
    for index in range(len(values) - 4):
        if max(values[index : index + 5]) < low:
            return "dip", int(points[index][0])
    return "steady", None


def _blocks(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """First step and median of equal parts, at least five steps each."""
    size = max(5, len(points) // _BLOCKS)
    parts = [points[start : start + size] for start in range(0, len(points) - size + 1, size)]
    return [(part[0][0], median(value for _, value in part)) for part in parts]
