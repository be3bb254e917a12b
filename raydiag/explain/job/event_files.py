"""A job's TensorBoard event files beside what the bridge has brought into its metrics.

The bridge is a best effort; the event file has every step that training wrote. What the metrics
lack of it is told, and taken from there.

Source: <job directory>/tensorboard, or the directory that the configuration names, of which the
container may know another path: /outputs there is where job directories lie here.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from raydiag.event_file import metric_name
from raydiag.joblog.facts import JobFacts
from raydiag.model import Evidence, Finding, HostUnread, Window
from raydiag.timeline.answers import Answers
from raydiag.timeline.steps import MetricSteps
from raydiag.timeline.training_series import LOSS, STEP, TrainingSeries, with_training
from raydiag.tsdb import tfevents
from raydiag.tsdb.series import Floats, Series
from raydiag.tsdb.tfevents import Events, ScalarSeries

_DIRECTORY = re.compile(r"Config param tensorboard_dir: (\S+)")
_IN_CONTAINER = "/outputs/"
_FLUSH_S = 300.0  # at the end: the file is flushed each two minutes, and the bridge comes later
_SHOWN = 8
_AGREE = 0.9  # share of the steps that both log and file have
_LOSS_APART = 0.01  # logs print few decimals
_ZONES_S = 14 * 3600.0


@dataclass(frozen=True)
class Bridge:
    """What the metrics lack of the steps that training wrote."""

    files: tuple[str, ...] = ()
    steps: int = 0  # in the event files
    missing: tuple[tuple[int, int], ...] = ()  # ranges of steps that the metrics lack
    missing_total: int = 0
    cut: bool = False
    first_time: float | None = None  # of the first step that is missing
    unread: tuple[HostUnread, ...] = ()

    def findings(self, origin: str) -> Iterator[Finding]:
        """One where steps were lost in the middle of the run."""
        if not self.missing:
            return
        ranges = [f"{a}" if a == b else f"{a} to {b}" for a, b in self.missing]
        ranges[_SHOWN:] = ["..."] * (len(ranges) > _SHOWN)
        missing = f"{self.missing_total} of {self.steps} steps are missing in {origin}"
        text = f"{missing}: {', '.join(ranges)}"
        source = next(iter(self.files), "event file")
        yield Finding(
            "tb-bridge-gap",
            onset=self.first_time,
            evidence=(Evidence(source, text, float(self.missing_total), self.first_time),),
            explanation="The event file has these steps; they are taken from there.",
        )


def read(facts: JobFacts, window: Window | None, alive: bool | None) -> Events:
    """The scalars of this job's own event files; without any, nothing.

    `window` is that of its metrics, None without.
    """
    host = next(iter(facts.header.nodelist), None)
    places = list(_places(facts))
    if window is not None:
        files = tfevents.find(places, host, window.start)
    else:
        # A log may print local time; of the jobs that shared the directory, the newest counts.
        since = None if facts.first_time is None else facts.first_time - _ZONES_S
        files = tfevents.find(places, host, since)[-1:]
    ended = facts.summary_time
    if ended is None and window is not None and alive is not True:
        ended = window.end
    return tfevents.read([file for file in files if ended is None or file.created <= ended])


def alone(events: Events, logged: Mapping[int, float]) -> MetricSteps:
    """Steps and their times where there are no metrics; none that the log, step: loss, refutes.

    Only the last run counts: what it trained again after a restart, it wrote again.
    """
    steps, times = events.steps, events.times
    if not steps.size or not _agrees(events.of_metric(LOSS), logged):
        return MetricSteps()
    first = max(np.flatnonzero(np.diff(times) <= 0) + 1, default=0)
    return MetricSteps(steps[first:], times[first:])


def _agrees(loss: ScalarSeries | None, logged: Mapping[int, float]) -> bool:
    """Whether the log has mostly the same losses; also where one of them has none."""
    if not logged or loss is None:
        return True
    in_both = np.isin(loss.steps, list(logged))
    values = loss.values[in_both]
    log_values = np.array(list(map(logged.__getitem__, loss.steps[in_both])))
    agreeing = np.abs(values - log_values) <= _LOSS_APART * np.maximum(1.0, np.abs(values))
    return bool(values.size) and int(agreeing.sum()) >= _AGREE * values.size


def _places(facts: JobFacts) -> Iterator[Path]:
    job_dir = facts.resolved.job_dir
    if job_dir is not None:
        yield Path(job_dir) / "tensorboard"
    named = [match[1] for match in map(_DIRECTORY.search, facts.head) if match]
    settings = {**facts.header.config, **facts.header.passthrough}
    for path in (*named, settings.get("tensorboard_dir", "")):
        if path.startswith(_IN_CONTAINER) and job_dir is not None:
            outputs = os.path.dirname(os.path.abspath(job_dir))
            yield Path(outputs) / path.removeprefix(_IN_CONTAINER)
        elif os.path.isabs(path):
            yield Path(path)


def compared(
    events: Events, known_steps: Floats, last_at: float | None, has_metrics: bool = True
) -> Bridge:
    """Steps of the event files that `told`, ascending, the metrics' own up to `last_at`, lacks."""
    steps = events.steps
    unread = tuple(map(HostUnread.without_host, events.unread))
    if not has_metrics or not steps.size:
        return Bridge(events.files, int(steps.size), cut=events.cut, unread=unread)
    lacks = steps[~np.isin(steps, known_steps)]
    inside = lacks[lacks < known_steps[-1]] if known_steps.size else lacks
    if last_at is not None and events.times[-1] - last_at > _FLUSH_S:
        inside = lacks
    ranges = _ranges(list(map(int, inside)), list(map(int, steps)))
    times = events.times[np.isin(steps, inside)]
    return Bridge(
        events.files,
        int(steps.size),
        tuple(ranges),
        int(inside.size),
        events.cut,
        next(map(float, times), None),
        unread,
    )


def filled(answers: Answers, events: Events, missing: Bridge) -> Answers:
    """The training series with the steps that only the event files have."""
    training = TrainingSeries.of(answers)
    host = training.host or ""
    known_steps = np.unique(training.steps)
    rows = {metric_name(tag): scalar for tag, scalar in events.scalars.items()}
    rows[STEP] = ScalarSeries(events.steps, events.times, events.steps)
    by_metric = dict(training.by_metric)
    for metric, scalar in rows.items():
        lacks = ~np.isin(scalar.steps, known_steps)
        series = by_metric.get(metric) or Series({}, np.empty(0), np.empty(0))
        nans = np.full(series.nan_times.size, np.nan)
        by_metric[metric] = Series.of(
            {"__name__": metric, "host": host},
            np.concatenate([series.times, series.nan_times, scalar.times[lacks]]),
            np.concatenate([series.values, nans, scalar.values[lacks]]),
        )
    return with_training(answers, by_metric.values(), f"event file {missing.files[-1]}")


def _ranges(missing: list[int], steps: list[int]) -> list[tuple[int, int]]:
    """Runs of steps that follow each other in the event file, where each tenth may be written."""
    if not missing:
        return []
    place = {step: index for index, step in enumerate(steps)}
    ranges, first = [], missing[0]
    for low, high in pairwise(missing):
        if place[high] != place[low] + 1:
            ranges.append((first, low))
            first = high
    return [*ranges, (first, missing[-1])]
