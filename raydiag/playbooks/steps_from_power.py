"""Steps that only the log knows, placed in time by what GPUs drew.

The log prints how long each step took and mostly not when. Power says when computing began and when
it ended. Where both lengths agree the steps have their times, within a slack; where they do not, as
when the log stopped before training did, nothing is said.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

import numpy as np

from raydiag.playbooks.masks import MetricSteps
from raydiag.playbooks.query_results import Answers
from raydiag.tsdb.series import Floats

_LEAST_STEPS = 8
_CONTRAST = 1.5  # power of computing, in idle power: less tells nothing apart
_SLACK_STEPS, _SLACK_S, _SLACK_SHARE = 3.0, 60.0, 0.01


@dataclass(frozen=True, eq=False)
class Placed:
    """Steps with their times; each may be off by the slack."""

    steps: MetricSteps = field(default_factory=MetricSteps)
    slack_s: float = 0.0


def place(answers: Answers, numbers: Floats, seconds: Floats) -> Placed:
    """The last run of the log; no steps where power and log do not agree on how long it was.

    `numbers` and `seconds` are those of the log, NaN where it prints no duration.
    """
    falls = np.flatnonzero(np.diff(numbers) <= 0)
    start = int(falls[-1]) + 1 if falls.size else 0
    numbers, seconds = numbers[start:], seconds[start:]
    known = seconds[np.isfinite(seconds)]
    computed = _computed(answers)
    if numbers.size < _LEAST_STEPS or not known.size or computed is None:
        return Placed()
    first, last, spacing = computed
    usual = float(np.median(known))
    took = np.where(np.isfinite(seconds), seconds, usual)[1:]
    took = took + (np.diff(numbers) - 1) * usual
    since_first = np.concatenate([[0.0], np.cumsum(took)])
    length = float(since_first[-1])
    # The first step compiles before it computes: the computing of one usual step is of its own.
    by_start, by_end = first + usual, last - length
    slack = abs(by_start - by_end)
    if slack > max(_SLACK_STEPS * usual, _SLACK_S, _SLACK_SHARE * length) + 2 * spacing:
        return Placed()
    ended_at = (by_start + by_end) / 2 + since_first
    return Placed(MetricSteps(numbers, ended_at), slack / 2 + usual + spacing)


def _computed(answers: Answers) -> Optional[tuple[float, float, float]]:
    """First and last time at which most hosts computed, and the distance of two looks."""
    table = answers.table("gpu-power").pick("avg")
    there = ~np.isnan(table.values).all(axis=0) if len(table) else np.empty(0, dtype=np.bool_)
    if there.sum() < _LEAST_STEPS:
        return None
    # Of an even number the lower one: of two hosts both have to compute, else one waits.
    watts = np.nanpercentile(table.values[:, there], 50, axis=0, method="lower")
    times = table.times[there]
    low, high = float(np.min(watts)), float(np.percentile(watts, 90))
    if high < _CONTRAST * low:
        return None
    active = times[watts > (low + high) / 2]
    return float(active[0]), float(active[-1]), float(np.median(np.diff(times)))
