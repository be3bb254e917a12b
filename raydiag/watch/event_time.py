"""Where a job's time went, by its events alone: starts, checkpoints, ends.

An attempt goes from one loaded checkpoint to the next. Its saved steps are productive at the
reference pace: over all attempts (last saved step - first loaded step) x seconds of a step. Ranks
that start while others train restart nothing until a checkpoint is loaded.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from raydiag.joblog.job_events import JobEvent, JobEvents
from raydiag.triage.verdict import JobStatus
from raydiag.triage.wording import first_known
from raydiag.watch.efficiency import AttemptTime, JobEfficiency, TimeSpent

_UNKNOWN_PACE = "the pace is not known: name it with --step-seconds"


def by_events(job: JobEvents, step_seconds: float | None) -> JobEfficiency:
    """The job's attempts; without `step_seconds` the pace is that between saves."""
    pace_s, source = step_seconds, "--step-seconds"
    if pace_s is None:
        pace_s, source = _pace_between_saves(job.events)
    windows = _windows(job.events)
    attempts = []
    for index in range(len(windows)):
        attempts.append(_attempt(index, job.path, windows, pace_s))
    notes = []
    if pace_s is None:
        notes.append(_UNKNOWN_PACE)
    if job.skipped_lines:
        notes.append(f"{job.path}: {job.skipped_lines} lines are no events")
    return JobEfficiency(
        name=job.job_name or job.path,
        job_id=None,
        step_time_s=pace_s,
        step_time_source=source,
        attempts=tuple(attempts),
        notes=tuple(notes),
    )


def _pace_between_saves(events: Sequence[JobEvent]) -> tuple[float | None, str]:
    """Seconds of a step: the median between saves that follow each other; and the source."""
    checkpoints = [event for event in events if event.step is not None]
    paces = []
    for earlier, later in pairwise(checkpoints):
        steps = (later.step or 0) - (earlier.step or 0)
        if earlier.kind == later.kind == "checkpoint_saved" and steps > 0:
            paces.append((later.time - earlier.time) / steps)
    if not paces:
        return None, ""
    return median(paces), "saves"


def _windows(events: Sequence[JobEvent]) -> list[list[JobEvent]]:
    """The events of each attempt: it begins with the start that led to its loaded checkpoint."""
    loads = [index for index, event in enumerate(events) if event.kind == "checkpoint_loaded"]
    windows = []
    begin = 0
    for earlier, later in pairwise(loads):
        end = _restart_between(events, earlier, later)
        windows.append(list(events[begin:end]))
        begin = end
    return [*windows, list(events[begin:])]


def _restart_between(events: Sequence[JobEvent], load: int, next_load: int) -> int:
    """Index of the first start after the attempt's last save; the load itself without a start."""
    last = load
    for index in range(load, next_load):
        if events[index].kind == "checkpoint_saved":
            last = index
    for index in range(last, next_load):
        if events[index].kind == "job_started":
            return index
    return next_load


def _attempt(
    index: int, path: str, windows: Sequence[Sequence[JobEvent]], pace_s: float | None
) -> AttemptTime:
    """The attempt of one window."""
    events = windows[index]
    run, end, status = _Window.of(events, None), events[-1].time, JobStatus.UNKNOWN
    if index + 1 < len(windows):
        later = windows[index + 1]
        run, end, status = _Window.of(events, _loaded(later)), later[0].time, JobStatus.FAILED
    return AttemptTime(
        index=index,
        source=path,
        status=status,
        primary=None,
        start=events[0].time,
        end=min(end, run.stopped),
        first_step=run.first_step,
        last_step=run.last_saved,
        kept_step=run.kept_step,
        reached_save=bool(run.saves),
        spent=None if pace_s is None else run.spent(end, pace_s),
    )


@dataclass(frozen=True)
class _Window:
    """What one window says."""

    begin: float
    trained_from: float | None  # when the checkpoint was loaded; None: it never trained
    first_step: int
    kept_step: int  # the first one's, where none was kept
    last_saved: int | None
    saves: Sequence[JobEvent]
    down_before_s: float  # nothing ran, before it trained
    stopped: float  # when the last process ended, as far as the file says so

    @classmethod
    def of(cls, events: Sequence[JobEvent], next_loaded: int | None) -> "_Window":
        """`next_loaded`: the step from which the next attempt goes on."""
        saves = [event for event in events if event.kind == "checkpoint_saved"]
        loads = [event for event in events if event.kind == "checkpoint_loaded"]
        ends = [event.time for event in events if event.kind == "job_terminated"]
        first_step = _loaded(events) or 0
        last_saved = next((save.step for save in reversed(saves)), None)
        kept = first_known(next_loaded, last_saved, 0)
        began = [event.time for event in [*reversed(loads), *events[: len(saves)]]]
        trained_from = next(iter(began), None)  # afresh, where it loads nothing and saves
        alive = [event.time for event in events if event.kind != "job_terminated"]
        last = max(alive, default=events[0].time)  # an end before it was not the last one
        return cls(
            begin=events[0].time,
            trained_from=trained_from,
            first_step=first_step,
            kept_step=max(first_step, kept or 0),
            last_saved=last_saved,
            saves=saves,
            down_before_s=_down_between(events, trained_from),
            stopped=max((time for time in ends if time >= last), default=math.inf),
        )

    def spent(self, end: float, pace_s: float) -> TimeSpent:
        """Start-up until steps are at their pace, kept steps, lost ones, down until `end`."""
        stopped = min(self.stopped, end)
        spent = TimeSpent(down=end - stopped + self.down_before_s)
        spent.startup = stopped - self.begin - self.down_before_s
        if self.trained_from is None:
            return spent
        spent.startup -= stopped - self.trained_from
        kept_until = max(self.trained_from, self._kept_until(stopped))
        spent.lost = stopped - kept_until
        trained_s = kept_until - self.trained_from
        # Steps that were faster than the pace are all that this time went into.
        spent.productive = min(trained_s, (self.kept_step - self.first_step) * pace_s)
        extra_s = trained_s - spent.productive
        warm_up_s = max(0.0, min(extra_s, self._warm_up_s(pace_s)))
        spent.startup += warm_up_s
        spent.slow = extra_s - warm_up_s
        return spent

    def _kept_until(self, stopped: float) -> float:
        """When the last step that was kept had been saved."""
        if self.kept_step == self.first_step:
            return self.trained_from or self.begin
        times = [save.time for save in self.saves if (save.step or 0) >= self.kept_step]
        return next(iter(times), stopped)

    def _warm_up_s(self, pace_s: float) -> float:
        """What the first save came later than its steps at the pace take."""
        if not self.saves or self.trained_from is None:
            return 0.0
        steps = (self.saves[0].step or 0) - self.first_step
        return max(0.0, self.saves[0].time - self.trained_from - steps * pace_s)


def _loaded(events: Sequence[JobEvent]) -> int | None:
    """The step of the checkpoint that was loaded."""
    steps = [event.step for event in events if event.kind == "checkpoint_loaded"]
    return next(reversed(steps), None)


def _down_between(events: Sequence[JobEvent], until: float | None) -> float:
    """Seconds between the end of all processes and the next start, before the training."""
    seconds = 0.0
    for earlier, later in pairwise(events):
        is_before = until is None or later.time <= until
        if is_before and (earlier.kind, later.kind) == ("job_terminated", "job_started"):
            seconds += later.time - earlier.time
    return seconds
