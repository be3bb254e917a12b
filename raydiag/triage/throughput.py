"""Does training slow down: early throughput against that of the newest steps, and in which way."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple

from raydiag.joblog.facts import LoggedSteps, StepSeries
from raydiag.triage.tables import TABLES
from raydiag.triage.verdict import Throughput

WARM_UP_STEPS = 5  # compilation and first allocations, from the first step of the run
_WINDOW = 10  # steps
LOSS_PERCENT = 10.0  # slower than that is a degradation
_SHORTEST_S = 30.0  # what passes sooner, or began later, is no level yet
_BLOCKS = 24  # medians that the shape of the decline is read from
_BLOCK_STEPS = 5  # at least
_JUMP = 0.25  # of the whole drop, from one block to the next
_FEW, _FEW_BEFORE, _FEW_AFTER = 40, 3, 5  # speeds of a short log, of which each must show a fall
_SPREAD = 1.4826  # median absolute deviation to standard deviation, for a normal distribution

POINTS_AT: Mapping[str, str] = TABLES["throughput_points_at"]


class _Speed(NamedTuple):
    """Throughput of one step, or the median of a block that begins with it."""

    step: float
    value: float


def throughput(steps: LoggedSteps, period: int | None) -> Throughput | None:
    """Early and late throughput of the current run; None with too few steps to tell.

    Steps that wait for a save are left out: periodic spikes are expected, and mean nothing.
    """
    unit, values = _measure(steps.series)
    speeds = _speeds(steps, values, period)
    early, late = _early_and_late(speeds)
    if not early:
        return None
    before, after = fmean(_values(early)), fmean(_values(late))
    if before <= 0:
        return None
    change = 100.0 * (after - before) / before
    degraded = change < -LOSS_PERCENT and _stays_low(_values(early), _values(late))
    pattern, since = _decline(speeds, before) if degraded else _dip(speeds, before)
    if len(early) + len(late) == len(speeds) and degraded:
        pattern, since = "constant", int(late[0].step)
    if degraded and since is not None and _seconds_since(steps, since) < _SHORTEST_S:
        degraded, pattern, since = False, "steady", None
    return Throughput(
        unit=unit,
        early=before,
        early_steps=(int(early[0].step), int(early[-1].step)),
        late=after,
        late_steps=(int(late[0].step), int(late[-1].step)),
        change_percent=change,
        pattern=pattern,
        since_step=since,
        degraded=degraded,
    )


def _early_and_late(speeds: Sequence[_Speed]) -> tuple[Sequence[_Speed], Sequence[_Speed]]:
    """The first and the newest ones; of few all, where they fall clearly. Empty: too few."""
    if len(speeds) < _FEW:
        for first_late in range(_FEW_BEFORE, len(speeds) - _FEW_AFTER + 1):
            early, late = speeds[:first_late], speeds[first_late:]
            if max(_values(late)) < (1 - LOSS_PERCENT / 100.0) * min(_values(early)):
                return early, late
    if len(speeds) < 2 * _WINDOW:
        return (), ()
    return speeds[:_WINDOW], speeds[-_WINDOW:]


def _values(speeds: Sequence[_Speed]) -> list[float]:
    return [speed.value for speed in speeds]


def _speeds(steps: LoggedSteps, values: Sequence[float], period: int | None) -> list[_Speed]:
    """By step, after the warm-up, each step once."""
    run = steps.runs[-1]
    value_of_step: dict[float, float] = {}
    for step, value, line in zip(steps.series.step, values, steps.series.line, strict=True):
        waits_for_save = period and step % period in (0, 1)
        warms_up = line < run.first_line or step < run.first_step + WARM_UP_STEPS
        if not waits_for_save and not warms_up and math.isfinite(value) and value > 0:
            value_of_step.setdefault(step, value)
    return [_Speed(step, value) for step, value in sorted(value_of_step.items())]


def _measure(series: StepSeries) -> tuple[str, Sequence[float]]:
    """Unit and values, the best that the lines print: tokens, TFLOP/s, else the step rate."""
    if any(map(math.isfinite, series.tokens_per_s)):
        return series.throughput_unit or "tokens/s", series.tokens_per_s
    if any(map(math.isfinite, series.tflops)):
        return "TFLOP/s/device", series.tflops
    return "steps/s", list(map(_rate, series.seconds))


def _rate(seconds: float) -> float:
    return 1.0 / seconds if seconds > 0 else math.nan


def _stays_low(early: Sequence[float], late: Sequence[float]) -> bool:
    """Also by the medians, which one slow step does not move, and by more than the usual noise."""
    middle = median(early)
    noise = _SPREAD * median(abs(value - middle) for value in early)
    drop = middle - median(late)
    return drop > LOSS_PERCENT / 100.0 * middle and drop > 2.0 * noise


def _decline(speeds: Sequence[_Speed], before: float) -> tuple[str, int | None]:
    """Pattern of a lasting decline, and the step from which on it is slower."""
    blocks = _blocks(speeds)
    low = (1 - LOSS_PERCENT / 200.0) * before
    since = next((int(block.step) for block in blocks if block.value < low), None)
    drop = before - blocks[-1].value
    falls = list(_falls(blocks, _JUMP * drop))
    if sum(fall for _, fall in falls) < 0.5 * drop or not falls:
        return "gradual", since
    # A jump inside a block shows as two falls in a row: it is one.
    follow_ups = sum(index - previous == 1 for (previous, _), (index, _) in pairwise(falls))
    return ("constant" if len(falls) - follow_ups == 1 else "phased"), since


def _seconds_since(steps: LoggedSteps, since: int) -> float:
    """What the steps from that one on took; infinite where that is not known of all.

    Steps without a line of their own (Ray leaves out repeated ones) took as long as the next.
    """
    total, previous = 0.0, since - 1.0
    for step, seconds in zip(steps.series.step, steps.series.seconds, strict=True):
        if step >= since:
            total += seconds * max(1.0, step - previous)
            previous = step
    return total if math.isfinite(total) else math.inf


def _falls(blocks: Sequence[_Speed], least: float) -> Iterator[tuple[int, float]]:
    """(index, fall) of each block that is so much slower than the one before it."""
    for index, (previous, block) in enumerate(pairwise(blocks), 1):
        if previous.value - block.value > least:
            yield index, previous.value - block.value


def _dip(speeds: Sequence[_Speed], before: float) -> tuple[str, int | None]:
    """A level more than 10 % lower that has passed again; single steps are no level."""
    low = (1 - LOSS_PERCENT / 100.0) * before
    values = _values(speeds)
    for index in range(len(values) - _BLOCK_STEPS + 1):
        if max(values[index : index + _BLOCK_STEPS]) < low:
            return "dip", int(speeds[index].step)
    return "steady", None


def _blocks(speeds: Sequence[_Speed]) -> list[_Speed]:
    """First step and median of equal parts, at least five steps each."""
    size = max(_BLOCK_STEPS, len(speeds) // _BLOCKS)
    starts = range(0, len(speeds) - size + 1, size)
    return [
        _Speed(speeds[start].step, median(_values(speeds[start : start + size])))
        for start in starts
    ]
