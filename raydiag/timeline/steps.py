"""When training steps ended, by the metrics, by the log, and by the power that GPUs drew.

The log prints how long each step took and mostly not when. Power says when computing began and when
it ended. Where both lengths agree the steps have their times, within a slack; where they do not, as
when the log stopped before training did, nothing is said.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from raydiag.timeline.answers import Answers
from raydiag.timeline.known_values import last_true
from raydiag.timeline.rhythm import Rhythm, rhythm_of
from raydiag.timeline.training_series import STEP, TrainingSeries
from raydiag.tsdb.series import Floats, Series

WARM_UP_STEPS = 5  # of a run: compilation and first use of everything
ASYNC_STEPS = 2  # steps after an asynchronous save that still pay for it
_SPIKE_FACTOR = 2.0  # times the usual step
_SPIKE_NOISE = 8.0  # times what steps usually differ by
_AROUND = 15  # steps with a time, around one, that tell what is usual there


@dataclass(frozen=True, eq=False)
class MetricSteps:
    """Completed training steps of the last run: numbers and the times at which they ended."""

    numbers: Floats = field(default_factory=lambda: np.empty(0))
    ended_at: Floats = field(default_factory=lambda: np.empty(0))

    def __len__(self) -> int:
        return int(self.numbers.size)

    @property
    def first(self) -> int | None:
        """Number of the first step."""
        return next(map(int, self.numbers), None)

    @property
    def last(self) -> int | None:
        """Number of the newest step."""
        return next(map(int, self.numbers[::-1]), None)

    @property
    def first_at(self) -> float | None:
        """When the first step ended."""
        return next(map(float, self.ended_at), None)

    @property
    def last_at(self) -> float | None:
        """When the newest step ended."""
        return next(map(float, self.ended_at[::-1]), None)

    @property
    def durations(self) -> Floats:
        """Seconds of each step but the first; of steps that are left out, their mean."""
        return np.diff(self.ended_at) / np.diff(self.numbers)

    @property
    def step_time_s(self) -> float | None:
        """Usual time of one step; the bridge may leave steps out. None for fewer than three."""
        return float(np.median(self.durations)) if self.numbers.size >= 3 else None

    def at(self, number: int) -> float | None:
        """When that step ended, between its neighbours where it is missing; None outside."""
        if not self.numbers.size or not self.numbers[0] <= number <= self.numbers[-1]:
            return None
        return float(np.interp(number, self.numbers, self.ended_at))


def completed(step: Series, fill: Series | None = None) -> MetricSteps:
    """Steps from `tb_step`: no fills, no repeats; a number that falls starts a new run."""
    times, numbers = step.times, step.values
    if fill is not None and fill.times.size:
        real = ~np.isin(times, fill.times[fill.values != 0])
        times, numbers = times[real], numbers[real]
    if not times.size:
        return MetricSteps()
    last_run = slice(last_true(np.diff(numbers) < 0) + 1, None)
    times, numbers = times[last_run], numbers[last_run]
    advanced = np.concatenate([[True], np.diff(numbers) > 0])
    return MetricSteps(numbers[advanced], times[advanced])


def steps_of(answers: Answers) -> MetricSteps:
    """Steps as the series show them; without any, there are none."""
    step = TrainingSeries.of(answers).series(STEP)
    return completed(step) if step is not None else MetricSteps()


def with_log(steps: MetricSteps, numbers: Floats, seconds: Floats) -> MetricSteps:
    """Also the steps that the bridge lost, each at its printed duration after the one before.

    `numbers` and `seconds` are those of the log, NaN where it prints none. What comes before the
    first step that is dated stays away: nothing says when it was.
    """
    if not len(steps):
        return steps
    dated = dict(zip(steps.numbers.tolist(), steps.ended_at.tolist(), strict=True))
    usual = steps.step_time_s or 0.0
    time, last = float(steps.ended_at[0]), float(steps.numbers[0])
    ended_at = dict(dated)
    for number, printed_s in sorted(zip(numbers.tolist(), seconds.tolist(), strict=True)):
        if number <= last:
            continue
        duration = printed_s if math.isfinite(printed_s) else usual
        time = dated.get(number, time + duration + (number - last - 1) * usual)
        ended_at[number], last = time, number
    ordered = np.array(sorted(ended_at))
    times = np.array(list(map(ended_at.__getitem__, ordered.tolist())))
    return MetricSteps(ordered, np.maximum.accumulate(times))


def save_steps(steps: MetricSteps, rhythm: Rhythm | None) -> list[int]:
    """Numbers of the steps that save, one beyond the last step as well."""
    if rhythm is None or steps.first is None or steps.last is None:
        return []
    turns = math.ceil((steps.first - rhythm.offset) / rhythm.period)
    return list(range(turns * rhythm.period + rhythm.offset, steps.last + 2, rhythm.period))


def inferred_rhythm(steps: MetricSteps) -> Rhythm | None:
    """Of slow steps that recur regularly; None where they do not.

    Where only every so many steps have a time, what was slow came right after the one before.
    """
    if len(steps) < 3:
        return None
    gaps = np.diff(steps.numbers)
    around = np.lib.stride_tricks.sliding_window_view(
        np.pad(steps.durations, _AROUND // 2, mode="edge"), _AROUND
    )
    usual = np.median(around, axis=1)
    extra_s = (steps.durations - usual) * gaps
    noise_s = float(np.median(np.abs(extra_s)))
    slow = extra_s > np.maximum(_SPIKE_NOISE * noise_s, (_SPIKE_FACTOR - 1) * usual)
    numbers = steps.numbers[:-1][slow] + 1
    numbers = numbers[numbers > (steps.first or 0) + WARM_UP_STEPS]
    return rhythm_of(numbers, max(2 * ASYNC_STEPS, int(2 * np.median(gaps))))


# ---- steps that only the log knows, placed in time by what GPUs drew

_MIN_STEPS = 8
_LONGEST_SAVE_S = 900.0
_CONTRAST = 1.5  # power of computing, in idle power: less tells nothing apart
_SLACK_STEPS, _SLACK_S, _SLACK_SHARE = 3.0, 60.0, 0.01


@dataclass(frozen=True, eq=False)
class PlacedSteps:
    """Steps with their times; each may be off by the slack."""

    steps: MetricSteps = field(default_factory=MetricSteps)
    slack_s: float = 0.0


@dataclass(frozen=True)
class Computing:
    """First and last time at which most hosts computed."""

    first: float
    last: float
    spacing_s: float  # of two samples


def place(
    answers: Answers, numbers: Floats, seconds: Floats, saves: Sequence[int] = ()
) -> PlacedSteps:
    """The last run of the log; no steps where power and log do not agree on how long it was.

    `numbers` and `seconds` are those of the log, NaN where it prints no duration. What they lack
    of the time in which GPUs computed, the saves took, which follow the steps `saves`.
    """
    last_run = slice(last_true(np.diff(numbers) <= 0) + 1, None)
    numbers, seconds = numbers[last_run], seconds[last_run]
    printed = seconds[np.isfinite(seconds)]
    computing = computing_time(answers)
    if numbers.size < _MIN_STEPS or not printed.size or computing is None:
        return PlacedSteps()
    usual = float(np.median(printed))
    since_first = _since_first(numbers, seconds, usual)
    lacking = computing.last - computing.first - usual - float(since_first[-1])
    between = np.searchsorted(numbers, [save for save in saves if numbers[0] <= save < numbers[-1]])
    if between.size and usual < lacking / between.size <= _LONGEST_SAVE_S:
        for place_of_save in between:
            since_first[place_of_save + 1 :] += lacking / between.size
    length = float(since_first[-1])
    # The first step compiles before it computes: the computing of one usual step is of its own.
    by_start, by_end = computing.first + usual, computing.last - length
    # Where the last step paid for a save, computing ended as long before the step did.
    last_s = float(np.nan_to_num(seconds[-1], nan=usual))
    by_end = min(by_end, by_end + max(0.0, last_s - usual), key=lambda end: abs(by_start - end))
    slack, spacing = abs(by_start - by_end), computing.spacing_s
    if slack > max(_SLACK_STEPS * usual, _SLACK_S, _SLACK_SHARE * length) + 2 * spacing:
        return PlacedSteps()
    ended_at = (by_start + by_end) / 2 + since_first
    return PlacedSteps(MetricSteps(numbers, ended_at), slack / 2 + usual + spacing)


def _since_first(numbers: Floats, seconds: Floats, usual: float) -> Floats:
    """Seconds from the end of the first step to the end of each; missing steps take the usual."""
    durations = np.where(np.isfinite(seconds), seconds, usual)[1:]
    durations = durations + (np.diff(numbers) - 1) * usual
    return np.concatenate([[0.0], np.cumsum(durations)])


def computing_time(answers: Answers) -> Computing | None:
    """None where power does not tell computing from rest."""
    table = answers.table("gpu-power").pick("avg")
    if not len(table):
        return None
    has_value = ~np.isnan(table.values).all(axis=0)
    if has_value.sum() < _MIN_STEPS:
        return None
    # Of an even number the lower one: of two hosts both have to compute, else one waits.
    watts = np.nanpercentile(table.values[:, has_value], 50, axis=0, method="lower")
    times = table.times[has_value]
    low, high = float(np.min(watts)), float(np.percentile(watts, 90))
    if high < _CONTRAST * low:
        return None
    active = times[watts > (low + high) / 2]
    return Computing(float(active[0]), float(active[-1]), float(np.median(np.diff(times))))
