"""Training steps of one job from all that tells of them, and the steps that two jobs share.

Jobs run at different times and speeds, so they are compared step by step and never by the clock.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from raydiag.event_file import metric_name
from raydiag.joblog.facts import LoggedSteps
from raydiag.timeline.steps import ASYNC_STEPS, MetricSteps
from raydiag.timeline.training_series import LOSS, SECONDS, TGS, TrainingSeries, in_our_names
from raydiag.tsdb.series import Floats
from raydiag.tsdb.tfevents import Events

SKIPPED = 10  # steps after the later job's first one: compilation, first use, data pipeline
SKIPPED_OF_FEW = 5
_FEW = 40  # steps in common
LEAST = 10  # steady steps on each side, to say anything


@dataclass(frozen=True, eq=False)
class TrainingRun(MetricSteps):
    """With their values, each step once, ascending; NaN where nothing tells, also of its end."""

    values: Mapping[str, Floats] = field(default_factory=dict)  # by the name that the bridge gives
    sources: Mapping[str, int] = field(default_factory=dict)  # what told of how many steps

    @property
    def dated(self) -> MetricSteps:
        """Those whose time is known, for everything that goes by time."""
        has_time = np.isfinite(self.ended_at)
        return MetricSteps(self.numbers[has_time], self.ended_at[has_time])

    def periodic_saves(self, period: int | None, beyond: int = 0) -> range:
        """Steps of a job that saves every `period` steps, to so many beyond its last step."""
        if not period or self.first is None or self.last is None:
            return range(0)
        return range(-(-self.first // period) * period, self.last + 1 + beyond, period)

    def of(self, metric: str, steps: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Numbers and values of the chosen steps that have the metric."""
        values = self.values.get(metric, np.full(self.numbers.size, np.nan))
        keep = steps & np.isfinite(values)
        return self.numbers[keep], values[keep]


def of_series(steps: MetricSteps, training: TrainingSeries) -> TrainingRun:
    """From the metrics: each scalar belongs to the step whose time is nearest."""
    values = {}
    if not len(steps):
        return TrainingRun()
    half = 0.5 * (steps.step_time_s or 1.0)
    for metric, series in training.by_metric.items():
        row = np.full(len(steps), np.nan)
        after = np.searchsorted(steps.ended_at, series.times).clip(0, len(steps) - 1)
        before = (after - 1).clip(0)
        nearer = np.abs(steps.ended_at[before] - series.times) < np.abs(
            steps.ended_at[after] - series.times
        )
        at = np.where(nearer, before, after)
        fits = np.abs(steps.ended_at[at] - series.times) < half
        row[at[fits]] = series.values[fits]
        values[metric] = row
    return TrainingRun(steps.numbers, steps.ended_at, values, {"metrics": len(steps)})


def of_events(events: Events) -> TrainingRun:
    """From the event file, which has every step that training wrote."""
    numbers = events.steps
    values = {}
    for tag, scalar in events.scalars.items():
        row = np.full(numbers.size, np.nan)
        row[np.searchsorted(numbers, scalar.steps)] = scalar.values
        values[metric_name(tag)] = row
    sources = {"event file": int(numbers.size)}
    return TrainingRun(numbers, events.times, in_our_names(values), sources)


def of_log(steps: LoggedSteps | None) -> TrainingRun:
    """From step lines; many print no time."""
    if steps is None or not steps.runs:
        return TrainingRun()
    series, run = steps.series, steps.runs[-1]
    keep = np.array(series.line) >= run.first_line
    numbers, first = np.unique(np.array(series.step)[keep], return_index=True)
    columns = {SECONDS: series.seconds, LOSS: series.loss}
    if series.throughput_unit.endswith("/device"):
        columns[TGS] = series.tokens_per_s
    values = {name: np.array(column)[keep][first] for name, column in columns.items()}
    ended = np.array(series.time)[keep][first]
    return TrainingRun(numbers, ended, values, {"log": int(numbers.size)})


def merged(runs: Sequence[TrainingRun]) -> TrainingRun:
    """The first that tells of a step, or of a scalar of it, counts."""
    filled = list(filter(len, runs))
    if not filled:
        return TrainingRun()
    numbers = np.unique(np.concatenate(list(map(attrgetter("numbers"), filled))))
    ended = np.full(numbers.size, np.nan)
    values: dict[str, Floats] = {}
    sources: dict[str, int] = {}
    is_taken = np.zeros(numbers.size, dtype=np.bool_)
    for run in filled:
        at = np.searchsorted(numbers, run.numbers)
        if not is_taken[at].all():
            sources.update(dict.fromkeys(run.sources, int((~is_taken[at]).sum())))
        is_taken[at] = True
        ended[at] = np.where(np.isnan(ended[at]), run.ended_at, ended[at])
        for metric, row in run.values.items():
            merged_values = values.setdefault(metric, np.full(numbers.size, np.nan))
            merged_values[at] = np.where(np.isnan(merged_values[at]), row, merged_values[at])
    return TrainingRun(numbers, ended, values, sources)


# ---- what two jobs share


@dataclass(frozen=True)
class Overlap:
    """Steps that are compared; `reason` says why there are none."""

    first: int | None = None  # that both jobs have
    last: int | None = None
    start: int | None = None  # the first one that counts
    saves: tuple[int, ...] = ()  # steps left out because one of the jobs saved then
    reason: str = ""

    def steady(self, run: TrainingRun) -> NDArray[np.bool_]:
        """Which of a run's steps count."""
        if self.start is None or self.last is None:
            return np.zeros(len(run), dtype=np.bool_)
        inside = (run.numbers >= self.start) & (run.numbers <= self.last)
        return inside & ~np.isin(run.numbers, self.saves)


def slowed_by_saves(saves: Iterable[int], is_async: bool | None) -> set[int]:
    """The steps that pay for a save: its own, and the next; two more where it goes on beside."""
    after = 1 if is_async is False else ASYNC_STEPS
    return {step + later for step in saves for later in range(after + 1)}


def overlap(a: TrainingRun, b: TrainingRun, saves: Iterable[int]) -> Overlap:
    """The steps of both, without the start of the later one and without saves of either."""
    if a.first is None or b.first is None or a.last is None or b.last is None:
        missing = "the first" if a.first is None else "the second"
        return Overlap(reason=f"{missing} job has no completed step")
    first, last = max(a.first, b.first), min(a.last, b.last)
    if last < first:
        return Overlap(
            reason=f"no step in common: {a.first} to {a.last}, and {b.first} to {b.last}"
        )
    start = first + (SKIPPED if last - first >= _FEW else SKIPPED_OF_FEW)
    left_out = tuple(sorted(step for step in set(saves) if start <= step <= last))
    shared = Overlap(first, last, start, left_out)
    fewest = min(int(shared.steady(a).sum()), int(shared.steady(b).sum()))
    if fewest < LEAST:
        reason = f"only {fewest} steady steps in common, of {first} to {last}"
        return Overlap(first, last, None, (), reason)
    return shared
