"""Do steps advance? By the age of the last step alone: a hung job goes on writing other lines.

The time of a step is known exactly where its line prints one. Otherwise it lies between two bounds:
the newest time printed above it, and the oldest printed below it or the log's own mtime, after
which nothing was written. So an old mtime can show a stall; a fresh one shows nothing.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from raydiag.joblog.facts import JobFacts, LoggedSteps, WorkerLogs
from raydiag.triage.progress import longest_save_s, reference_steps
from raydiag.triage.verdict import Moment, TrainingProgress
from raydiag.triage.wording import first_known

STALL_STEPS = 10  # so many step times of silence, and no less than
STALL_LEAST_S = 300.0
SAVE_FACTOR = 3  # times the longest save seen, and no less than
SAVE_LEAST_S = 1800.0
UNEXPLAINED_S = 1800.0  # of wall time: set-up and compilation take up to half an hour
_BUFFERED_S = 60.0  # a checkpoint that is so much newer than the log


class StepPace(Enum):
    """Whether steps advance."""

    ADVANCING = "advancing"
    STALLED = "stalled"
    UNKNOWN = "unknown"  # no time of the last step is known
    BUFFERED = "buffered"  # the log stands still, checkpoints do not


@dataclass(frozen=True)
class StallJudgement:
    """What is known of the time since the last step."""

    pace: StepPace
    since_s: float | None = None  # at least so long without a step
    limit_s: float = math.inf  # from which on it is a stall
    at_save: bool = False  # the next step is a save
    basis: str = ""  # what the time of the last step comes from


def limit_s(
    facts: JobFacts, progress: TrainingProgress, steps: LoggedSteps | None
) -> tuple[float, bool]:
    """Silence that is still normal after the last step, and whether a save explains it."""
    step_s = progress.step_time_s
    if step_s is None and steps is not None:
        printed = filter(math.isfinite, steps.series.seconds)
        # Without a steady state even a slow compilation is normal.
        step_s = max([SAVE_LEAST_S / STALL_STEPS, *printed])
    limit = max(STALL_STEPS * (step_s or 0.0) * progress.step_interval, STALL_LEAST_S)
    if not _save_is_next(facts, progress):
        return limit, False
    longest = longest_save_s(facts, steps, progress.checkpoint_period)
    return max(limit, SAVE_FACTOR * longest, SAVE_LEAST_S), True


def _save_is_next(facts: JobFacts, progress: TrainingProgress) -> bool:
    """A period's end, or a save that began after the last step and has not finished."""
    last, period = progress.last_step, progress.checkpoint_period
    if last is None:
        return False
    if period and 0 in (last % period, (last + progress.step_interval) % period):
        return True
    last_line = facts.steps.last_line if facts.steps is not None else 0
    events = [save.event for save in facts.saves if save.line > last_line]
    return events[-1:] == ["started"]


def pace(facts: JobFacts, progress: TrainingProgress, moment: Moment) -> StallJudgement:
    """Whether steps advance at the moment that is asked about."""
    steps, _ = reference_steps(facts)
    if steps is None or moment.now is None:
        return StallJudgement(StepPace.UNKNOWN)
    limit, at_save = limit_s(facts, progress, steps)
    earliest, latest, basis = _bounds(facts, steps, progress, moment)
    if _is_buffered(facts, moment, max(limit, SAVE_LEAST_S)):
        return StallJudgement(StepPace.BUFFERED, None, limit, at_save, "checkpoints")
    if latest is not None and moment.now - latest > limit:
        return StallJudgement(StepPace.STALLED, moment.now - latest, limit, at_save, basis)
    if earliest is not None and moment.now - earliest <= limit:
        return StallJudgement(StepPace.ADVANCING, None, limit, at_save, basis)
    return StallJudgement(StepPace.UNKNOWN, None, limit, at_save, basis)


def _is_buffered(facts: JobFacts, moment: Moment, normal_s: float) -> bool:
    """The newest checkpoint is recent, and newer than anything in the log."""
    if moment.artefact is None or moment.now is None or moment.log_end:
        return False
    written = max(mtimes(facts), default=math.inf)
    newest = moment.artefact.mtime
    return newest > written + _BUFFERED_S and moment.now - newest <= normal_s


def mtimes(logs: JobFacts | WorkerLogs) -> Iterator[float]:
    """When each of them was last written to."""
    for file in logs.files:
        if file.mtime:
            yield file.mtime


def _bounds(
    facts: JobFacts, steps: LoggedSteps, progress: TrainingProgress, moment: Moment
) -> tuple[float | None, float | None, str]:
    """Earliest and latest time at which the last step can have been done, and why."""
    exact = progress.last_step_time
    if exact is not None:
        return exact, exact, "its own line"
    latest, basis = steps.last_next_time, "the next line with a time"
    written = max(mtimes(facts.worker_logs if progress.source else facts), default=None)
    if written is not None and not moment.log_end and (latest is None or written < latest):
        latest, basis = written, "the log, which nothing has been written to since"
    return steps.last_near_time, latest, basis


def ended_silence(
    facts: JobFacts, progress: TrainingProgress, end_time: float | None
) -> StallJudgement | None:
    """The stall of a job that is over: silence up to its end, or wall time without an explanation.

    None where steps went on to the end, were all done, or where nothing tells.
    """
    if progress.complete:
        return None
    steps, _ = reference_steps(facts)
    limit, at_save = limit_s(facts, progress, steps)
    if steps is not None and end_time is not None:
        latest = first_known(progress.last_step_time, steps.last_next_time)
        if latest is not None and end_time - latest > limit:
            basis = "times in the log"
            return StallJudgement(StepPace.STALLED, end_time - latest, limit, at_save, basis)
        earliest = first_known(progress.last_step_time, steps.last_near_time)
        if earliest is not None and end_time - earliest <= limit:
            return None  # wall time that nothing explains was not spent at the end
    # Without any step only a job that came as far as the first collective can hang in one.
    if progress.unexplained_s is None or (steps is None and not facts.barrier_writers):
        return None
    threshold = UNEXPLAINED_S
    if at_save:
        threshold = max(threshold, limit)
    if progress.unexplained_s <= threshold:
        return None
    return StallJudgement(StepPace.STALLED, progress.unexplained_s, threshold, at_save, "wall time")
