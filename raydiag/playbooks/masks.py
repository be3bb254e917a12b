"""Times that say nothing about a fault: saves, start-up, after the end, and repeated old samples.

Pure functions over series. What falls into a mask is neither baseline nor anomaly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Optional

import numpy as np

from raydiag.playbooks.context import (
    AFTER_HANG,
    BEFORE_JOB,
    GHOST,
    SAVE,
    WARM_UP,
    WRITE_BACK,
    Context,
    Mask,
)
from raydiag.playbooks.context import SaveWindow as Told
from raydiag.playbooks.queries import SCRAPE
from raydiag.playbooks.query_results import ALIVE, Answers
from raydiag.playbooks.training import STEP, Training
from raydiag.playbooks.write_back import bounded
from raydiag.tsdb.series import Floats, Series

WARM_UP_STEPS = 5  # of a run: compilation and first use of everything
ASYNC_STEPS = 2  # steps after an asynchronous save that still pay for it
WRITEBACK_S = 480.0  # what an asynchronous save goes on writing in the background
FLAT_S = 300.0  # a gauge that varies and did not for so long, is not measured any more
FLAT_SAMPLES = 10
_SLOW_STEP = 1.5  # times the usual step: that step paid for the save before it
_SAVE_FACTOR = 3.0  # times the longest save seen: more is no save any more
_SAVE_UNSEEN_S = 1800.0  # the same where none was seen
_SPIKE = 2.0  # times the usual step
_LEAST_SPIKES = 3


def span(kind: str, start: float, end: float, host: Optional[str] = None, prefix: str = "") -> Mask:
    """A mask whose ends may be open (infinite)."""
    return Mask(kind, start, end, host, prefix)


@dataclass(frozen=True, eq=False)
class MetricSteps:
    """Completed training steps of the last run: numbers and the times at which they ended."""

    numbers: Floats = field(default_factory=lambda: np.empty(0))
    ended_at: Floats = field(default_factory=lambda: np.empty(0))

    def __len__(self) -> int:
        return int(self.numbers.size)

    @property
    def first(self) -> Optional[int]:
        return int(self.numbers[0]) if self.numbers.size else None

    @property
    def last(self) -> Optional[int]:
        return int(self.numbers[-1]) if self.numbers.size else None

    @property
    def last_at(self) -> Optional[float]:
        return float(self.ended_at[-1]) if self.ended_at.size else None

    @property
    def step_time_s(self) -> Optional[float]:
        """Usual time of one step; the bridge may leave steps out. None for fewer than three."""
        if self.numbers.size < 3:
            return None
        each = np.diff(self.ended_at) / np.diff(self.numbers)
        return float(np.median(each))

    def at(self, number: int) -> Optional[float]:
        """When that step ended, between its neighbours where it is missing; None outside."""
        if not self.numbers.size or not self.numbers[0] <= number <= self.numbers[-1]:
            return None
        return float(np.interp(number, self.numbers, self.ended_at))


def completed(step: Series, fill: Optional[Series] = None) -> MetricSteps:
    """Steps from `tb_step`: no fills, no repeats; a number that falls starts a new run."""
    times, numbers = step.times, step.values
    if fill is not None and fill.times.size:
        filled = fill.times[fill.values != 0]
        keep = ~np.isin(times, filled)
        times, numbers = times[keep], numbers[keep]
    if not times.size:
        return MetricSteps()
    falls = np.flatnonzero(np.diff(numbers) < 0)
    start = int(falls[-1]) + 1 if falls.size else 0
    times, numbers = times[start:], numbers[start:]
    fresh = np.concatenate([[True], np.diff(numbers) > 0])
    return MetricSteps(numbers[fresh], times[fresh])


def with_log(steps: MetricSteps, numbers: Floats, seconds: Floats) -> MetricSteps:
    """Also the steps that the bridge lost, each at its printed duration after the one before.

    `numbers` and `seconds` are those of the log, NaN where it prints none. What comes before the
    first step that is dated stays away: nothing says when it was.
    """
    if not len(steps):
        return steps
    dated = dict(zip(steps.numbers.tolist(), steps.ended_at.tolist(), strict=True))
    usual = steps.step_time_s or 0.0
    now, last = float(steps.ended_at[0]), float(steps.numbers[0])
    found = dict(dated)
    for number, took in sorted(zip(numbers.tolist(), seconds.tolist(), strict=True)):
        if number <= last:
            continue
        spent = took if math.isfinite(took) else usual
        now = dated.get(number, now + spent + (number - last - 1) * usual)
        found[number], last = now, number
    ordered = sorted(found)
    times = np.maximum.accumulate(np.array([found[number] for number in ordered]))
    return MetricSteps(np.array(ordered), times)


def save_steps(steps: MetricSteps, period: Optional[int]) -> list[int]:
    """Numbers of the steps that save: multiples of the period, one beyond the last step as well."""
    if not period or steps.first is None or steps.last is None:
        return []
    first = math.ceil(steps.first / period) * period
    return list(range(first, steps.last + 2, period))


def inferred_period(steps: MetricSteps) -> Optional[int]:
    """Distance of slow steps that come again and again; None where they do not."""
    usual = steps.step_time_s
    if usual is None:
        return None
    each = np.diff(steps.ended_at) / np.diff(steps.numbers)
    slow = steps.numbers[1:][each > _SPIKE * usual]
    slow = slow[slow > (steps.first or 0) + WARM_UP_STEPS]
    if slow.size < _LEAST_SPIKES:
        return None
    distances = np.diff(slow)
    period = int(np.median(distances))
    regular = period >= 2 * ASYNC_STEPS and bool((np.abs(distances - period) <= 1).all())
    return period if regular else None


def saves(
    steps: MetricSteps, period: Optional[int], is_async: Optional[bool], told: Iterable[Told] = ()
) -> list[Mask]:
    """Windows in which a checkpoint is saved, from the end of the step before on.

    A save that blocks ends with its step. Where it does not, or where nobody says, the steps that
    pay for it belong to it too, and the writing in the background follows as a mask of its own,
    for what it loads. `told` are those of the log.
    """
    found = [span(SAVE, s.start, s.end) for s in told if s.start is not None and s.end is not None]
    usual = steps.step_time_s
    if usual is None:
        return found
    longest = 0.0
    for number in save_steps(steps, period):
        # A fresh run saves with its very first step, somewhere in the start-up.
        start = -math.inf if number == steps.first else _began(steps, number, usual)
        end = _paid_for(steps, number, usual, is_async)
        if end is None:
            limit = _SAVE_FACTOR * longest if longest else _SAVE_UNSEEN_S
            found.append(span(SAVE, start, start + max(limit, usual)))
            continue
        if number != steps.first and end - start > _SLOW_STEP * usual:
            longest = max(longest, end - start)
        found.append(span(SAVE, start, end))
        written = max(start, float(steps.ended_at[0])) + WRITEBACK_S
        if is_async is not False and written > end:
            found.append(span(WRITE_BACK, end, written))
    return found


def _began(steps: MetricSteps, number: int, usual: float) -> float:
    """When the step before it ended, counted on from the last step that is known."""
    before = int(np.searchsorted(steps.numbers, number)) - 1
    known = max(before, 0)
    missing = number - 1 - steps.numbers[known]
    return float(steps.ended_at[known] + max(0.0, missing) * usual)


def _paid_for(
    steps: MetricSteps, number: int, usual: float, is_async: Optional[bool]
) -> Optional[float]:
    """When the last step that the save slowed down ended; None when no step followed."""
    after = int(np.searchsorted(steps.numbers, number))
    if after >= steps.numbers.size:
        return None
    end = float(steps.ended_at[after] - max(0.0, steps.numbers[after] - number) * usual)
    most = 1 if is_async is False else ASYNC_STEPS
    for index in range(after + 1, min(after + 1 + most, steps.numbers.size)):
        gone = steps.numbers[index] - steps.numbers[index - 1]
        took = (steps.ended_at[index] - steps.ended_at[index - 1]) / gone
        if is_async is not False or took > _SLOW_STEP * usual:
            end = float(steps.ended_at[index])
    return end


def outside_training(
    steps: MetricSteps, job_start: Optional[float], job_end: Optional[float]
) -> list[Mask]:
    """What is not steady training: before the job, warm-up, and all after the last step."""
    found = []
    if job_start is not None:
        found.append(span(BEFORE_JOB, -math.inf, float(np.nextafter(job_start, -math.inf))))
    if len(steps):
        last = min(WARM_UP_STEPS, len(steps)) - 1
        begun = -math.inf if job_start is None else job_start
        found.append(span(WARM_UP, begun, float(steps.ended_at[last])))
        after = float(steps.ended_at[-1]) + (steps.step_time_s or 0.0)
        found.append(span(AFTER_HANG, after, math.inf))
    elif job_end is not None:
        found.append(span(AFTER_HANG, job_end, math.inf))
    return found


def flat_runs(series: Series, least_s: float = FLAT_S) -> list[tuple[float, float]]:
    """(first sample, last sample) of each time in which a gauge kept exactly one value.

    `series` must be raw samples: a range query repeats the last one up to the server's lookback.
    A gap ends a run. Not for gauges that may stand still, such as a port's state.
    """
    if len(series) < FLAT_SAMPLES:
        return []
    usual = series.spacing_s or 0.0
    broken = (np.diff(series.values) != 0) | (np.diff(series.times) > 2.5 * usual)
    edges = np.flatnonzero(np.concatenate([[True], broken, [True]]))
    found = []
    for low, high in zip(edges[:-1], edges[1:] - 1, strict=True):
        start, end = float(series.times[low]), float(series.times[high])
        if high - low + 1 >= FLAT_SAMPLES and end - start >= least_s:
            found.append((start, end))
    return found


def ghosts(host: str, scrape_duration: Series, confirming: Sequence[Series] = ()) -> list[Mask]:
    """When a host's exporter repeated an old answer, by the duration of its own cycles.

    `confirming` are gauges of the same host that cannot stand still under load (power): where one
    of them varied, it was none.
    """
    found = []
    for start, end in flat_runs(scrape_duration):
        inside = [one.between(start, end) for one in confirming]
        if any(one.values.size > 1 and np.ptp(one.values[1:]) > 0 for one in inside):
            continue
        later = scrape_duration.times[scrape_duration.times > end]
        until = float(np.nextafter(later[0], -math.inf)) if later.size else math.inf
        found.append(span(GHOST, start, until, host, "hw_"))
    return found


def of_job(
    context: Context, answers: Answers, steps: MetricSteps, slack_s: float = 0.0
) -> tuple[Mask, ...]:
    """Everything that is known to say nothing, for a run of the playbooks.

    `slack_s`: how far the times of the steps may be off, by which saves are widened.
    """
    job = context.job
    period = job.checkpoint_period or inferred_period(steps)
    found = [
        replace(one, start=one.start - slack_s, end=one.end + slack_s)
        for one in saves(steps, period, job.async_saves, job.saves)
    ]
    if steps.last_at is not None:
        found = bounded(found, answers, float(steps.ended_at[0]), steps.last_at)
    found += outside_training(steps, job.start, job.end)
    for host, duration in scrape_durations(context, answers).items():
        power = _power(answers, host)
        found += ghosts(host, duration, () if power is None else (power,))
    return tuple(found)


def steps_of(answers: Answers) -> MetricSteps:
    """Steps as the series tell them; without any, there are none."""
    step = Training.of(answers).series(STEP)
    return completed(step) if step is not None else MetricSteps()


def scrape_durations(context: Context, answers: Answers) -> dict[str, Series]:
    """Duration of the exporter's cycles by host, at the times of the samples themselves.

    The grid of a range query repeats a sample until it is five minutes old; the times of the real
    samples tell which values were there.
    """
    table = answers.table("driver").pick(SCRAPE)
    sampled = sampled_at(context, answers)
    found = {}
    for where, row in table:
        times, values = table.times, row
        if where.host in sampled:
            grid, stamps = sampled[where.host]
            _, mine, theirs = np.intersect1d(times, grid, return_indices=True)
            times, values = stamps[theirs], values[mine]
        there = np.isfinite(values) & np.isfinite(times)
        times, first = np.unique(times[there], return_index=True)
        found[where.host] = Series({"host": where.host}, times, values[there][first])
    return found


def sampled_at(
    context: Context, answers: Answers, source: str = "hw"
) -> dict[str, tuple[Floats, Floats]]:
    """(times of the grid, time of the newest sample at each of them) by host.

    `source`: "hw" for the node exporter, "ray" for Ray.
    """
    answer = answers.answer(ALIVE)
    if answer is None or not answer.ok:
        return {}
    own = [one for one in answer.series if ("host" in one.labels) == (source == "hw")]
    named = [(context.discovery.host_of(one.labels) or "", one) for one in own if len(one)]
    return {host: (one.times, one.values) for host, one in named}


def _power(answers: Answers, host: str) -> Optional[Series]:
    table = answers.table("gpu-power")
    values = table.row(host, "avg")
    if values is None:
        return None
    there = np.isfinite(values)
    return Series({"host": host}, table.times[there], values[there])
