"""Where training stands, what is lost and what is left: the projection, from step lines alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Optional

from raydiag.joblog.facts import JobFacts
from raydiag.joblog.script_facts import Header
from raydiag.joblog.step_facts import LoggedSteps, StepRun
from raydiag.triage.throughput import WARM_UP_STEPS, throughput
from raydiag.triage.verdict import TrainingProgress

_LEAST_LINES = 6  # with fewer, all that there is is warm-up
DEFAULT_PERIOD = 200  # MaxText's checkpoint_period, where checkpointing is on and none is printed


def reference_steps(facts: JobFacts) -> tuple[Optional[LoggedSteps], str]:
    """The step lines to go by, and their file where it is not the job's log.

    A Ray driver loses what its actors have buffered, so whichever log got further is right.
    """
    own = facts.steps if facts.steps is not None and facts.steps.regular else None
    workers = facts.worker_logs.steps
    if workers is not None and workers.regular and _is_further(workers, own):
        return workers, facts.worker_logs.last_step_file or workers.file
    return own, ""


def _is_further(one: LoggedSteps, other: Optional[LoggedSteps]) -> bool:
    return other is None or one.last_step > other.last_step


def project(facts: JobFacts, now: Optional[float]) -> TrainingProgress:
    """Every row of the projection; `now` in Unix seconds, None when it is not known."""
    steps, source = reference_steps(facts)
    period = checkpoint_period(facts.header)
    total = facts.header.steps or (steps.total if steps else None)
    if steps is None or not steps.runs:
        return TrainingProgress(
            total_steps=total, checkpoint_period=period, unexplained_s=_wall(facts)
        )
    run = steps.runs[-1]
    last, first = max(run.last_step, steps.last_step), run.first_step
    final = final_step(steps, total)
    seconds = step_time_s(steps)
    saved = last_checkpoint(facts, steps, period, last)
    complete = final is not None and last >= final
    done = last + 1 if steps.zero_based and not steps.counts_done else last
    interval = step_interval(run)
    before = _first_of_run(steps, interval)
    this_run = last - before + 1
    lost = 0 if complete else this_run if saved is None else last - saved
    left = None if final is None or seconds is None else max(0, final - last) * seconds
    seen = steps.last_time
    if source and facts.worker_logs.last_step_time is not None:
        seen = facts.worker_logs.last_step_time
    expected = None
    if now is not None and seen is not None and seconds:
        expected = last + max(0, math.floor((now - seen) / seconds))
        expected = expected if final is None else min(expected, max(final, last))
    return TrainingProgress(
        start=_start(facts, steps, before),
        first_step=first,
        last_step=last,
        total_steps=total,
        steps_this_run=this_run,
        steps_done=done,
        percent=None if not total else min(100.0, 100.0 * done / total),
        step_time_s=seconds,
        step_interval=interval,
        last_step_time=seen,
        expected_step=expected,
        unexplained_s=_wall(facts),
        checkpoint_period=period,
        last_checkpoint=saved,
        progress_lost_steps=lost,
        progress_lost_s=None if seconds is None else lost * seconds,
        time_remaining_s=left,
        complete=complete,
        source=source,
        throughput=throughput(steps, period),
    )


def final_step(steps: LoggedSteps, total: Optional[int]) -> Optional[int]:
    """Number of the last step of all: T steps from 0 on end at T-1."""
    if total is None or total < 1:
        return None
    return total - 1 if steps.zero_based and not steps.counts_done else total


def checkpoint_period(header: Header) -> Optional[int]:
    """As printed; MaxText's default only where checkpointing is known to be on."""
    if header.enable_checkpointing is False:
        return None
    if header.checkpoint_period is not None and header.checkpoint_period > 0:
        return header.checkpoint_period
    return DEFAULT_PERIOD if header.enable_checkpointing else None


def step_interval(run: StepRun) -> int:
    """Steps from one line to the next; some frameworks print every tenth only."""
    if run.steps < 2:
        return 1
    return max(1, round((run.last_step - run.first_step) / (run.steps - 1)))


def step_time_s(steps: LoggedSteps) -> Optional[float]:
    """Mean time of one step without the warm-up; None with fewer than six step lines."""
    run = steps.runs[-1]
    if run.steps < _LEAST_LINES:
        return None
    if run.steady_count:
        return run.steady_sum / run.steady_count
    timed = [
        (step, time) for step, time in _timed(steps, run) if step >= run.first_step + WARM_UP_STEPS
    ]
    if len(timed) < 2:
        return None
    (first, start), (last, end) = timed[0], timed[-1]
    return (end - start) / (last - first) if last > first and end > start else None


def _timed(steps: LoggedSteps, run: StepRun) -> Iterator[tuple[float, float]]:
    series = steps.series
    for step, time, line in zip(series.step, series.time, series.line, strict=True):
        if line >= run.first_line and math.isfinite(time):
            yield step, time


def _first_of_run(steps: LoggedSteps, interval: int) -> int:
    """First step that this run did; of those counted from 1, lines may show each tenth only."""
    first = steps.runs[-1].first_step
    if steps.zero_based and not steps.counts_done:
        return first
    return max(1, first - interval + 1) if first % interval == 0 else first


def _start(facts: JobFacts, steps: LoggedSteps, first: int) -> str:
    """What the run began with: what it says itself counts before what its first step shows."""
    run = steps.runs[-1]
    origin = 0 if steps.zero_based and not steps.counts_done else 1
    said = [one for one in facts.restores if one.step is not None or one.line <= run.first_line]
    said = said or list(facts.worker_logs.restores)
    restored = [one.step for one in said if one.step is not None]
    if first > origin:
        step = restored[-1] if restored else first - 1
        return f"restored from checkpoint step {step}"
    if restored and len(steps.runs) == 1:
        return f"restored from checkpoint step {restored[-1]}"
    return "fresh"


def last_checkpoint(
    facts: JobFacts, steps: LoggedSteps, period: Optional[int], last: int
) -> Optional[int]:
    """Newest periodic checkpoint that this run has finished; None without one.

    The log's own word counts where it tells of saves; else the highest multiple of the period. The
    one of step 0 is the starting state, and one from before this run's first step is not its own.
    """
    first = _first_of_run(steps, step_interval(steps.runs[-1]))
    said = [save for save in facts.saves if save.step is not None and save.event == "finished"]
    failed = {save.step for save in facts.saves if save.event == "failed"}
    finished = {save.step for save in said if save.step is not None} - failed
    if finished:
        own = [step for step in finished if first <= step <= last and step > 0]
        return max(own, default=None)
    if period is None:
        return None
    multiple = last // period * period
    while multiple in failed:
        multiple -= period
    return multiple if multiple >= max(first, 1) else None


def longest_save_s(facts: JobFacts, steps: Optional[LoggedSteps], period: Optional[int]) -> float:
    """Longest save seen: as the log says, or the longest step at a multiple of the period.

    0.0 when none was seen. A synchronous save shows in the time of its own step or of the next.
    """
    said = [save.seconds for save in facts.saves if save.seconds is not None]
    if steps is not None and steps.runs and period:
        series, run = steps.series, steps.runs[-1]
        said += [
            seconds
            for step, seconds, line in zip(series.step, series.seconds, series.line, strict=True)
            if line >= run.first_line
            and step > run.first_step
            and step % period in (0, 1)
            and math.isfinite(seconds)
        ]
    return max(said, default=0.0)


def _wall(facts: JobFacts) -> Optional[float]:
    """Wall time that neither step lines nor stages before training account for.

    The training stage's own time is the better one where the log tells it.
    """
    stage = [one.elapsed_s for one in facts.stages if one.name == "Training" and one.elapsed_s]
    if stage:
        trained = training_s(facts)
        return None if trained is None else max(0.0, stage[-1] - trained)
    if facts.summary is None or facts.summary.wall_s is None:
        return None
    trained = training_s(facts)
    if trained is None:
        return None
    before = sum(
        event.elapsed_s or 0.0
        for event in facts.stages
        if event.event in ("end", "timeout", "failed") and event.name != "Training"
    )
    return max(0.0, facts.summary.wall_s - before - trained)


def training_s(facts: JobFacts) -> Optional[float]:
    """Sum of the time of every step of one writer; None where lines do not print it."""
    steps = facts.steps
    if steps is None:
        sums: list[Optional[float]] = [0.0]
    else:
        known = steps.runs_total == len(steps.runs)
        sums = [_run_seconds(run) for run in steps.runs] if known else []
    workers = facts.worker_logs
    told = None if not sums or None in sums else sum(one for one in sums if one is not None)
    if workers.seconds_sum is not None:
        return workers.seconds_sum if told is None else max(told, workers.seconds_sum)
    return told


def _run_seconds(run: StepRun) -> Optional[float]:
    """Of every step; where lines are printed for each tenth only, each stands for ten."""
    if not run.seconds_count:
        return None
    return run.seconds_sum * step_interval(run)
