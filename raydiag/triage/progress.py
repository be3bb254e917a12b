"""Where training stands, what is lost and what is left: the projection, from step lines alone."""

import math
from collections.abc import Iterator

from raydiag.joblog.facts import Header, JobFacts, LoggedSteps, StepRun
from raydiag.triage.throughput import WARM_UP_STEPS, throughput
from raydiag.triage.verdict import TrainingProgress
from raydiag.triage.wording import first_known, known

_LEAST_LINES = 6  # with fewer, all that there is is warm-up
DEFAULT_PERIOD = 200  # MaxText's checkpoint_period, where checkpointing is on and none is printed


def reference_steps(facts: JobFacts) -> tuple[LoggedSteps | None, str]:
    """The step lines to go by, and their file where it is not the job's log.

    A Ray driver loses what its actors have buffered, so whichever log got further is right.
    """
    main, workers = _regular(facts.steps), _regular(facts.worker_logs.steps)
    if workers is None or (main is not None and main.last_step >= workers.last_step):
        return main, ""
    return workers, workers.file


def _regular(steps: LoggedSteps | None) -> LoggedSteps | None:
    """Not a bar that may count anything."""
    if steps is None or not steps.regular:
        return None
    return steps


def project(facts: JobFacts, now: float | None) -> TrainingProgress:
    """Every row of the projection; `now` in Unix seconds, None when it is not known."""
    steps, source = reference_steps(facts)
    period = checkpoint_period(facts.header)
    total = facts.header.steps or (steps.total if steps else None)
    unexplained = unexplained_s(facts)
    if steps is None or not steps.runs:
        return TrainingProgress(
            total_steps=total, checkpoint_period=period, unexplained_s=unexplained
        )
    run = steps.runs[-1]
    last = max(run.last_step, steps.last_step)
    final = final_step(steps, total)
    complete = final is not None and last >= final
    step_s = step_time_s(steps)
    first_of_run = _first_of_run(steps)
    steps_done = last + 1 - _origin(steps)
    saved = last_checkpoint(facts, steps, period, last)
    lost = _lost_steps(complete, last, saved, first_of_run)
    remaining = None if final is None else max(0, final - last)
    return TrainingProgress(
        start=_start(facts, steps, first_of_run),
        first_step=run.first_step,
        last_step=last,
        total_steps=total,
        steps_this_run=last - first_of_run + 1,
        steps_done=steps_done,
        percent=None if not total else min(100.0, 100.0 * steps_done / total),
        step_time_s=step_s,
        step_interval=step_interval(run),
        last_step_time=steps.last_time,
        expected_step=_expected_step(last, final, steps.last_time, now, step_s),
        unexplained_s=unexplained,
        checkpoint_period=period,
        last_checkpoint=saved,
        progress_lost_steps=lost,
        progress_lost_s=_time_of(lost, step_s),
        time_remaining_s=_time_of(remaining, step_s),
        complete=complete,
        source=source,
        throughput=throughput(steps, period),
    )


def _origin(steps: LoggedSteps) -> int:
    """Number of the first step: where it is 0, step N is the one after N others."""
    return int(steps.counts_done or not steps.zero_based)


def _time_of(steps: int | None, step_s: float | None) -> float | None:
    if steps is None or step_s is None:
        return None
    return steps * step_s


def _lost_steps(complete: bool, last: int, saved: int | None, first_of_run: int) -> int:
    """Steps that a restart does again."""
    if complete:
        return 0
    return last - first_of_run + 1 if saved is None else last - saved


def _expected_step(
    last: int, final: int | None, last_time: float | None, now: float | None, step_s: float | None
) -> int | None:
    """The step that training would be at by `now`; None where nothing tells."""
    if now is None or last_time is None or not step_s:
        return None
    expected = last + max(0, math.floor((now - last_time) / step_s))
    return expected if final is None else min(expected, max(final, last))


def final_step(steps: LoggedSteps, total: int | None) -> int | None:
    """Number of the last step of all: T steps from 0 on end at T-1."""
    if total is None or total < 1:
        return None
    return total - 1 + _origin(steps)


def checkpoint_period(header: Header) -> int | None:
    """As printed; MaxText's default only where checkpointing is known to be on."""
    if header.enable_checkpointing is False:
        return None
    if header.checkpoint_period is not None and header.checkpoint_period > 0:
        return header.checkpoint_period
    if header.enable_checkpointing:
        return DEFAULT_PERIOD
    return None


def step_interval(run: StepRun) -> int:
    """Steps from one line to the next; some frameworks print every tenth only."""
    if run.steps < 2:
        return 1
    return max(1, round((run.last_step - run.first_step) / (run.steps - 1)))


def step_time_s(steps: LoggedSteps) -> float | None:
    """Mean time of one step without the warm-up; None with fewer than six step lines."""
    run = steps.runs[-1]
    if run.steps < _LEAST_LINES:
        return None
    if run.steady_count:
        return run.steady_sum / run.steady_count
    timed = list(_timed_after_warm_up(steps, run))
    if len(timed) < 2:
        return None
    (first, start), (last, end) = timed[0], timed[-1]
    if last <= first or end <= start:
        return None
    return (end - start) / (last - first)


def _timed_after_warm_up(steps: LoggedSteps, run: StepRun) -> Iterator[tuple[float, float]]:
    """(step, time)."""
    series = steps.series
    for step, time, line in zip(series.step, series.time, series.line, strict=True):
        warm = line >= run.first_line and step >= run.first_step + WARM_UP_STEPS
        if warm and math.isfinite(time):
            yield step, time


def _first_of_run(steps: LoggedSteps) -> int:
    """First step that this run did; of those counted from 1, lines may show each tenth only."""
    run = steps.runs[-1]
    interval = step_interval(run)
    if _origin(steps) == 0 or run.first_step % interval:
        return run.first_step
    return max(1, run.first_step - interval + 1)


def _start(facts: JobFacts, steps: LoggedSteps, first: int) -> str:
    """What the run began with: what it says itself counts before what its first step shows."""
    restored = _restored_step(facts, steps.runs[-1])
    if first > _origin(steps):
        return f"restored from checkpoint step {first_known(restored, first - 1)}"
    if restored is not None and len(steps.runs) == 1:
        return f"restored from checkpoint step {restored}"
    return "fresh"


def _restored_step(facts: JobFacts, run: StepRun) -> int | None:
    """The step that the job says it started from; the workers speak where its log does not."""
    logged = [
        restore
        for restore in facts.restores
        if restore.step is not None or restore.line <= run.first_line
    ]
    steps = [restore.step for restore in logged or facts.worker_logs.restores]
    return first_known(*reversed(steps))


def last_checkpoint(
    facts: JobFacts, steps: LoggedSteps, period: int | None, last: int
) -> int | None:
    """Newest periodic checkpoint that this run has finished; None without one.

    The log's own lines count where it logs saves; else the highest multiple of the period. The one
    of step 0 is the starting state, and one from before this run's first step is not its own.
    """
    first = max(_first_of_run(steps), 1)
    failed = saved_steps(facts, "failed")
    finished = saved_steps(facts, "finished") - failed
    if finished:
        return max((step for step in finished if first <= step <= last), default=None)
    if period is None:
        return None
    multiple = last // period * period
    while multiple in failed:
        multiple -= period
    return multiple if multiple >= first else None


def saved_steps(facts: JobFacts, event: str) -> set[int]:
    """Steps whose saves have `finished` or `failed`."""
    return {save.step for save in facts.saves if save.step is not None and save.event == event}


def longest_save_s(facts: JobFacts, steps: LoggedSteps | None, period: int | None) -> float:
    """Longest save seen: as the log says, or the longest step at a multiple of the period.

    0.0 when none was seen. A synchronous save shows in the time of its own step or of the next.
    """
    durations = known(save.seconds for save in facts.saves)
    if steps is not None and steps.runs and period:
        durations += _steps_with_save(steps, period)
    return max(durations, default=0.0)


def _steps_with_save(steps: LoggedSteps, period: int) -> Iterator[float]:
    """Seconds of the steps of this run that a save may be part of."""
    series, run = steps.series, steps.runs[-1]
    for step, seconds, line in zip(series.step, series.seconds, series.line, strict=True):
        of_run = line >= run.first_line and step > run.first_step
        if of_run and step % period in (0, 1) and math.isfinite(seconds):
            yield seconds


def unexplained_s(facts: JobFacts) -> float | None:
    """Wall time that neither step lines nor stages before training account for.

    The training stage's own time is the better one where the log tells it.
    """
    trained = training_s(facts)
    if trained is None:
        return None
    in_training = [event.elapsed_s for event in facts.stages if event.name == "Training"]
    timed = list(filter(None, in_training))
    if timed:
        return max(0.0, timed[-1] - trained)
    if facts.summary is None or facts.summary.wall_s is None:
        return None
    return max(0.0, facts.summary.wall_s - _before_training_s(facts) - trained)


def _before_training_s(facts: JobFacts) -> float:
    ended = [event for event in facts.stages if event.event in ("end", "timeout", "failed")]
    return sum(event.elapsed_s or 0.0 for event in ended if event.name != "Training")


def training_s(facts: JobFacts) -> float | None:
    """Sum of the time of every step of one writer; None where lines do not print it."""
    sums = [_logged_training_s(facts.steps), _workers_training_s(facts.worker_logs.steps)]
    return max(known(sums), default=None)


def _workers_training_s(steps: LoggedSteps | None) -> float | None:
    return None if steps is None else sum(run.seconds_sum for run in steps.runs)


def _logged_training_s(steps: LoggedSteps | None) -> float | None:
    if steps is None:
        return 0.0
    if steps.runs_total != len(steps.runs) or not steps.runs:
        return None
    total = 0.0
    for run in steps.runs:
        if not run.seconds_count:
            return None
        total += run.seconds_sum * step_interval(run)  # one line stands for so many steps
    return total
