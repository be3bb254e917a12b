"""Steps that only the log knows, placed in time by what GPUs drew.

The log prints how long each step took and mostly not when. Power says when computing began and when
it ended. Where both lengths agree the steps have their times, within a slack; where they do not, as
when the log stopped before training did, nothing is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from raydiag.timeline.answers import Answers
from raydiag.timeline.known_values import last_true
from raydiag.timeline.steps import MetricSteps
from raydiag.tsdb.series import Floats

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
