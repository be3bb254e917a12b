"""What there is to draw of a job: the few series that tell its story, its steps, saves, hosts.

Everything comes from answers that the playbooks have read already.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

import numpy as np

from raydiag.explain.verdict import Explained
from raydiag.model import Window
from raydiag.timeline.context import SAVE as SAVE_MASK
from raydiag.timeline.courses import (
    SAVE,
    STALL,
    Course,
    CourseRow,
    Stretch,
    course_rows,
    of_hosts,
    of_job,
)
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.timeline.steps import MetricSteps

_MOST_COURSES = 4
_MOST_OF_ROOT = 2
_AROUND_S = 1800.0  # before and after the onset, at least
_AFTERWARDS = 4.0  # times what is shown before it
_USUAL = ("gpu-power",)
_USUAL_WITHOUT_CAUSE = ("gpu-power", "memory")


@dataclass(frozen=True)
class RunPicture:
    """What there is to draw; each part may be missing."""

    window: Window | None = None
    courses: tuple[Course, ...] = ()
    steps: MetricSteps = field(default_factory=MetricSteps)
    stretches: tuple[Stretch, ...] = ()  # saves, and the stall
    hosts: tuple[str, ...] = ()
    gpus: Mapping[str, int] = field(default_factory=dict)  # number by host


def picture_of(
    timeline: RunTimeline | None, steps: MetricSteps, window: Window | None, explained: Explained
) -> RunPicture:
    """Chosen by the verdict; without metrics there are only the steps of the event file."""
    if timeline is None:
        return RunPicture(window, steps=steps)
    stretches = tuple(_stretches(timeline))
    around = _around(explained.verdict.onset, timeline.window)
    courses: list[Course] = []
    for course in _courses(timeline, steps, around, explained):
        if not course.is_flat and len(courses) < _MOST_COURSES:
            courses.append(_marked(course, stretches, around, explained.verdict.onset))
    table = timeline.table("gpu-count")
    gpus = {subject.host: int(np.nanmax(row)) for subject, row in table if not np.isnan(row).all()}
    hosts = timeline.context.hosts
    return RunPicture(timeline.window, tuple(courses), steps, stretches, hosts, gpus)


def _around(onset: float | None, window: Window) -> Window:
    """As much of the run as tells what was before and what came of it."""
    if onset is None or not window.start <= onset <= window.end:
        return window
    before, after = onset - window.start, window.end - onset
    shown_before = min(before, max(after, _AROUND_S))
    shown_after = min(after, max(_AFTERWARDS * shown_before, _AROUND_S))
    return Window(onset - shown_before, onset + shown_after)


def _courses(
    timeline: RunTimeline, steps: MetricSteps, window: Window, explained: Explained
) -> Iterator[Course]:
    """Of the root, of training's pace, of what the root led to; in this order, each once."""
    classes = _classes(explained)
    of_root = list(_rows_that_show(classes[:1]))
    usual = _USUAL if of_root else _USUAL_WITHOUT_CAUSE
    later = [*_rows_that_show(classes[1:]), *(row for row in course_rows() if row.id in usual)]
    apart = explained.verdict.hosts
    drawn = (_drawn(timeline, row, apart, window) for row in of_root)
    yield from [course for course in drawn if not course.is_flat][:_MOST_OF_ROOT]
    if len(steps) > 1:
        pace, title = steps.durations, "Time per training step"
        yield of_job(title, "s", steps.ended_at[1:], pace, window, lasting=True)
    for row in dict.fromkeys(later):
        if row not in of_root:
            yield _drawn(timeline, row, apart, window)


def _classes(explained: Explained) -> Sequence[str]:
    """The verdict's, then of what it led to, or of what else was found."""
    findings = explained.diagnosis.problems
    for chain in explained.diagnosis.chains[:1]:
        findings = [*chain.findings, *findings]
    classes = map(attrgetter("failure_class"), findings)
    return list(dict.fromkeys([explained.verdict.failure_class, *classes]))


def _rows_that_show(classes: Iterable[str]) -> Iterator[CourseRow]:
    for failure_class in classes:
        for row in course_rows():
            if failure_class in row.shows:
                yield row


def _drawn(timeline: RunTimeline, row: CourseRow, apart: Sequence[str], window: Window) -> Course:
    if row.query != "training":
        table = timeline.table(row.query)
        return of_hosts(row, table, timeline.context.hosts, apart, window)
    series = timeline.training.series(row.metric)
    if series is None:
        return Course(row.title, row.unit, np.empty(0))
    return of_job(row.title, row.unit, series.times, series.values, window)


def _stretches(timeline: RunTimeline) -> Iterator[Stretch]:
    """Saves that have a time, and the time after the last step where steps stopped."""
    for mask in timeline.context.masks:
        if mask.kind == SAVE_MASK and math.isfinite(mask.start) and math.isfinite(mask.end):
            yield Stretch(SAVE, mask.start, mask.end)
    if timeline.stall is not None:
        yield Stretch(STALL, timeline.stall.start, timeline.stall.end)


def _marked(
    course: Course, stretches: Iterable[Stretch], window: Window, onset: float | None
) -> Course:
    """With what else happened in its time."""
    inside, extent = [], (window.start, window.end)
    for stretch in stretches:
        start, end = max(stretch.start, window.start), min(stretch.end, window.end)
        if end > start:
            inside.append(Stretch(stretch.name, start, end))
    return replace(course, stretches=tuple(inside), onset=onset, extent=extent)
